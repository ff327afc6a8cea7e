"""muon-optimizer 0.1.0: `Muon` pads its parameters by the remainder of their number, not by what is missing to a multiple of the ranks.

Of 4 parameters on 3 ranks, or one on 3, the last round has fewer tensors than ranks, and `step` raises an error.
"""

import tempfile

import torch
import torch.distributed as dist
from muon import Muon


def main(rank, store, ranks=3):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
    for number in (3, 5, 4):
        parameters = [torch.nn.Parameter(torch.eye(2)) for _ in range(number)]
        for parameter in parameters:
            parameter.grad = torch.ones(2, 2)
        try:
            Muon(parameters).step()
            result = "done"
        except (IndexError, ValueError, RuntimeError) as error:
            result = repr(error)
        print(f"rank {rank} of {ranks}, {number} parameters: {result}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=3)
