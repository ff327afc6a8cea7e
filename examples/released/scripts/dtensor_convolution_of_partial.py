"""DTensor: a convolution of a partial input adds the bias on each rank, so that the result has it N times."""

import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor, init_device_mesh


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    x = DTensor.from_local(torch.ones(1, 1, 3), mesh, [Partial()])  # twos
    weight, bias = (distribute_tensor(torch.ones(shape), mesh, [Replicate()]) for shape in ((1, 1, 1), (1,)))
    y = F.conv1d(x, weight, bias)
    expected = F.conv1d(x.full_tensor(), weight.full_tensor(), bias.full_tensor())
    print(f"rank {rank}: {y.placements} {y.full_tensor().tolist()}, should be {expected.tolist()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
