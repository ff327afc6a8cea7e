"""Programs of torch.distributed, one for each collective, each with the result that every rank must have.

A program takes the values of its rank, a tensor of 6 elements, and `wait`, which completes what a call returns. `expected` takes
the values of all ranks and computes the result of one, in memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

Tensors = list[torch.Tensor]
Wait = Callable[[Any], None]

FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
COMPLEX = (torch.complex64, torch.complex128)
REAL = (*FLOATING, *INTEGERS)
ALL = (*REAL, torch.bool, *COMPLEX)


class Program(NamedTuple):
    run: Callable[[torch.Tensor, Wait, bool], object]
    expected: Callable[[Tensors, int], object]
    dtypes: tuple[torch.dtype, ...] = ALL


def values(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Small numbers that differ from rank to rank, whose sums and products are exact in every type."""
    numbers = (torch.arange(6) * 2 + rank) % 3
    if dtype is torch.bool:
        return numbers > 0
    return numbers.to(dtype) * (1 + 1j) if dtype.is_complex else numbers.to(dtype)


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


def last() -> int:
    return size() - 1


def own_part(parts: Tensors, place: int) -> Tensors:
    """The part at `place` of each tensor, cut into one part of 1, 2, 3, ... rows for each rank, over and over."""
    return [torch.roll(part, place)[: place % 6 + 1] for part in parts]


# Reductions


def folded(op: Callable[..., torch.Tensor]) -> Callable[[Tensors], torch.Tensor]:
    def fold(tensors: Tensors) -> torch.Tensor:
        total = tensors[0].clone()
        for tensor in tensors[1:]:
            total = op(total, tensor)
        return total.to(tensors[0].dtype)

    return fold


def summed(tensors: Tensors) -> torch.Tensor:
    any_of = torch.stack(tensors)
    return any_of.any(0) if tensors[0].dtype is torch.bool else any_of.sum(0, dtype=tensors[0].dtype)


def averaged(tensors: Tensors) -> torch.Tensor:
    stacked = torch.stack(tensors)
    total = (stacked if stacked.is_complex() else stacked.double()).sum(0) / len(tensors)
    return total.to(tensors[0].dtype)


REDUCTIONS: dict[str, tuple[Any, Callable[[Tensors], torch.Tensor], tuple[torch.dtype, ...]]] = {
    "SUM": (dist.ReduceOp.SUM, summed, ALL),
    "AVG": (dist.ReduceOp.AVG, averaged, (*REAL, *COMPLEX)),
    "PRODUCT": (dist.ReduceOp.PRODUCT, folded(torch.mul), (*REAL, torch.bool)),
    "MIN": (dist.ReduceOp.MIN, folded(torch.minimum), (*REAL, torch.bool)),
    "MAX": (dist.ReduceOp.MAX, folded(torch.maximum), (*REAL, torch.bool)),
    "BAND": (dist.ReduceOp.BAND, folded(torch.bitwise_and), (*INTEGERS, torch.bool)),
    "BOR": (dist.ReduceOp.BOR, folded(torch.bitwise_or), (*INTEGERS, torch.bool)),
    "BXOR": (dist.ReduceOp.BXOR, folded(torch.bitwise_xor), (*INTEGERS, torch.bool)),
    "PREMUL_SUM": (
        dist._make_nccl_premul_sum(0.5),
        lambda tensors: (torch.stack(tensors).double() * 0.5).sum(0).to(tensors[0].dtype),
        FLOATING,
    ),
}


def all_reduce(op: Any) -> Callable[..., object]:
    def run(x: torch.Tensor, wait: Wait, async_op: bool) -> object:
        wait(dist.all_reduce(x, op=op, async_op=async_op))
        return x

    return run


def reduce(op: Any) -> Callable[..., object]:
    def run(x: torch.Tensor, wait: Wait, async_op: bool) -> object:
        wait(dist.reduce(x, last(), op=op, async_op=async_op))
        return x if rank() == last() else None

    return run


def reduce_scatter_rows(x: torch.Tensor, wait: Wait, async_op: bool) -> object:
    own = torch.empty(2, dtype=x.dtype, device=x.device)
    if hasattr(dist, "reduce_scatter_single"):
        wait(dist.reduce_scatter_single(own, x.repeat(size())[: 2 * size()].clone(), async_op=async_op))
    else:
        wait(dist.reduce_scatter_tensor(own, x.repeat(size())[: 2 * size()].clone(), async_op=async_op))
    return own


