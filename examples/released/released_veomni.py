"""veomni 0.1.12: the functions of sequence parallelism, and the exchange of tokens among experts.

adjointlab check examples/released/released_veomni.py --check adjoint --check sequential

Other modules of the package need a compiler for devices.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from exchanges import exchange, tokens
from hypothesis import strategies as st
from parts_of_packages import without_init
from torch.distributed.tensor import Replicate, Shard

import adjointlab as al

parts = ("distributed", "distributed.moe", "distributed.sequence_parallel")
without_init("veomni", *(f"veomni.{part}" for part in parts))
from veomni.distributed.moe.comm import all_to_all, all_to_all_async  # noqa: E402
from veomni.distributed.sequence_parallel import ulysses  # noqa: E402


def group():
    return dist.group.WORLD


def exchanged(x, scatter, gather):
    return ulysses._SeqAllToAll.apply(group(), x, scatter, gather)


def multiples(draw, ranks):
    return [ranks * draw(st.integers(1, 2)) for _ in range(3)]


exchanges = exchange("veomni.exchange", exchanged, multiples, range(3))


def check(name, function, source, target):
    """A function of a tensor and a dimension, along which some are cut."""

    def cases(draw, ranks):
        dim, shape = draw(st.integers(0, 2)), [3, 2, 2]
        shape[dim] = ranks * draw(st.integers(1, 2))
        domain, codomain = (al.Space.of_dtensor((ranks,), [kind(dim)], shape) for kind in (source, target))
        return dict(dim=dim, gain=ranks, domain=domain, codomain=codomain)

    return al.subject.autograd(
        function, process_group=True, reference=lambda x, dim: x, name=f"veomni.{name}"
    )(cases)


def whole(dim):
    return Replicate()


sliced = check("slice", lambda x, dim: ulysses._Slice.apply(group(), x, dim, False), whole, Shard)
gathered = check(
    "gather", lambda x, dim: ulysses._Gather.apply(group(), x, dim), Shard, lambda dim: "replicated"
)
gathered_outputs = check(
    "gather_outputs", lambda x, dim: ulysses._Gather.apply(group(), x, dim, False, False), Shard, whole
)


def roll(x, shift, dim):
    return ulysses.roll_with_sequence_parallel(x, shift, dim, group())


@al.subject.autograd(
    roll, process_group=True, reference=lambda x, shift, dim: torch.roll(x, shift, dim), name="veomni.roll"
)
def rolls(draw, ranks):
    dim, length, shape = draw(st.integers(0, 1)), draw(st.integers(1, 3)), [2, 2]
    shape[dim] = ranks * length
    space = al.Space.of_dtensor((ranks,), [Shard(dim)], shape)
    return dict(shift=draw(st.integers(-length, length)), dim=dim, gain=1, domain=space, codomain=space)


def at_once(x, received, sent):
    return all_to_all(group(), x, received, sent)


def when_received(x, received, sent):
    rows, work = all_to_all_async(group(), x, received, sent)
    work.wait()
    return rows


tokens_at_once = tokens("veomni.tokens", at_once)
tokens_later = tokens("veomni.tokens.later", when_received, ranks=(2,))
