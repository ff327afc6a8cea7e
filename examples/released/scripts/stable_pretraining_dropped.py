"""stable-pretraining 0.1.8: the loss of LeJEPA drops the results of torch's differentiable all_reduce, which leaves its argument as it is.

So the statistic is that of one rank's rows, multiplied by the number of ranks as if it were that of all. And the backward pass of `FullGatherLayer`
averages gradients, and writes them into the gradient that it gets.
"""

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

sys.path.append(str(Path(__file__).parents[1]))

from parts_of_packages import without_init

without_init("stable_pretraining", *(f"stable_pretraining.{part}" for part in ("utils", "losses", "methods")))
sys.modules["stable_pretraining"].Module = nn.Module
sys.modules["stable_pretraining.backbone"] = SimpleNamespace(MLP=nn.Module)
sys.modules["timm"] = SimpleNamespace()
sys.modules["transformers"] = SimpleNamespace()
sys.modules["transformers.utils"] = SimpleNamespace(ModelOutput=object)
from stable_pretraining.methods.lejepa import SlicedEppsPulley  # noqa: E402
from stable_pretraining.utils.distributed import FullGatherLayer  # noqa: E402


def rows():
    return torch.randn(6, 3, generator=torch.Generator().manual_seed(0))


def main(rank, store, loss, ranks=2):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
    own = SlicedEppsPulley(num_slices=4)(rows().chunk(ranks)[rank])
    print(f"rank {rank}: the loss of LeJEPA is {own.item():.4f}, that of the whole batch {loss:.4f}")
    x = torch.ones(1, 1, requires_grad=True)
    gradient = torch.ones(ranks, 1, 1) * (rank + 1)
    FullGatherLayer.apply(x).backward(gradient)
    print(
        f"rank {rank}: from gradients of 1 and 2 FullGatherLayer makes {x.grad.item()}, and changes them into {gradient[0].item()}"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    whole = SlicedEppsPulley(num_slices=4)(rows()).item()
    torch.multiprocessing.spawn(main, (tempfile.mktemp(), whole), nprocs=2)