def reduce_scatter_uneven(x: torch.Tensor, wait: Wait, async_op: bool) -> object:
    parts = [own_part([x], place)[0] for place in range(size())]
    own = torch.empty_like(parts[rank()])
    wait(dist.reduce_scatter(own, parts, async_op=async_op))
    return own


def coalesced(x: torch.Tensor, wait: Wait, async_op: bool) -> object:
    tensors = [x, x.clone().reshape(2, 3)]
    with dist.distributed_c10d._coalescing_manager(async_ops=async_op) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    if async_op:
        manager.wait()
    return tensors


# Movements


def broadcast(x: torch.Tensor, wait: Wait, async_op: bool) -> object:
    wait(dist.broadcast(x, last(), async_op=async_op))
    return x


def all_gather(x: torch.Tensor, wait: Wait, async_op: bool) -> object:
    parts = [torch.empty_like(x) for _ in range(size())]
    wait(dist.all_gather(parts, x, async_op=async_op))
    return parts


def all_gather_uneven(x: torch.Tensor, wait: Wait, async_op: bool) -> object:
    parts = [torch.empty(place % 6 + 1, dtype=x.dtype, device=x.device) for place in range(size())]
    wait(dist.all_gather(parts, own_part([x], rank())[0], async_op=async_op))
    return parts


def all_gather_rows(x: torch.Tensor, wait: Wait, async_op: bool) -> object:
    rows = torch.empty(6 * size(), dtype=x.dtype, device=x.device)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    wait(gather(rows, x, async_op=async_op))
    return rows


def all_gather_stacked(x: torch.Tensor, wait: Wait, async_op: bool) -> object:
    rows = torch.empty(size(), 6, dtype=x.dtype, device=x.device)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    wait(gather(rows, x, async_op=async_op))
    return rows


def all_gather_coalesced(x: torch.Tensor, wait: Wait, async_op: bool) -> object:
    outputs = [[torch.empty_like(x), torch.empty_like(x[:2])] for _ in range(size())]
    group: Any = dist.group.WORLD
    wait(group.allgather_coalesced(outputs, [x, x[2:4]]))  # torch deprecates dist.all_gather_coalesced
    return outputs


def gather(x: torch.Tensor, wait: Wait, async_op: bool) -> object:
    parts = [torch.empty_like(x) for _ in range(size())] if rank() == last() else None
    wait(dist.gather(x, parts, last(), async_op=async_op))
    return parts


def scatter(x: torch.Tensor, wait: Wait, async_op: bool) -> object:
    own = torch.empty_like(x)
    parts = [torch.roll(x, place) for place in range(size())] if rank() == last() else None
    wait(dist.scatter(own, parts, last(), async_op=async_op))
    return own


def all_to_all(x: torch.Tensor, wait: Wait, async_op: bool) -> object:
    sent = [own_part([x], place)[0] for place in range(size())]
    own = [torch.empty(rank() % 6 + 1, dtype=x.dtype, device=x.device) for _ in range(size())]
    wait(dist.all_to_all(own, sent, async_op=async_op))
    return own


def all_to_all_single(x: torch.Tensor, wait: Wait, async_op: bool) -> object:
    sent = torch.cat([own_part([x], place)[0] for place in range(size())])
    own = torch.empty((rank() % 6 + 1) * size(), dtype=x.dtype, device=x.device)
    inputs = np.arange(size()) % 6 + 1  # torch takes any sequence
    wait(dist.all_to_all_single(own, sent, [rank() % 6 + 1] * size(), inputs, async_op=async_op))
    return own


# Messages


def ring(x: torch.Tensor, wait: Wait, async_op: bool) -> object:
    own = torch.empty_like(x)
    after, before = (rank() + 1) % size(), (rank() - 1) % size()
    if size() == 1:
        return x
    if async_op:
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, x, after), dist.P2POp(dist.irecv, own, before)]
        )
    else:
        works = [dist.isend(x, after, tag=3), dist.irecv(own, before, tag=3)]
    for work in works:
        wait(work)
    return own


def to_oneself(x: torch.Tensor, wait: Wait, async_op: bool) -> object:
    own = torch.empty_like(x)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, x, rank()), dist.P2POp(dist.irecv, own, rank())])
    for work in works:
        wait(work)
    return own


def coalesced_ring(x: torch.Tensor, wait: Wait, async_op: bool) -> object:
    own = torch.empty_like(x)
    if size() == 1:
        return x
    group = dist.group.WORLD
    with dist.distributed_c10d._coalescing_manager(group, torch.device("cpu"), async_ops=async_op) as manager:
        dist.isend(x, (rank() + 1) % size())
        dist.irecv(own, (rank() - 1) % size())
    manager.wait()
    return own


