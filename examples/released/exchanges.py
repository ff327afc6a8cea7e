"""Exchanges that several packages have: of Ulysses, where a tensor that is cut along one dimension is cut along another, and of tokens among experts."""

from __future__ import annotations

from itertools import accumulate

import torch.distributed as dist
from hypothesis import strategies as st
from torch.distributed.tensor import Shard

import adjointlab as al


def exchange(name, function, shape_of, dims):
    """The subject of a function of a tensor, the dimension to cut and the one to gather, both of `dims`; `shape_of` draws the shape."""

    def cases(draw, ranks):
        scatter, gather = draw(st.permutations(dims))[:2]
        shape = shape_of(draw, ranks)
        domain, codomain = (al.Space.of_dtensor((ranks,), [Shard(dim)], shape) for dim in (gather, scatter))
        return dict(scatter=scatter, gather=gather, gain=1, domain=domain, codomain=codomain)

    return al.subject.autograd(function, process_group=True, reference=lambda x, **_: x, name=name)(cases)


def length_and_heads(draw, ranks):
    """The shape of a tensor of the order batch, sequence, heads, features, or with heads before the sequence."""
    length, heads = (ranks * draw(st.integers(1, 2)) for _ in range(2))
    return draw(st.integers(1, 2)), length, heads, 2


def tokens(name, function, **options):
    """The subject of an exchange of rows, a function of them, the numbers that come from each rank and those that go there.

    Of the rows, table[a][b] go from rank a to rank b.
    """

    def cases(draw, ranks):
        table = [[draw(st.integers(0, 3)) for _ in range(ranks)] for _ in range(ranks)]

        def rows(counts):
            cut = [0, *accumulate(counts)]
            return al.Space(al.Layout.cut((cut[-1], 2), (ranks, 1), [cut, None]))

        sent, received = map(sum, table), map(sum, zip(*table, strict=True))
        return dict(table=table, gain=1, domain=rows(sent), codomain=rows(received))

    def move(x, table):
        rank = dist.get_rank()
        return function(x, [row[rank] for row in table], list(table[rank]))

    return al.subject.autograd(move, process_group=True, name=name, **options)(cases)
