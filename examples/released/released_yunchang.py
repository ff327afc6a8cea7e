"""yunchang 0.6.4: the exchange of Ulysses, of heads for parts of the sequence, alone and for packed queries, keys and values.

adjointlab check examples/released/released_yunchang.py --check adjoint --check sequential
"""

from __future__ import annotations

import torch.distributed as dist
from hypothesis import strategies as st
from torch.distributed.tensor import Shard
from yunchang.comm.all_to_all import SeqAllToAll4D, SeqAllToAll5D

import adjointlab as al

SEQUENCE = 1


def check(name, function, packed):
    """A function of a tensor of the order batch, sequence, those that are packed, heads, features."""
    heads = SEQUENCE + 1 + len(packed)

    def exchange(x, scatter, gather):
        return function.apply(dist.group.WORLD, x, scatter, gather)

    def cases(draw, ranks):
        batch, features = draw(st.integers(1, 2)), draw(st.integers(1, 2))
        length, number = (ranks * draw(st.integers(1, 2)) for _ in range(2))
        scatter, gather = draw(st.permutations([SEQUENCE, heads]))
        spaces = [
            al.Space.of_dtensor((ranks,), [Shard(dim)], (batch, length, *packed, number, features))
            for dim in (gather, scatter)
        ]
        return dict(scatter=scatter, gather=gather, gain=1, domain=spaces[0], codomain=spaces[1])

    return al.subject.autograd(
        exchange, process_group=True, reference=lambda x, **_: x, name=f"yunchang.{name}"
    )(cases)


exchanges = check("exchange", SeqAllToAll4D, ())
packed_exchanges = check("exchange.packed", SeqAllToAll5D, (3,))
