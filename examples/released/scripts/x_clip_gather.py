"""x-clip 0.14.4: the gather of the latents of all ranks uses names that its module does not import, and raises NameError on several ranks."""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).parents[1]))

from parts_of_packages import without_init

without_init("x_clip")


def main(rank, store, ranks=2):
    from x_clip.distributed import all_gather

    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
    try:
        print(f"rank {rank}: {all_gather(torch.ones(1, 2), 0, None)}")
    except NameError as error:
        print(f"rank {rank}: {error!r}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
