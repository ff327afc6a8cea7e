"""A penalty on the gradient by the input of a column-parallel layer gives no gradient: DTensor.from_local cuts the graph in its backward pass."""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def gradient_with_penalty(model):
    x = torch.ones(1, 2, requires_grad=True)
    y = model(x).sum()
    (by_x,) = torch.autograd.grad(y, x, create_graph=True)
    (y + by_x.square().sum()).backward()
    return x.grad


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))
    sequential = gradient_with_penalty(model)
    model.zero_grad()
    mesh = init_device_mesh("cpu", (1,))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    parallel = gradient_with_penalty(model)
    if rank == 0:
        print(
            "gradient by x of the loss and the penalty: sequential",
            sequential.tolist(),
            "parallel",
            parallel.tolist(),
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=1)