def from_anyone(x: torch.Tensor, wait: Wait, async_op: bool) -> object:
    found: dict[int, torch.Tensor] = {}
    if rank():
        dist.send(x, 0)
    else:
        for _ in range(size() - 1):
            own = torch.empty_like(x)
            found[dist.recv(own)] = own
    dist.barrier()  # the next message of a quick rank would do as well
    return None if rank() else [found[source] for source in sorted(found)]


def objects(x: torch.Tensor, wait: Wait, async_op: bool) -> object:
    found: list[Any] = [None] * size()
    dist.all_gather_object(found, {"rank": rank(), "text": "x" * rank()})
    shared = [rank(), "root" if rank() == last() else None]
    dist.broadcast_object_list(shared, last())
    gathered: list[Any] | None = [None] * size() if rank() == 0 else None
    dist.gather_object(rank(), gathered, 0)
    own: list[Any] = [None]
    dist.scatter_object_list(own, [str(place) for place in range(size())] if rank() == 0 else None, 0)
    dist.barrier()
    if dist.get_backend() == "gloo":  # which alone has one
        dist.monitored_barrier()
    return found, shared, gathered, own


def groups(x: torch.Tensor, wait: Wait, async_op: bool) -> object:
    """Sums over the ranks of equal parity, and over all in a group of another order."""
    even = dist.new_group(range(0, size(), 2))
    odd = dist.new_group(range(1, size(), 2)) if size() > 1 else None
    own = even if rank() % 2 == 0 else odd
    wait(dist.all_reduce(x, group=own, async_op=async_op))
    y = x.clone()
    wait(dist.all_reduce(y, group=dist.new_group(list(range(size()))), async_op=async_op))
    return x, y, dist.get_process_group_ranks(own)


def expected_groups(xs: Tensors, place: int) -> object:
    members = list(range(place % 2, len(xs), 2))
    sums = [summed([xs[other] for other in range(each % 2, len(xs), 2)]) for each in range(len(xs))]
    return sums[place], summed(sums), members


def methods_of_a_group(x: torch.Tensor, wait: Wait, async_op: bool) -> object:
    """Methods of the group itself, which take one tensor too, with the root and the operation by themselves."""
    group: Any = dist.group.WORLD
    is_root, largest = rank() == last(), dist.ReduceOp.MAX
    sent, total, own, most = x.clone(), x.clone(), torch.empty_like(x), torch.empty_like(x)
    parts = [torch.empty_like(x) for _ in range(size())]
    gathered = [torch.empty_like(x) for _ in range(size())] if is_root else []
    wait(group.broadcast(sent, last()))
    wait(group.reduce(total, last(), largest))
    wait(group.allgather(parts, x))
    wait(group.gather(gathered, x, last()))
    wait(
        group.scatter(own, [torch.roll(x, place) for place in range(size())] if is_root else [], root=last())
    )
    group.reduce_scatter(most, [x] * size(), largest).wait()  # on gloo it is never complete
    return sent, total if is_root else None, parts, gathered, own, most


def expected_of_methods(xs: Tensors, place: int) -> object:
    is_root, largest = place == len(xs) - 1, folded(torch.maximum)(xs)
    return xs[-1], largest if is_root else None, xs, xs if is_root else [], torch.roll(xs[-1], place), largest


