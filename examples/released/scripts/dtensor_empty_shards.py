"""DTensor: some operators fail on ranks that hold no rows."""

import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=3)
    mesh = init_device_mesh("cpu", (3,))
    x = distribute_tensor(torch.ones(4, 1), mesh, [Shard(0)])  # 2, 2 and no rows
    indices = distribute_tensor(torch.tensor([0]), mesh, [Replicate()])
    operators = {
        "embedding": lambda: F.embedding(indices, x),
        "max": lambda: x.max(),
        "amax": lambda: x.amax(0),
        "logsumexp": lambda: x.logsumexp(0),
        "gather": lambda: torch.gather(x, 0, indices[:, None]).full_tensor(),
    }
    for name, operator in operators.items():
        try:
            operator()
            print(f"rank {rank}: {name} passes")
        except Exception as error:
            print(f"rank {rank}: {name} raises {type(error).__name__}: {error}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=3)
