"""All-gather and reduce-scatter in each segment: one collective over blocks of any widths, along any dimension.

If the blocks of the wide local tensor are contiguous in its memory, as they are along its first dimension, they are received
and sent in place; else they are packed. AllGather, ReduceScatter and Discard, whose base class is here too, and the steps of
Redistribute use these collectives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from adjointlab.core import arrays, transport
from adjointlab.core.arguments import check_argument
from adjointlab.core.layout import Layout
from adjointlab.core.operator import LinearOperator
from adjointlab.core.program import Program
from adjointlab.core.space import LocalType, Space, Tensor
from adjointlab.primitives import groups, segments
from adjointlab.primitives.collectives import result_array, sum_into
from adjointlab.primitives.segments import Segment
from adjointlab.typing import Array, Communicator

__all__ = [
    "ALL_GATHER", "DISCARD", "REDUCE_SCATTER", "SURROUND", "SegmentedCollectives", "SegmentedOperator",
]  # fmt: skip


class SegmentedCollectives:
    """The collectives of this rank's segment (`None` for an inactive rank), between a narrow and a wide tensor.

    Made collectively over the segment, from the same arguments on all its ranks. Every method takes the local tensor of
    one of the two tensors and returns that of the other, fresh or in `out`; an inactive rank gets a copy of its argument.
    Each raises `ValueError`, before its message, for an argument that is not such a local tensor.
    """

    def __init__(self, comm: Communicator, segment: Segment | None, narrow: Tensor, wide: Tensor) -> None:
        self.narrow, self.wide = narrow, wide
        self._rank = comm.Get_rank()
        self._segment = segment
        self._workers: Communicator | None = None  # no messages
        self._packed: dict[Hashable, Array] = {}
        if segment is None:
            return
        self._own = (slice(None),) * segment.dim + (slice(*segment.part(self._rank)),)
        # The parts in MPI's order, that of the communicator, which sorts the ranks.
        by_rank = sorted(zip(segment.ranks, segment.parts, strict=True))
        self._parts = tuple(part for _, part in by_rank)
        self._shape = wide.layout.local_shape(self._rank)
        # Each part is one block of the wide array's memory if there is one index before dimension `dim`; and in MPI's
        # order if the partition lists the ranks of the segment in ascending order.
        self._has_blocks = math.prod(self._shape[: segment.dim]) == 1
        self._has_ordered_blocks = self._has_blocks and self._parts == segment.parts
        # Whether there is anything to send follows from the layout, so all members agree on it.
        if len(segment.ranks) > 1 and math.prod(self._shape) > 0:
            self._workers = groups.communicator(comm, segment.ranks)

    def gather(self, array: Array, out: Array | None = None) -> Array:
        """All-gather: collective, the wide local tensor of the narrow ones."""
        batch = check_argument(self.narrow, array, self._rank)
        if self._segment is None:
            return arrays.copy(array)
        result = result_array(self.wide, array, out, self._rank, batch)
        if self._workers is None:  # one worker, whose part is the whole, or an empty tensor
            arrays.copy_into(result[self._own], array)
            return result
        sent, received = arrays.elementwise(array), arrays.elementwise(result)
        workers = transport.over(self._workers, array)
        # Number of elements for one index of dimension `dim`, including those of a batch.
        unit = math.prod(received.shape) // self._shape[self._segment.dim]
        counts = [(stop - start) * unit for start, stop in self._parts]
        if self._has_ordered_blocks and len(set(counts)) == 1:
            # MPICH's Allgatherv takes twice as long for large blocks.
            workers.Allgather(sent, received)
        elif self._has_blocks:
            displacements = [start * unit for start, _ in self._parts]
            workers.Allgatherv(sent, [received, (counts, displacements)])
        else:
            # MPI can only place blocks: the parts are received one after another and then copied to their columns.
            packed = self._packing_buffer(received, arrays.dtype_name(received), batch)
            workers.Allgatherv(sent, [packed, (counts, [0, *accumulate(counts[:-1])])])
            blocks = self._blocks(packed, result.shape)
            received = received.reshape(result.shape)  # the memory of the result, in a type of the same width
            for index, block in blocks:
                received[index] = block
        return result

    def sum_and_scatter(self, array: Array, out: Array | None = None) -> Array:
        """Reduce-scatter: collective, the narrow local tensor of the sum of the wide ones."""
        batch = check_argument(self.wide, array, self._rank)
        if self._segment is None:
            return arrays.copy(array)
        result = result_array(self.narrow, array, out, self._rank, batch)
        if self._workers is None:
            arrays.copy_into(result, array[self._own])
            return result
        # Reduce_scatter takes no displacements: the parts must lie one after another, in the order of the communicator.
        if self._has_ordered_blocks:
            summands = arrays.summable(array)
        else:
            # Into the type that MPI sums, like arrays.summable, but block after block.
            values = arrays.summable_values(array)
            name = arrays.dtype_name(values)
            wide = "float32" if name in arrays.HALVES else name
            summands = self._packing_buffer(values, wide, batch)
            for index, block in self._blocks(summands, values.shape):
                arrays.copy_into(block, values[index])
        unit = math.prod(summands.shape) // self._shape[self._segment.dim]
        counts = [(stop - start) * unit for start, stop in self._parts]
        workers = transport.over(self._workers, array)
        sum_into(result, partial(workers.Reduce_scatter, summands, recvcounts=counts))
        return result

    def keep_part(self, array: Array, out: Array | None = None) -> Array:
        """Discard: local, this worker's part of its wide local tensor."""
        batch = check_argument(self.wide, array, self._rank)
        if self._segment is None:
            return arrays.copy(array)
        result = result_array(self.narrow, array, out, self._rank, batch)
        arrays.copy_into(result, array[self._own])
        return result

    def surround_with_zeros(self, array: Array, out: Array | None = None) -> Array:
        """Discard's adjoint where each copy counts: local, the narrow local tensor with zeros around it in dimension `dim`."""
        batch = check_argument(self.narrow, array, self._rank)
        if self._segment is None:
            return arrays.copy(array)
        result = result_array(self.wide, array, out, self._rank, batch)
        # Each element is written once: the result is not cleared as a whole first.
        *before, own = self._own
        arrays.clear(result[(*before, slice(0, own.start))])
        arrays.copy_into(result[self._own], array)
        arrays.clear(result[(*before, slice(own.stop, None))])
        return result

    def _blocks(self, packed: Array, shape: tuple[int, ...]) -> Iterator[tuple[tuple[slice, ...], Array]]:
        """Yield, for each worker, the index of its part in a wide array of `shape`, and the part in packed memory."""
        assert self._segment is not None
        dim, start = self._segment.dim, 0
        for part in self._parts:
            block = (*shape[:dim], part[1] - part[0], *shape[dim + 1 :])
            stop = start + math.prod(block)
            yield (slice(None),) * dim + (slice(*part),), packed[start:stop].reshape(block)
            start = stop

    def _packing_buffer(self, like: Array, name: str, batch: tuple[int, ...]) -> Array:
        """Return memory where `like` lies, for as many elements of the type `name`: made once and reused, or fresh for a batch."""
        size = (math.prod(like.shape),)
        if batch:
            return arrays.empty_native(like, size, name)
        key = (arrays.memory_kind(like), name)
        if key not in self._packed:
            self._packed[key] = arrays.empty_native(like, size, name)
        return self._packed[key]


