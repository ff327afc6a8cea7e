"""The exchange of Ulysses, which several packages have: a tensor that is cut along one dimension is cut along another."""

from __future__ import annotations

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
