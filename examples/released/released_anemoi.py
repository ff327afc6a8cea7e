"""anemoi-models 0.19: the moves of `distributed.graph` between tensors that are cut and whole ones, with parts of any sizes.

adjointlab check examples/released/released_anemoi.py --check adjoint
"""

from __future__ import annotations

from itertools import accumulate

import torch.distributed as dist
from anemoi.models.distributed import graph
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.adapters.regions import region


def check(name, kind, function, dtype="float32"):
    """A function of a tensor, the sizes of its parts and the group; float32 is what sums are made in, whatever the type."""

    def move(x, sizes):
        return function(x, sizes, dist.group.WORLD)

    def cases(draw, ranks):
        sizes = [draw(st.integers(0, 3)) for _ in range(ranks)]
        sizes[draw(st.integers(0, ranks - 1))] += 1
        return dict(sizes=sizes, **region(kind, (sum(sizes), 2), ranks, dtype, sizes))

    return al.subject.autograd(move, process_group=True, name=f"anemoi.{name}")(cases)


def reduced(x, sizes, group):
    return graph.reduce_tensor(x, group)


def copied(x, sizes, group):
    return graph.sync_tensor(x, 0, sizes, group, gather_in_fwd=False)


def gathered(x, sizes, group):
    return graph.gather_tensor(x, 0, sizes, group)


shards = check("shard", "scatter sequence", lambda x, *of: graph.shard_tensor(x, 0, *of))
gathers = check("gather", "gather sequence, whole gradient", gathered)
syncs = check("sync", "gather sequence", lambda x, *of: graph.sync_tensor(x, 0, *of))
copies = check("copy", "copy", copied)
sums = check("reduce", "reduce", lambda x, *of: reduced(x * 1, *of))
reduce_shards = check(
    "reduce_shard", "reduce-scatter sequence", lambda x, *of: graph.reduce_shard_tensor(x * 1, 0, *of)
)
copies_in_place = check("copy.in_place", "copy", copied)
sums_in_place = check("reduce.in_place", "reduce", reduced)
sums_of_float64 = check("reduce.float64", "reduce", reduced, "float64")


def transposed(x, rows, columns, dim):
    sizes = (rows, columns)
    return graph.all_to_all_transpose(x, 1 - dim, sizes[1 - dim], dim, sizes[dim], dist.group.WORLD)


@al.subject.autograd(transposed, process_group=True, reference=lambda x, **_: x, name="anemoi.transpose")
def transposes(draw, ranks):
    rows, columns = ([draw(st.integers(0, 2)) for _ in range(ranks)] for _ in range(2))
    spaces = []
    dim = draw(st.integers(0, 1))
    for cut in (dim, 1 - dim):
        ends = [(0, *accumulate(sizes)) if k == cut else None for k, sizes in enumerate((rows, columns))]
        grid = [ranks if k == cut else 1 for k in range(2)]
        spaces.append(al.Space(al.Layout.cut((sum(rows), sum(columns)), grid, ends), dtype="float32"))
    return dict(rows=rows, columns=columns, dim=dim, gain=1, domain=spaces[0], codomain=spaces[1])
