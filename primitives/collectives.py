"""Copying from one worker to many and summing from many to one: one collective for each group of workers.

The broadcasting summation and the reducing summation of eqs. 16-18 on array buffers. Broadcast and SumReduce are
these two, in opposite order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from adjointlab.core import arrays
from adjointlab.core.arguments import check_argument, check_out
from adjointlab.core.space import Tensor
from adjointlab.primitives import groups
from adjointlab.primitives.broadcast_rules import BroadcastPattern, Group

__all__ = ["OneToMany", "result_array", "sum_into"]


@dataclass(frozen=True)
class _Part:
    """What this rank does in one group: its communicator (`None` where nothing travels), and who holds what."""

    comm: Any
    root: int
    is_one: bool
    is_many: bool
    shape: tuple[int, ...]


class OneToMany:
    """The groups of a pattern on a communicator, and this rank's part in them.

    `one` is the tensor over P_x and `many` that over P_y. Made collectively, from the same arguments on all ranks. A
    rank has a part in two groups at most: where it is the one, and where it is among the many. All ranks visit the
    groups in the pattern's order, so that blocking collectives cannot wait for each other in a circle.
    """

    def __init__(
        self, comm: Any, pattern: BroadcastPattern, one: Tensor, many: Tensor, preserve_batch: bool
    ) -> None:
        self.rank = comm.Get_rank()
        self.one, self.many = one, many
        self.preserve_batch = preserve_batch
        self._parts = tuple(self._part(comm, group) for group in pattern.groups_of(self.rank))
        self._is_one = pattern.one.is_active(self.rank)
        self._is_many = pattern.many.is_active(self.rank)

    def _part(self, comm: Any, group: Group) -> _Part:
        # Whether there is anything to send follows from the layout, so all members agree on it.
        travels = len(group.ranks) > 1 and self.one.layout.local_size(group.one) > 0
        return _Part(
            comm=groups.communicator(comm, group.ranks) if travels else None,
            root=groups.rank_in(group.ranks, group.one),
            is_one=group.one == self.rank,
            is_many=self.rank in group.many,
            shape=self.one.layout.local_shape(group.one),
        )

    def copy_to_many(self, array: Any, out: Any = None) -> Any:
        """A_{k}, then the broadcasting summation, then D_a: collective, the tensor over P_y of the one over P_x.

        A worker of P_y may give the memory for its result as `out`. Raises `ValueError` if `array` is not this rank's
        local tensor of `one`, or `out` not one of `many`.
        """
        batch = check_argument(self.one, array, self.rank)
        if not self._is_many:
            result = self._idle(array, self._is_one, self.many, batch)
        else:
            result = result_array(self.many, array, out, self.rank, batch)
        for part in self._parts:
            if part.comm is not None:
                part.comm.Bcast(arrays.message(array if part.is_one else result), root=part.root)
            if part.is_one and part.is_many:
                arrays.copy_into(result, array)  # after the collective, so that nobody waits for it
        return result

    def sum_to_one(self, array: Any, out: Any = None) -> Any:
        """A_a, then the reducing summation, then D_{k}: collective, the tensor over P_x of the one over P_y.

        A worker of P_x may give the memory for its result as `out`. Raises `ValueError` if `array` is not this rank's
        local tensor of `many`, or `out` not one of `one`.
        """
        batch = check_argument(self.many, array, self.rank)
        if not self._is_one:
            result = self._idle(array, self._is_many, self.one, batch)
        else:
            result = result_array(self.one, array, out, self.rank, batch)
        for part in self._parts:
            if part.comm is None:
                if part.is_one and part.is_many:
                    arrays.copy_into(result, array)
                continue
            summand = arrays.summable(
                array if part.is_many else arrays.zeros((*part.shape, *batch), self.one.dtype, array)
            )
            if part.is_one:
                sum_into(result, partial(part.comm.Reduce, summand, root=part.root))
            else:
                part.comm.Reduce(summand, None, root=part.root)
        return result

    def _idle(self, array: Any, was_active: bool, tensor: Tensor, batch: tuple[int, ...]) -> Any:
        """The zero-volume tensor of a worker outside the output's partition [DistDL, preserve_batch].

        A worker in neither partition gives back a copy of what it was handed.
        """
        if not was_active:
            return arrays.copy(array)
        if batch:
            shape = (*tensor.layout.local_shape(self.rank), *batch)
        elif self.preserve_batch and len(array.shape) > 0:
            shape = (int(array.shape[0]),) + (0,) * max(1, len(array.shape) - 1)
        else:
            shape = tensor.layout.local_shape(self.rank)
        return arrays.empty(shape, tensor.dtype, array)


def result_array(tensor: Tensor, argument: Any, out: Any, rank: int, batch: tuple[int, ...] = ()) -> Any:
    """Where the local tensor of `tensor` goes: fresh memory in the library of `argument`, or `out`.

    `batch` is what :func:`adjointlab.core.arguments.check_argument` said of the argument. Raises `ValueError` for an `out`
    that :func:`adjointlab.core.arguments.check_out` refuses, or that is not in row-major order.
    """
    if out is None:
        return arrays.empty((*tensor.layout.local_shape(rank), *batch), tensor.dtype, argument)
    check_out(tensor, out, (argument,), rank, batch)
    if not arrays.is_row_major(out):
        raise ValueError(
            f"out: an array on rank {rank} is not in row-major order, so nothing can be received into it"
        )
    return out


def sum_into(result: Any, reduce: Callable[[np.ndarray[Any, Any]], object]) -> None:
    """Fill `result` with the sum that ``reduce(buffer)`` leaves in a buffer.

    The buffer is the array's own memory, except in half precision: there it is float32, rounded at the end.
    """
    if arrays.dtype_of(result).itemsize == 2:
        total = np.empty(tuple(result.shape), np.float32)
        reduce(total)
        arrays.copy_into(result, arrays.from_summable(total, arrays.dtype_of(result).name, result))
    else:
        reduce(arrays.message(result))
