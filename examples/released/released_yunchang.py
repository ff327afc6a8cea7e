"""yunchang 0.6.4: the exchange of Ulysses, of heads for parts of the sequence, alone and for packed queries, keys and values.

adjointlab check examples/released/released_yunchang.py --check adjoint --check sequential
"""

from __future__ import annotations

import torch.distributed as dist
from exchanges import exchange, length_and_heads
from hypothesis import strategies as st
from yunchang.comm.all_to_all import SeqAllToAll4D, SeqAllToAll5D

SEQUENCE = 1


def check(name, function, packed):
    """A function of a tensor of the order batch, sequence, those that are packed, heads, features."""
    heads = SEQUENCE + 1 + len(packed)

    def exchanged(x, scatter, gather):
        return function.apply(dist.group.WORLD, x, scatter, gather)

    def shape_of(draw, ranks):
        batch, length, number, _ = length_and_heads(draw, ranks)
        return batch, length, *packed, number, draw(st.integers(1, 2))

    return exchange(f"yunchang.{name}", exchanged, shape_of, (SEQUENCE, heads))


exchanges = check("exchange", SeqAllToAll4D, ())
packed_exchanges = check("exchange.packed", SeqAllToAll5D, (3,))
