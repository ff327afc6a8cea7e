"""REPARTITION [Hewett21, section 3.2.4]: carries a tensor from one layout to another, T_{P_x→P_y}.

    T_{P_x→P_y} = D_{P_x} Π_{r,s} S_{x_r[X_r ∩ Y_s] → y_s[X_r ∩ Y_s]} A_{P_y}
    T*_{P_x→P_y} = D_{P_y} Π_{r,s} S_{y_s[X_r ∩ Y_s] → x_r[X_r ∩ Y_s]} A_{P_x}

for the workers r of P_x and s of P_y, and the windows X_r and Y_s of the tensor that they hold. The classical
all-to-all (section 2.2) is the case of two cuts of a tensor along different dimensions.

If several workers hold copies, their local type determines which of them take part:

==========  =====================  =====================
local type  in the source          in the target
==========  =====================  =====================
varying     all are summed         every one gets it
replicated  any one is read        every one gets it
partial     all are summed         any one gets it
invariant   any one is read        every one gets it
==========  =====================  =====================

The adjoint is the same rule from the dual of the codomain to the dual of the domain.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import product
from typing import NamedTuple, TypeAlias

from adjointlab import MPI
from adjointlab.core import arrays, transport
from adjointlab.core.arguments import check_argument
from adjointlab.core.layout import Layout
from adjointlab.core.operator import LinearOperator
from adjointlab.core.program import Add, Allocate, Deallocate, Generator, Program, buffers
from adjointlab.core.space import LocalType, Space, Tensor
from adjointlab.primitives.boxes import (
    ViewIndex,
    assemble,
    index_in,
    intersection,
    region_in,
    relative_to,
    view_index,
)
from adjointlab.primitives.collectives import result_with_views
from adjointlab.primitives.overlaps import Endpoint, Overlaps, gaps, overlaps
from adjointlab.primitives.validation import arguments_renamed, check_layout
from adjointlab.typing import Array, Communicator, Request

__all__ = ["Repartition", "repartition_programs"]

_TAG = 0
"""The tag of every message. Callers may send other messages on the same communicator with any other tag."""

_Pair: TypeAlias = tuple[Array, Array]
"""A target, and the source that is copied or added into it."""


class Repartition(LinearOperator):
    """T from the layout of x to the layout of y, two layouts of the same global tensor.

    `layout` lays x over P_x and `target` lays y over P_y: any grids over any ranks, any cuts in any order. `types` and
    `target_types` are the local types along the dimensions of P_x and of P_y (default: varying). Windows of the target
    may overlap (every worker gets a copy), leave gaps, and reach beyond the tensor: there y is zero, and its cotangents
    are ignored. Windows of x may reach beyond the tensor, where x is ignored and its cotangent zero.

    ``forward(x)`` takes the local tensor of x and returns a fresh local tensor of y; outside P_x it takes, and outside
    P_y it returns, a tensor of zero volume. ``adjoint(y)`` carries back, and sums where y has copies. A worker that
    gets a local tensor may give the memory for it as `out` (row-major, sharing no memory with the argument).

    A worker is sent only elements that it does not have, directly from another worker, in at most one message for a pair of
    workers: `overlaps` and `adjoint_overlaps` list them. Many summands for many copies are not reduced on the way, unlike
    in AllSumReduce.

    Raises `ValueError` for layouts of different global tensors, elements that the target needs and no worker of the source
    holds, a source with several varying copies of an element (there is no one global tensor), local types that do not
    fit the layouts, ranks beyond the communicator's, and in a call, before its first message, for a local tensor that
    does not match the layout.
    """

    symbol = "T"
    batched = True

    def __init__(
        self,
        comm: Communicator,
        layout: Layout,
        target: Layout,
        *,
        dtype: str = "float64",
        types: Sequence[LocalType | str] = (),
        target_types: Sequence[LocalType | str] = (),
    ) -> None:
        check_layout("layout", layout, comm)
        check_layout("target", target, comm)
        if layout.shape != target.shape:
            raise ValueError(
                f"target: a layout of a tensor of shape {target.shape}, but `layout` is one of shape {layout.shape}; "
                "a repartition leaves the global tensor as it is"
            )
        self.comm = comm
        self.domain = Space(layout, dtype=dtype, types=types, name="x")
        with arguments_renamed(types="target_types"):
            self.codomain = Space(target, dtype=dtype, types=target_types, name="y")
        (x,), (y,) = self.domain.tensors, self.codomain.tensors
        self.overlaps = _overlaps(x, y)
        self.adjoint_overlaps = _overlaps(y.dual, x.dual)
        _check_source(x, self.overlaps)
        self.gain = self.fan_in = _terms(self.overlaps, self.adjoint_overlaps)
        # Both directions are planned here, so that a call only moves data.
        self._forward = _Exchange(comm, x, y, self.overlaps)
        self._adjoint = _Exchange(comm, y.dual, x.dual, self.adjoint_overlaps)

    def specification(self) -> Program | tuple[Program, Program]:
        """T, and also T* if that is not the mechanical adjoint, since invariant copies count once in the pairing."""
        return repartition_programs(self.domain, self.codomain)

    def forward(self, x: Array, out: Array | None = None) -> Array:
        """The local tensor of y = T x, in `out` if given."""
        return self._forward.carry(x, out)

    def adjoint(self, y: Array, out: Array | None = None) -> Array:
        """The local tensor of T* y, in `out` if given."""
        return self._adjoint.carry(y, out)


def repartition_programs(domain: Space, codomain: Space) -> Program | tuple[Program, Program]:
    """The specification of any repartition between two spaces of one tensor each; see :meth:`Repartition.specification`."""
    forward = _program(domain, codomain)
    types = {entry for space in (domain, codomain) for entry in space.tensors[0].types}
    if LocalType.INVARIANT in types:
        return forward, _program(codomain.dual, domain.dual)
    return forward


def _program(source: Space, target: Space) -> Program:
    """Add each window's elements into each window that it overlaps.

    If any one of several copies may take part, the first one does: the implementation may choose others, to the same effect.
    """
    (x,), (y,) = source.tensors, target.tensors
    read = [a for a in buffers(source) if _is_first(x, a.rank, LocalType.REPLICATED, LocalType.INVARIANT)]
    written = [b for b in buffers(target) if _is_first(y, b.rank, LocalType.PARTIAL)]
    tensor = tuple((0, side) for side in x.layout.shape)
    steps: list[Generator] = [Allocate(b) for b in buffers(target)]
    for a, b in product(read, written):
        held, wanted = x.layout.window(a.rank) or (), y.layout.window(b.rank) or ()
        inside = intersection(held, tensor)  # elements beyond the tensor do not count
        if inside is not None and (shared := intersection(inside, wanted)) is not None:
            steps.append(Add(region_in(a, held, shared), region_in(b, wanted, shared)))
    steps += [Deallocate(a) for a in buffers(source)]
    return Program(buffers(source), steps)


def _is_first(tensor: Tensor, rank: int, *types: LocalType) -> bool:
    """Return True if `rank` comes first among the workers along the dimensions that have one of the types."""
    index = tensor.layout.partition.index(rank)
    return all(i == 0 or entry not in types for i, entry in zip(index, tensor.types, strict=True))


def _overlaps(source: Tensor, target: Tensor) -> Overlaps:
    """Return the overlaps of two tensors by the table of local types."""
    return overlaps(Endpoint.of_source(source), Endpoint.of_target(target))


def _check_source(x: Tensor, moves: Overlaps) -> None:
    """Raise `ValueError` unless `x` is one global tensor that has all elements that the target needs."""
    partition = x.layout.partition
    for dim, entry in enumerate(x.types):
        if entry is LocalType.VARYING and (copies := moves.source.copies(dim)) > 1:
            legal = (
                "declare them replicated, invariant or partial with `types`"
                if x.layout.copied[dim]
                else "only in the target may windows overlap"
            )
            raise ValueError(
                f"layout: up to {copies} workers along dimension {dim} of the partition {partition} hold an element of "
                f"{x.layout}, each with a value of its own (varying), so there is no one global tensor; {legal}"
            )
    if missing := gaps(moves.source, moves.target):
        dim, windows = missing
        raise ValueError(
            f"layout: nobody holds the indices {', '.join(f'{start}:{stop}' for start, stop in windows)} of dimension "
            f"{dim}, which the target {moves.target.layout} needs; {x.layout} must hold them"
        )


def _terms(there: Overlaps, back: Overlaps) -> int:
    """The largest number of summands of an element, in either direction."""
    if not there.target.holds_anything:
        return 1
    return max(there.source.terms, back.source.terms)


class _Incoming(NamedTuple):
    """A box of the result: the rank that has it, its index in the result, and that in the argument if this rank has it."""

    source: int
    in_result: ViewIndex
    in_argument: ViewIndex | None


class _Exchange:
    """One direction on this rank: the boxes that it sends, keeps and receives, and the assembly of its result from them."""

    def __init__(self, comm: Communicator, source: Tensor, target: Tensor, moves: Overlaps) -> None:
        rank = comm.Get_rank()
        self.comm, self.rank = comm, rank
        self.source, self.target = source, target
        self._is_target = target.layout.partition.is_active(rank)
        arriving = moves.arriving(rank)
        held, wanted = source.layout.window(rank) or (), target.layout.window(rank) or ()
        # An inactive rank has no window and no overlaps; () stands for it.
        boxes = [relative_to(wanted, entry.box) for entry in arriving]
        assembly = assemble(target.layout.local_shape(rank), boxes, moves.source.is_regular)
        # Starting with the next rank, so that not all ranks send to the same one first.
        leaving = sorted(
            (entry for entry in moves.leaving(rank) if entry.is_sent),
            key=lambda entry: (entry.target - rank) % comm.Get_size(),
        )
        self._sent = [(entry.target, index_in(held, entry.box)) for entry in leaving]
        self._cleared = [view_index(box) for box in assembly.cleared if self._is_target]
        incoming = [
            _Incoming(entry.source, view_index(box), None if entry.is_sent else index_in(held, entry.box))
            for entry, box in zip(arriving, boxes, strict=True)
        ]
        self._copied = [incoming[position] for position in assembly.copied]
        self._added = [incoming[position] for position in assembly.added]
        # Half precision is summed in single and rounded once.
        self._widens = bool(self._added) and target.element.itemsize == 2
        self._buffers: dict[tuple[Hashable, bool, int], Array] = {}

    def carry(self, array: Array, out: Array | None = None) -> Array:
        """Collective: return the local tensor of the target, made of the local tensors of the source on all ranks."""
        batch = check_argument(self.source, array, self.rank)
        # An inactive rank has no elements to write into `out`.
        out = out if self._is_target else None
        result, argument, filled = result_with_views(self.target, array, out, self.rank, batch)
        self._fill(filled, argument, batch)
        return result

    def _fill(self, result: Array, array: Array, batch: tuple[int, ...]) -> None:
        """Collective: write the result, made of `array` and the local tensors of the other ranks."""
        total = result if not self._widens else arrays.empty(result.shape, "float32", array)
        # Before any receive is posted, as memory that MPI receives into must not be touched.
        for index in self._cleared:
            arrays.clear(total[index])
        comm = transport.over(self.comm, array)
        # All receives are posted before the first send, so no message waits in a buffer of the MPI library for long.
        requests, to_copy, to_add = self._receive(comm, total, array, batch)
        for together in transport.packed_together(self._sent, array):
            requests += self._send(comm, together, array, batch)
        # While the messages are in flight.
        arrays.copy_all([(total[at], array[held]) for _, at, held in self._copied if held is not None])
        if requests:
            MPI.Request.Waitall(requests)
        arrays.copy_all(to_copy)
        arrays.add_all(to_add)  # after all copies, which boxes are added to
        if self._widens:
            arrays.copy_into(result, total)

    def _receive(
        self, comm: Communicator, total: Array, array: Array, batch: tuple[int, ...]
    ) -> tuple[list[Request], list[_Pair], list[_Pair]]:
        """Post the receives; return them, and the pairs to be copied and added into `total` once they are complete."""
        requests: list[Request] = []
        to_copy: list[_Pair] = []
        to_add: list[_Pair] = []
        for source, in_result, in_argument in self._copied:
            if in_argument is None:
                view = box = total[in_result]
                if self._widens or not arrays.is_row_major(box):
                    view = self._buffer(True, source, box, array, batch)
                    to_copy.append((box, view))
                requests.append(comm.Irecv(arrays.message(view), source=source, tag=_TAG))
        for source, in_result, in_argument in self._added:
            box = total[in_result]
            if in_argument is None:
                view = self._buffer(True, source, box, array, batch)
                requests.append(comm.Irecv(arrays.message(view), source=source, tag=_TAG))
            else:
                view = array[in_argument]
            to_add.append((box, view))
        return requests, to_copy, to_add

    def _send(
        self, comm: Communicator, group: Sequence[tuple[int, ViewIndex]], array: Array, batch: tuple[int, ...]
    ) -> list[Request]:
        """Pack boxes that are not contiguous, and start the messages."""
        messages, to_pack = [], []
        for target, index in group:
            view = array[index]
            if not arrays.is_row_major(view):
                packed = self._buffer(False, target, view, array, batch)
                to_pack.append((packed, view))
                view = packed
            messages.append((target, view))
        arrays.copy_all(to_pack)
        return [comm.Isend(arrays.message(view), dest=target, tag=_TAG) for target, view in messages]

    def _buffer(
        self, receives: bool, peer: int, view: Array, argument: Array, batch: tuple[int, ...]
    ) -> Array:
        """Return row-major memory of the shape of `view` for a message from or to a worker: made once, or fresh for a batch."""
        if batch:
            return arrays.empty(view.shape, self.source.dtype, argument)
        key = (arrays.memory_kind(argument), receives, peer)
        if key not in self._buffers:
            with arrays.outside_inference_mode(argument):
                self._buffers[key] = arrays.empty(view.shape, self.source.dtype, argument)
        return self._buffers[key]
