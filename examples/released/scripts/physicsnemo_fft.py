"""PhysicsNeMo 2.2.2: DistributedRFFT2 has the gradient of norm="ortho" alone, and DistributedIRFFT2 raises TypeError."""

import tempfile

import torch
import torch.distributed as dist
from physicsnemo.distributed import DistributedManager, fft

torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *_: None  # marks for the profiler


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    DistributedManager._shared_state.update(_is_initialized=True, _groups={"spatial_parallel": None})
    for norm in ("ortho", "backward"):
        whole = torch.arange(8.0).reshape(2, 4).requires_grad_()
        torch.fft.rfft2(whole, norm=norm).abs().square().sum().backward()
        x = whole.detach()[:, 2 * rank : 2 * rank + 2].clone().requires_grad_()
        fft.DistributedRFFT2.apply(x, (2, 4), (0, 1), norm).abs().square().sum().backward()
        wanted = whole.grad[0, 2 * rank].item()
        print(f"rank {rank}: norm={norm}: x.grad[0, 0] = {x.grad[0, 0].item()}, should be {wanted}")
    try:
        fft.DistributedIRFFT2.apply(torch.ones(1, 3, dtype=torch.complex64), (2, 4), (0, 1), "ortho")
    except TypeError as error:
        print(f"rank {rank}: TypeError: {error}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