PROGRAMS: dict[str, Program] = {
    **{
        f"all_reduce {name}": Program(all_reduce(op), lambda xs, _, fold=fold: fold(xs), dtypes)
        for name, (op, fold, dtypes) in REDUCTIONS.items()
    },
    **{
        f"reduce {name}": Program(
            reduce(op), lambda xs, place, fold=fold: fold(xs) if place == len(xs) - 1 else None, dtypes
        )
        for name, (op, fold, dtypes) in REDUCTIONS.items()
        if name in ("SUM", "AVG", "MAX")
    },
    "all_reduce coalesced": Program(coalesced, lambda xs, _: [summed(xs), summed(xs).reshape(2, 3)]),
    "reduce_scatter": Program(reduce_scatter_uneven, lambda xs, place: summed(own_part(xs, place)), REAL),
    "reduce_scatter into a tensor": Program(
        reduce_scatter_rows,
        lambda xs, place: summed([x.repeat(len(xs))[2 * place : 2 * place + 2] for x in xs]),
        REAL,
    ),
    "broadcast": Program(broadcast, lambda xs, _: xs[-1]),
    "all_gather": Program(all_gather, lambda xs, _: xs),
    "all_gather of uneven parts": Program(
        all_gather_uneven, lambda xs, _: [own_part([x], place)[0] for place, x in enumerate(xs)]
    ),
    "all_gather coalesced": Program(
        all_gather_coalesced, lambda xs, _: [[x, x[2:4]] for x in xs], (torch.float64, torch.int32)
    ),
    "all_gather into a tensor": Program(all_gather_rows, lambda xs, _: torch.cat(xs)),
    "all_gather into a stacked tensor": Program(
        all_gather_stacked, lambda xs, _: torch.stack(xs), (torch.float64, torch.int32)
    ),
    "gather": Program(gather, lambda xs, place: xs if place == len(xs) - 1 else None),
    "scatter": Program(scatter, lambda xs, place: torch.roll(xs[-1], place)),
    "all_to_all": Program(all_to_all, lambda xs, place: own_part(xs, place)),
    "all_to_all_single": Program(all_to_all_single, lambda xs, place: torch.cat(own_part(xs, place))),
    "messages in a ring": Program(ring, lambda xs, place: xs[place - 1]),
    "messages to oneself": Program(to_oneself, lambda xs, place: xs[place], (torch.float64, torch.int32)),
    "messages coalesced": Program(coalesced_ring, lambda xs, place: xs[place - 1]),
    "messages from anyone": Program(from_anyone, lambda xs, place: None if place else xs[1:]),
    "objects": Program(
        objects,
        lambda xs, place: (
            [{"rank": other, "text": "x" * other} for other in range(len(xs))],
            [len(xs) - 1, "root"],
            None if place else list(range(len(xs))),
            [str(place)],
        ),
        (torch.float64,),
    ),
    "groups": Program(groups, expected_groups, (torch.float64, torch.int32)),
    "methods of a group": Program(methods_of_a_group, expected_of_methods, (torch.float64, torch.int32)),
}


class Difference(NamedTuple):
    """A difference of gloo: it raises an error with this text, or (where there is none) has another result on some rank."""

    dtypes: tuple[torch.dtype, ...]
    error: str
    async_op: bool | None = None  # None: in both forms


def _int16() -> dict[str, tuple[Difference, ...]]:
    # Messages are bytes, and have all types.
    moving = (
        "messages",
        "objects",
        "groups",
        "all_to_all",
        "all_gather of uneven parts",
        "all_reduce PREMUL_SUM",
    )
    return {
        name: (Difference((torch.int16,), "Invalid scalar type"),)
        for name, program in PROGRAMS.items()
        if torch.int16 in program.dtypes and (name == "all_to_all_single" or not name.startswith(moving))
    }


_UNEVEN = Difference(ALL, "invalid tensor size")
_NOT_AVERAGED = Difference(
    (torch.int64, torch.int32, torch.int8, torch.uint8), "can't be cast to the desired output type"
)
_NOT_INT16 = tuple(dtype for dtype in REAL if dtype is not torch.int16)
_NEVER_COMPLETE = Difference(_NOT_INT16, "", async_op=True)

_MORE: dict[str, tuple[Difference, ...]] = {
    "all_reduce AVG": (_NOT_AVERAGED,),  # it divides by the number of ranks, as floating-point numbers
    "reduce AVG": (_NOT_AVERAGED,),
    "all_reduce PREMUL_SUM": (Difference(FLOATING, "Cannot use ReduceOp.PREMUL_SUM with Gloo"),),
    "all_gather of uneven parts": (_UNEVEN,),  # only torch's nccl pads them
    "all_to_all": (_UNEVEN,),
    "all_gather into a stacked tensor": (Difference((torch.float64, torch.int32), "invalid tensor size"),),
    "messages to oneself": (Difference((torch.float64, torch.int32), "Pair is not connected"),),
    "messages coalesced": (Difference(ALL, "does not implement startCoalescing"),),
    "gather": (Difference(COMPLEX, "Invalid scalar type"),),
    # After wait(), is_completed() is False.
    "reduce_scatter": (_NEVER_COMPLETE,),
    "reduce_scatter into a tensor": (_NEVER_COMPLETE,),
}

ON_GLOO: dict[str, tuple[Difference, ...]] = {
    name: (*_int16().get(name, ()), *_MORE.get(name, ())) for name in PROGRAMS
}
"""Differences of gloo in torch 2.13 from what torch documents. A test fails once there is one less."""