class SegmentedMap(NamedTuple):
    """A map from the narrow to the wide tensor (`widens`) or back, and the method that computes it.

    With `own_part_only` each worker uses only its own local tensors, and nothing is sent.
    """

    apply: Callable[[SegmentedCollectives, Array, Array | None], Array]
    widens: bool
    own_part_only: bool


ALL_GATHER = SegmentedMap(SegmentedCollectives.gather, widens=True, own_part_only=False)
REDUCE_SCATTER = SegmentedMap(SegmentedCollectives.sum_and_scatter, widens=False, own_part_only=False)
DISCARD = SegmentedMap(SegmentedCollectives.keep_part, widens=False, own_part_only=True)
SURROUND = SegmentedMap(SegmentedCollectives.surround_with_zeros, widens=True, own_part_only=True)


class SegmentedOperator(LinearOperator):
    """A map between a narrow and a wide tensor, and the one that is its adjoint for the local types of these.

    Dimension `dim` is cut along dimension `along` of the partition in the layout `narrow`, and whole in `wide`. `types` are
    the local types of the narrow tensor; the wide one has the same, but `wide_type` along `along`.

    ``forward(x)`` and ``adjoint(y)`` take the local tensor and return a fresh one, or `out` (row-major, sharing no
    memory with the argument); an inactive worker returns a copy of its tensor of zero volume.

    Raises `ValueError` for local types that do not fit, for ranks beyond the communicator's, and in a call, before its first message,
    for a local tensor that does not match the layout.
    """

    batched = True

    def __init__(
        self,
        comm: Communicator,
        narrow: Layout,
        wide: Layout,
        dim: int,
        along: int,
        dtype: str,
        types: Sequence[LocalType | str],
        wide_type: LocalType,
        maps: tuple[SegmentedMap, SegmentedMap],
    ) -> None:
        names = ("x", "y") if maps[0].widens else ("y", "x")
        tensors = segments.narrow_and_wide(narrow, wide, along, dtype, types, wide_type, names)
        x, y = tensors if maps[0].widens else tensors[::-1]
        self.comm, self.dim, self.is_invariant = comm, dim, wide_type is LocalType.INVARIANT
        self.domain, self.codomain = Space(x), Space(y)
        terms = (narrow.partition.shape[along] if each is REDUCE_SCATTER else 1 for each in maps)
        self.gain = self.fan_in = segments.gain_of(x, y, along, *terms)
        self._tensors, self._maps = tensors, maps
        self._segment = SegmentedCollectives(
            comm, segments.segment_of(narrow, dim, comm.Get_rank()), *tensors
        )

    def specification(self) -> Program | tuple[Program, Program]:
        """The map in each segment; for invariant copies also the adjoint, which is not the mechanical one."""
        forward, adjoint = self._maps
        return (
            (self._program(forward), self._program(adjoint)) if self.is_invariant else self._program(forward)
        )

    def _program(self, each: SegmentedMap) -> Program:
        return segments.segmented_program(*self._tensors, self.dim, each.widens, each.own_part_only)

    def forward(self, x: Array, out: Array | None = None) -> Array:
        """The local tensor of y, in `out` if given."""
        return self._maps[0].apply(self._segment, x, out)

    def adjoint(self, y: Array, out: Array | None = None) -> Array:
        """The local tensor of the cotangent of x, in `out` if given."""
        return self._maps[1].apply(self._segment, y, out)
