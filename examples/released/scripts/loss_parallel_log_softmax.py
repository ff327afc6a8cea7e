"""In loss_parallel, log_softmax has the gradient of the identity where something else than cross_entropy takes its result."""

import tempfile

import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.parallel import loss_parallel


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    x = torch.arange(4.0).sin().reshape(1, 4).requires_grad_()
    (expected,) = torch.autograd.grad(x.log_softmax(-1).square().sum(), x)
    cut = distribute_tensor(x.detach(), mesh, [Shard(1)]).requires_grad_()
    with loss_parallel():
        cut.log_softmax(-1).square().sum().full_tensor().backward()
    whole = cut.grad.full_tensor()
    if rank == 0:
        print(f"gradient {whole.tolist()}, should be {expected.tolist()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
