"""DeepSpeed 0.19.8: the functions of automatic tensor parallelism.

adjointlab check examples/released/released_deepspeed_regions.py --check adjoint
"""

from __future__ import annotations

import sys
from itertools import accumulate

import deepspeed.comm
import torch.distributed as dist
from deepspeed.module_inject import layers
from hypothesis import strategies as st
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard

import adjointlab as al

# It compiles code for CPUs when groups are opened, which takes longer than a rank may.
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


def group():
    deepspeed.comm.init_distributed("gloo", verbose=False)
    return dist.group.WORLD


def check(name, function, source, target, orders=("row-major",), **options):
    def cases(draw, ranks):
        sizes = [draw(st.integers(1, 3)) for _ in range(ranks)]
        shape = draw(st.integers(1, 2)), sum(sizes)
        spaces = {"cut": lambda: al.Space(al.Layout.cut(shape, (1, ranks), [None, [0, *accumulate(sizes)]]))}

        def space(kind):
            return spaces[kind]() if kind == "cut" else al.Space.of_dtensor((ranks,), [kind], shape)

        return dict(sizes=tuple(sizes), gain=ranks, domain=space(source), codomain=space(target))

    return al.subject.autograd(
        function,
        process_group=True,
        rank_local=("deepspeed.comm",),
        reference=lambda x, sizes: x,
        orders=orders,
        name=f"deepspeed.{name}",
        **options,
    )(cases)


def reduce(x, sizes):
    return layers.RowParallel.apply(group(), x, False)


def copy(x, sizes):
    return layers.ColumnParallel.apply(group(), x)


gathered = check(
    "gather",
    lambda x, sizes: layers.GatherFromTensorParallelRegion.apply(group(), x, sizes),
    "cut",
    Replicate(),
)
scattered = check(
    "scatter",
    lambda x, sizes: layers.ScatterToTensorParallelRegion.apply(group(), x, sizes, dist.get_rank()),
    Replicate(),
    "cut",
)
sums = check("sum", lambda x, sizes: reduce(x * 1, sizes), Partial(), Replicate())
copies = check("copy", lambda x, sizes: copy(x, sizes) * 1, Replicate(), "replicated")
sums_in_place = check("sum.in_place", reduce, Partial(), Replicate(), ranks=(2,))
copies_in_place = check("copy.in_place", copy, Replicate(), "replicated", ranks=(2,))
sums_of_columns = check("sum.transposed", reduce, Partial(), Replicate(), ("column-major",), ranks=(2,))
copies_of_columns = check("copy.transposed", copy, Replicate(), "replicated", ("column-major",), ranks=(2,))


class Overlapping(nn.Module):
    """A column-parallel layer whose backward pass sums while it multiplies."""

    def __init__(self, module):
        super().__init__()
        ranks, rank = dist.get_world_size(), dist.get_rank()
        self.weight = nn.Parameter(module.weight.detach().chunk(ranks)[rank].clone())
        self.bias = nn.Parameter(module.bias.detach().chunk(ranks)[rank].clone())

    def forward(self, x):
        return layers.AsyncColumnParallel.apply(group(), x, self.weight, self.bias)


def check_layer(name, dims, **options):
    def cases(draw, ranks):
        sides = [draw(st.integers(1, 3)) for _ in range(dims - 1)]
        return dict(
            inputs=(*sides, 2),
            outputs=2 * ranks,
            frozen=0,
            output_placements=[[Shard(dims - 1)]],
            parameter_placements={"weight": [Shard(0)], "bias": [Shard(0)]},
        )

    return al.subject.parallel(
        lambda outputs: nn.Linear(2, outputs),
        lambda module, mesh: Overlapping(module),
        rank_local=("deepspeed.comm",),
        name=f"deepspeed.{name}",
        **options,
    )(cases)


rows = check_layer("overlapping", 2)
batches = check_layer("overlapping.batches", 3, ranks=(2,))
