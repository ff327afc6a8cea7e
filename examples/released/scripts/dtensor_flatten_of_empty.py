"""DTensor: a view of an empty tensor may never return: `view_groups` loops for ever."""

import faulthandler
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh


def main(rank, store):
    faulthandler.dump_traceback_later(10, exit=True)  # says where it is
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    for shape in ((2, 3, 0), (2, 0, 3), (0, 2, 3)):
        print(f"flatten(1) of {shape}", flush=True)
        x = distribute_tensor(torch.empty(shape), mesh, [Shard(0)])
        print(f"    is {tuple(x.flatten(1).shape)}", flush=True)


if __name__ == "__main__":
    main(0, tempfile.mktemp())
