"""ai2-olmo-core 3.0.0: the exchanges of context parallelism, and of tokens among experts.

adjointlab check examples/released/released_olmo_core.py --check adjoint --check sequential
"""

from __future__ import annotations

import torch.distributed as dist
from exchanges import length_and_heads, tokens
from olmo_core.distributed.parallel import context_parallel as cp
from olmo_core.ops import moe
from torch.distributed.tensor import Shard

import adjointlab as al

SEQUENCE = 1
ROW_MAJOR = ("row-major",)


def check(name, function, to_heads, shapes, orders=ROW_MAJOR, **options):
    """A function of a tensor, or of a list of some, of the order batch, sequence, heads, features, with others packed before the heads."""

    def exchanged(*x):
        result = function(x[0] if len(x) == 1 else list(x), dist.group.WORLD)
        return result if len(x) == 1 else tuple(result)

    def cases(draw, ranks):
        drawn = shapes(draw, ranks)
        dims = SEQUENCE, len(drawn[0]) - 2
        source, target = dims if to_heads else reversed(dims)

        def spaces(dim):
            parts = [
                al.Space.of_dtensor((ranks,), [Shard(dim)], shape, name=f"x{number}")
                for number, shape in enumerate(drawn)
            ]
            return al.Space(*[tensor for part in parts for tensor in part.tensors])

        return dict(gain=1, domain=spaces(source), codomain=spaces(target))

    return al.subject.autograd(
        exchanged,
        process_group=True,
        reference=lambda *x: x[0] if len(x) == 1 else x,
        name=f"olmo_core.{name}",
        orders=orders,
        **options,
    )(cases)


def one(draw, ranks):
    return [length_and_heads(draw, ranks)]


def packed(draw, ranks):
    batch, length, *others = length_and_heads(draw, ranks)
    return [(batch, length, 3, *others)]


def three(draw, ranks):
    return [length_and_heads(draw, ranks)] * 3


def of_widths(*widths):
    return lambda draw, ranks: [(2, ranks, ranks, width) for width in widths]


def packed_of_one_width(draw, ranks):
    return [(1, ranks, 3, ranks, 1)]


to_heads = check("to_heads", cp.all_to_all_single_cp2hp, True, one)
turned_to_heads = check(
    "to_heads.strided", cp.all_to_all_single_cp2hp, True, of_widths(2), ("column-major",), ranks=(2,)
)
to_sequences = check("to_sequences", cp.all_to_all_single_hp2cp, False, one)
packed_to_heads = check("to_heads.packed", cp.all_to_all_single_cp2hp_qkvpacked, True, packed)
packed_to_sequences = check(
    "to_sequences.packed",
    cp.all_to_all_single_hp2cp_qkvpacked,
    False,
    packed_of_one_width,
    ranks=(2,),
)
three_to_heads = check("to_heads.three", cp.all_to_all_cp2hp, True, three)
three_to_sequences = check("to_sequences.three", cp.all_to_all_hp2cp, False, three)
two_to_heads = check("to_heads.widths", cp.all_to_all_cp2hp, True, of_widths(1, 2), ranks=(1,))


def at_once(x, received, sent):
    return moe.all_to_all(x, received, sent)[0]


def when_received(x, received, sent):
    return moe.all_to_all_wait(*moe.all_to_all_async(x, received, sent))


tokens_at_once = tokens("olmo_core.tokens", at_once, orders=ROW_MAJOR)
tokens_later = tokens("olmo_core.tokens.later", when_received)
