"""Copying from one worker to many and summing from many to one: one collective for each group of workers.

The broadcasting summation and the reducing summation of eqs. 16-18 on array buffers. Broadcast and SumReduce are
these two, in opposite order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from adjointlab import arrays
from adjointlab.arguments import check_argument
from adjointlab.dtypes import dtype
from adjointlab.primitives import groups
from adjointlab.primitives.broadcast_rules import BroadcastPattern, Group
from adjointlab.space import Tensor

__all__ = ["OneToMany", "sum_to_new"]


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

    def __init__(self, comm: Any, pattern: BroadcastPattern, one: Tensor, many: Tensor, preserve_batch: bool) -> None:
        self.rank = comm.Get_rank()
        self.one, self.many = one, many
        self.preserve_batch = preserve_batch
        self._parts = tuple(
            self._part(comm, group) for group in pattern.groups if self.rank in group.ranks
        )
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

    def copy_to_many(self, array: Any) -> Any:
        """A_{k}, then the broadcasting summation, then D_a: collective, the tensor over P_y of the one over P_x.

        Raises `ValueError` if `array` is not this rank's local tensor of `one`.
        """
        check_argument(self.one, array, self.rank)
        result = None
        for part in self._parts:
            if part.is_many:
                result = arrays.empty(part.shape, self.many.dtype, array)
                if part.is_one:
                    arrays.copy_into(result, array)
            if part.comm is not None:
                part.comm.Bcast(arrays.message(result if part.is_many else array), root=part.root)
        return result if self._is_many else self._idle(array, self._is_one, self.many)

    def sum_to_one(self, array: Any) -> Any:
        """A_a, then the reducing summation, then D_{k}: collective, the tensor over P_x of the one over P_y.

        Raises `ValueError` if `array` is not this rank's local tensor of `many`.
        """
        check_argument(self.many, array, self.rank)
        result = None
        for part in self._parts:
            if part.comm is None:
                if part.is_one:
                    result = arrays.copy(array) if part.is_many else arrays.empty(part.shape, self.one.dtype, array)
                continue
            summand = arrays.to_sum(array if part.is_many else arrays.zeros(part.shape, self.one.dtype, array))
            if part.is_one:
                result = sum_to_new(_reduce(part, summand), part.shape, self.one.dtype, array)
            else:
                part.comm.Reduce(summand, None, root=part.root)
        return result if self._is_one else self._idle(array, self._is_many, self.one)

    def _idle(self, array: Any, was_active: bool, tensor: Tensor) -> Any:
        """The zero-volume tensor of a worker outside the output's partition (seed 002, preserve_batch).

        A worker in neither partition gives back a copy of what it was handed.
        """
        if not was_active:
            return arrays.copy(array)
        if self.preserve_batch and len(array.shape) > 0:
            shape = (int(array.shape[0]),) + (0,) * max(1, len(array.shape) - 1)
        else:
            shape = tensor.layout.local_shape(self.rank)
        return arrays.empty(shape, tensor.dtype, array)


def _reduce(part: _Part, summand: np.ndarray[Any, Any]) -> Callable[[np.ndarray[Any, Any]], None]:
    return lambda total: part.comm.Reduce(summand, total, root=part.root)


def sum_to_new(
    receive: Callable[[np.ndarray[Any, Any]], object], shape: tuple[int, ...], name: str, like: Any
) -> Any:
    """A fresh array of type `name` for the sum that ``receive(buffer)`` leaves in a buffer.

    The buffer is the array's own memory, except in half precision: there it is float32, rounded at the end.
    """
    if dtype(name).itemsize == 2:
        total = np.empty(shape, np.float32)
        receive(total)
        return arrays.from_message(total, name, like)
    result = arrays.empty(shape, name, like)
    receive(arrays.message(result))
    return result
