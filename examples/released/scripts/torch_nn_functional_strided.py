"""torch.distributed.nn.functional.all_gather with a gradient that is not contiguous, on gloo.

Its backward pass receives into `empty_like` of parts of the gradient, which have their strides, and gloo fills such memory as it lies:
the gradient is transposed, without an error.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as F


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    x = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
    part = F.all_gather(x)[0]
    weights = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    part.backward(weights.T.contiguous().T)  # the same numbers, column by column
    if rank == 0:
        print("x.grad =", x.grad.tolist(), "should be", (2 * weights).tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
