"""A penalty on the gradient by the input raises under fully_shard: the second backward pass needs parameters that the first one has freed."""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=1)
    model = fully_shard(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), mesh=init_device_mesh("cpu", (1,)))
    x = torch.ones(1, 2, requires_grad=True)
    y = model(x).sum()
    (by_x,) = torch.autograd.grad(y, x, create_graph=True)
    try:
        (y + by_x.square().sum()).backward()
    except RuntimeError as error:
        print("RuntimeError:", str(error).splitlines()[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=1)
