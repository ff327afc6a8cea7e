"""nanotron 0.4: with `async_communication`, the backward pass of `row_linear` gathers what each rank has computed with its own part of the weight.

A rank's gradient of the input is then that of other parts of the weight in the rows of other ranks.
"""

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).parents[1]))

from parts_of_packages import without_init

without_init("nanotron", "nanotron.parallel", "nanotron.parallel.tensor_parallel")
sys.modules["nanotron.parallel.utils"] = SimpleNamespace(assert_cuda_max_connections_set_to_1=lambda f: f)


def main(rank, store, ranks=2):
    from nanotron.parallel.tensor_parallel import functional
    from nanotron.parallel.tensor_parallel.enum import TensorParallelLinearMode as Mode

    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
    weight = torch.tensor([[10.0**rank]])
    for is_async in (False, True):
        x = torch.ones(ranks, 1, requires_grad=True)
        y = functional.row_linear(x, weight, None, dist.group.WORLD, Mode.REDUCE_SCATTER, is_async)
        y.sum().backward()
        print(
            f"rank {rank}, async_communication={is_async}: the gradient is {x.grad.flatten().tolist()}, should be {[10.0**rank] * ranks}"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
