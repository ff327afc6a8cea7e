"""Copying from one worker to many and summing from many to one: one collective for each group of workers.

The broadcasting summation and the reducing summation of [Hewett21, eqs. 16-18] on array buffers. The forward direction of
Broadcast is the first and its adjoint the second; for SumReduce it is the other way round.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from adjointlab.core import arrays, transport
from adjointlab.core.arguments import check_argument, check_out
from adjointlab.core.layout import Layout
from adjointlab.core.operator import LinearOperator
from adjointlab.core.partition import PartitionLike
from adjointlab.core.program import Buffer, Generator, Program, buffers_by_rank
from adjointlab.core.space import Space, Tensor
from adjointlab.primitives import groups
from adjointlab.primitives.broadcast_rules import CopyGroup, broadcast_pattern, copied_layout, summed_layout
from adjointlab.primitives.validation import check_layout, partition_of
from adjointlab.typing import Array, Communicator

__all__ = ["OneToManyOperator", "result_array", "result_with_views", "sum_into"]


@dataclass(frozen=True)
class _GroupRole:
    """Role of this rank in one group: its communicator (`None` if no message is needed) and the tensors that it holds."""

    comm: Communicator | None
    root: int  # the one's rank in `comm`
    is_one: bool
    is_among_many: bool
    shape: tuple[int, ...]


class OneToManyOperator(LinearOperator):
    """The groups of a pattern on a communicator, this rank's roles in them, and the two directions.

    `one` is the tensor over P_x of the broadcasting rules and `many` that over P_y; with `copies` the domain is that of
    `one`, else that of `many`. Made collectively, from the same arguments on all ranks. A rank is in two groups at most:
    once as the one, and once among the many. All ranks visit the groups in the pattern's order, so that blocking
    collectives cannot deadlock.

    Each direction takes a local tensor and returns a fresh one. Outside their partitions it takes and returns tensors of zero volume,
    which keep the first dimension of the input with `preserve_batch` (shape (b, 0, ..., 0), of order 2 at least); a worker in neither
    returns a copy of its input. A worker that gets a local tensor may give the memory for it as `out` (row-major, sharing no memory
    with the argument).

    Raises `ValueError` for partitions that do not broadcast, for ranks beyond the communicator's, and in a call, before its first
    message, for a local tensor that does not match the layout.
    """

    batched = True
    copies: ClassVar[bool]
    """True if forward copies from one worker to many, False if it sums from many to one."""

    def __init__(
        self,
        comm: Communicator,
        layout: Layout,
        partition: PartitionLike,
        *,
        dtype: str = "float64",
        transpose_src: bool = False,
        transpose_dest: bool = False,
        preserve_batch: bool = True,
    ) -> None:
        check_layout("layout", layout, comm)
        partition = partition_of("partition", partition, comm)
        if self.copies:
            pattern = broadcast_pattern(
                layout.partition, partition, transpose_one=transpose_src, transpose_many=transpose_dest
            )
            target = copied_layout(layout, pattern)
        else:
            pattern = broadcast_pattern(
                partition, layout.partition, transpose_one=transpose_dest, transpose_many=transpose_src
            )
            target = summed_layout(layout, pattern)
        x, y = Tensor(layout, dtype, name="x"), Tensor(target, dtype, name="y")
        self.domain, self.codomain = Space(x), Space(y)
        self.one, self.many = (x, y) if self.copies else (y, x)
        self.comm, self.pattern, self.rank = comm, pattern, comm.Get_rank()
        self.gain = self.fan_in = pattern.largest  # one direction copies, and the other sums all copies
        self.is_identity = layout == target
        self.preserve_batch = preserve_batch
        self._roles = tuple(self._role(comm, group) for group in pattern.groups_of(self.rank))
        self._has_one = pattern.one.is_active(self.rank)
        self._has_many = pattern.many.is_active(self.rank)

    @abstractmethod
    def steps(self, one: Buffer, many: Sequence[Buffer]) -> Sequence[Generator]:
        """The operation in one group, as the paper composes it."""

    def specification(self) -> Program:
        """The steps in each group."""
        one, many = buffers_by_rank(Space(self.one)), buffers_by_rank(Space(self.many))
        return Program(
            (one if self.copies else many).values(),
            (
                step
                for group in self.pattern.groups
                for step in self.steps(one[group.one], [many[rank] for rank in group.many])
            ),
        )

    def _role(self, comm: Communicator, group: CopyGroup) -> _GroupRole:
        # This follows from the layout, so all members agree on it.
        needs_messages = len(group.ranks) > 1 and self.one.layout.local_size(group.one) > 0
        return _GroupRole(
            comm=groups.communicator(comm, group.ranks) if needs_messages else None,
            root=groups.rank_in(group.ranks, group.one),
            is_one=group.one == self.rank,
            is_among_many=self.rank in group.many,
            shape=self.one.layout.local_shape(group.one),
        )

    def forward(self, x: Array, out: Array | None = None) -> Array:
        """The local tensor of y, in `out` if given."""
        return self._copy_to_many(x, out) if self.copies else self._sum_to_one(x, out)

    def adjoint(self, y: Array, out: Array | None = None) -> Array:
        """The local tensor of the cotangent of x, in `out` if given."""
        return self._sum_to_one(y, out) if self.copies else self._copy_to_many(y, out)

    def _copy_to_many(self, array: Array, out: Array | None) -> Array:
        """A_{k}, then the broadcasting summation, then D_a: collective, the tensor over P_y of the one over P_x.

        A worker of P_y may give the memory for its result as `out`. Raises `ValueError` if `array` is not this rank's
        local tensor of `one`, or `out` not one of `many`.
        """
        batch = check_argument(self.one, array, self.rank)
        if self._has_many:
            result, sent, filled = result_with_views(self.many, array, out, self.rank, batch)
        else:
            result = filled = self._zero_volume(array, self._has_one, self.many, batch)
            (sent,) = arrays.in_numpy(array)
        for role in self._roles:
            if role.comm is not None:
                # The root sends from its argument, so the collective costs it no copy.
                transport.over(role.comm, sent).Bcast(
                    arrays.message(sent if role.is_one else filled), root=role.root
                )
            if role.is_one and role.is_among_many:
                arrays.copy_into(filled, sent)  # after the collective, so that no rank waits for it
        return result

    def _sum_to_one(self, array: Array, out: Array | None) -> Array:
        """A_a, then the reducing summation, then D_{k}: collective, the tensor over P_x of the one over P_y.

        A worker of P_x may give the memory for its result as `out`. Raises `ValueError` if `array` is not this rank's
        local tensor of `many`, or `out` not one of `one`.
        """
        batch = check_argument(self.many, array, self.rank)
        if self._has_one:
            result, held, filled = result_with_views(self.one, array, out, self.rank, batch)
        else:
            result = filled = self._zero_volume(array, self._has_many, self.one, batch)
            (held,) = arrays.in_numpy(array)
        for role in self._roles:
            if role.comm is None:
                if role.is_one and role.is_among_many:
                    arrays.copy_into(filled, held)
                continue
            # MPI_Reduce sums over all members. The root adds zeros if it holds no summand.
            summand = arrays.summable(
                held if role.is_among_many else arrays.zeros((*role.shape, *batch), self.one.dtype, held)
            )
            comm = transport.over(role.comm, held)
            if role.is_one:
                sum_into(filled, partial(comm.Reduce, summand, root=role.root))
            else:
                comm.Reduce(summand, None, root=role.root)
        return result

    def _zero_volume(self, array: Array, was_active: bool, tensor: Tensor, batch: tuple[int, ...]) -> Array:
        """Return the zero-volume tensor of a worker outside the output's partition [DistDL, preserve_batch].

        A worker in neither partition returns a copy of its argument.
        """
        if not was_active:
            return arrays.copy(array)
        # Three shapes without elements. From the one for a batch, the next operator sees that there is a batch.
        if batch:
            shape = (*tensor.layout.local_shape(self.rank), *batch)
        elif self.preserve_batch and len(array.shape) > 0:
            shape = (int(array.shape[0]),) + (0,) * max(1, len(array.shape) - 1)
        else:
            shape = tensor.layout.local_shape(self.rank)
        return arrays.empty(shape, tensor.dtype, array)


def result_array(
    tensor: Tensor, argument: Array, out: Array | None, rank: int, batch: tuple[int, ...]
) -> Array:
    """Return memory for the local tensor of `tensor`: `out`, or a fresh array of the library of `argument`.

    `batch` is the result of :func:`adjointlab.core.arguments.check_argument` for the argument. Raises `ValueError` for an
    `out` that :func:`adjointlab.core.arguments.check_out` rejects, or that is not in row-major order.
    """
    if out is None:
        return arrays.empty((*tensor.layout.local_shapes[rank], *batch), tensor.dtype, argument)
    return _checked_out(tensor, argument, out, rank, batch)


def result_with_views(
    tensor: Tensor, argument: Array, out: Array | None, rank: int, batch: tuple[int, ...]
) -> tuple[Array, Array, Array]:
    """Return :func:`result_array`, and views of the argument and of it: NumPy views if possible, which are faster than torch's."""
    if out is None:
        return arrays.empty_with_views((*tensor.layout.local_shapes[rank], *batch), tensor.dtype, argument)
    result = _checked_out(tensor, argument, out, rank, batch)
    held, filled = arrays.in_numpy(argument, result)
    return result, held, filled


def _checked_out(tensor: Tensor, argument: Array, out: Array, rank: int, batch: tuple[int, ...]) -> Array:
    check_out(tensor, out, (argument,), rank, batch)
    if not arrays.is_row_major(out):
        raise ValueError(
            f"out: an array on rank {rank} is not in row-major order, so nothing can be received into it"
        )
    arrays.note_change(out)  # MPI and NumPy write there
    return out


def sum_into(result: Array, reduce: Callable[[Array], object]) -> None:
    """Fill `result` with the sum that ``reduce(buffer)`` leaves in a buffer.

    The buffer is the array's own memory, except in half precision, in which MPI cannot sum: then it is float32, rounded
    once at the end.
    """
    # Rounding after each addition would lose small summands: in float16 2048 + 1 is 2048.
    name = arrays.dtype_name(result)
    if name in arrays.HALVES:
        total = arrays.summing_memory(result.shape, name, result)
        reduce(total)
        arrays.copy_into(result, arrays.from_summable(total, name, result))
    else:
        reduce(arrays.message(result))
