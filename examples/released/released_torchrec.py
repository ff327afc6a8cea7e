"""torchrec 1.8.0: the exchanges of embeddings, each by requests that are waited for later, and at once.

adjointlab check examples/released/released_torchrec.py --check adjoint --check sequential

Gradients are not divided by the number of ranks, as they are by default.
"""

from __future__ import annotations

from itertools import accumulate

import torch.distributed as dist
from hypothesis import strategies as st
from torch.distributed.tensor import Partial, Shard
from torchrec.distributed import comm_ops

import adjointlab as al

comm_ops.set_gradient_division(False)


def waited(function, is_at_once):
    """The result of a function when it has come."""

    def called(x, **arguments):
        if not is_at_once:
            return function(x, **arguments).wait()
        with comm_ops.torchrec_use_sync_collectives():
            return function(x, **arguments).wait()

    return called


def check(name, function, cases):
    """The subjects of a function whose result is waited for later, and at once."""
    return [
        al.subject.autograd(
            waited(function, is_at_once),
            process_group=True,
            reference=lambda x, **_: x,
            orders=("row-major",),
            rank_local=("torchrec.distributed.comm_ops",),
            name=f"torchrec.{name}{'.at_once' if is_at_once else ''}",
        )(cases)
        for is_at_once in (False, True)
    ]


def rows(draw, ranks):
    return ranks * draw(st.integers(1, 2)), draw(st.integers(1, 3))


def even(source, target):
    def cases(draw, ranks):
        shape = rows(draw, ranks)
        domain, codomain = (al.Space.of_dtensor((ranks,), [kind], shape) for kind in (source, target))
        return dict(gain=ranks, domain=domain, codomain=codomain)

    return cases


def cut(counts):
    return [0, *accumulate(counts)]


def of_parts(draw, ranks, least=1):
    return [draw(st.integers(least, 3)) for _ in range(ranks)]


def pooled_cases(draw, ranks):
    """A batch whose features the ranks share becomes one of which they share the rows."""
    batch, dims = of_parts(draw, ranks), of_parts(draw, ranks)
    shape = sum(batch), sum(dims)
    return dict(
        batch_size_per_rank=batch,
        dim_sum_per_rank=dims,
        gain=1,
        domain=al.Space(al.Layout.cut(shape, (1, ranks), [None, cut(dims)])),
        codomain=al.Space(al.Layout.cut(shape, (ranks, 1), [cut(batch), None])),
    )


def uneven_sums(draw, ranks):
    splits = of_parts(draw, ranks)
    shape = sum(splits), draw(st.integers(1, 2))
    return dict(
        input_splits=splits,
        gain=ranks,
        domain=al.Space.of_dtensor((ranks,), [Partial()], shape),
        codomain=al.Space(al.Layout.cut(shape, (ranks, 1), [cut(splits), None])),
    )


def chunks(x):
    return comm_ops.reduce_scatter_pooled(list(x.chunk(dist.get_world_size())))


pooled, pooled_at_once = check("pooled", comm_ops.alltoall_pooled, pooled_cases)
gathered, gathered_at_once = check("gather", comm_ops.all_gather_base_pooled, even(Shard(0), "replicated"))
sums, sums_at_once = check("sum", comm_ops.reduce_scatter_base_pooled, even(Partial(), Shard(0)))
sums_of_parts, sums_of_parts_at_once = check("sum_of_parts", chunks, even(Partial(), Shard(0)))
uneven, uneven_at_once = check("uneven_sum", comm_ops.reduce_scatter_v_pooled, uneven_sums)
