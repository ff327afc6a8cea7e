"""DistributedDataParallel(static_graph=True): a first pass under no_sync ends in an internal assertion."""

import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    module = DistributedDataParallel(torch.nn.Linear(1, 1), static_graph=True)
    try:
        with module.no_sync():
            module(torch.ones(1, 1)).sum().backward()
        module(torch.ones(1, 1)).sum().backward()
        print(f"rank {rank}: both passes are done")
    except RuntimeError as error:
        print(f"rank {rank}: {str(error).splitlines()[0]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
