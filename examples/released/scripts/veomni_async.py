"""veomni 0.1.12: `all_to_all_async` has no backward pass: its function has an argument that no caller can name."""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).parents[1]))

from parts_of_packages import without_init

without_init("veomni", "veomni.distributed", "veomni.distributed.moe")


def main(rank, store, ranks=2):
    from veomni.distributed.moe.comm import all_to_all_async

    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
    x = torch.ones(2, 3, requires_grad=True)
    rows, work = all_to_all_async(dist.group.WORLD, x, [1, 1], [1, 1])
    work.wait()
    try:
        rows.sum().backward()
    except TypeError as error:
        print(f"rank {rank}: {error}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
