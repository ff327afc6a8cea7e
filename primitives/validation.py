"""Checks of the arguments that an operator is made with.

Every rank checks the same arguments before any message, so all raise the same error, which names the caller's argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from adjointlab.core.communicators import size_of
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition, PartitionLike, as_partition, whole_number
from adjointlab.typing import Communicator

__all__ = ["arguments_renamed", "check_layout", "check_summed", "partition_of", "single_worker"]


def partition_of(name: str, partition: PartitionLike, comm: Communicator) -> Partition:
    """`partition`, or the partition with those sides; raise `TypeError` for what is neither, or for `comm` no communicator.

    Raises `ValueError` unless all its ranks are among those of `comm`.
    """
    size, partition = size_of(comm), as_partition(name, partition)
    if max(partition.ranks) >= size:
        beyond = sorted(rank for rank in partition.ranks if rank >= size)
        raise ValueError(
            f"{name}: the partition {partition} uses ranks {beyond}, but the communicator has ranks 0 to {size - 1}"
        )
    return partition


def check_layout(name: str, layout: Layout, comm: Communicator) -> None:
    """Raise `TypeError` unless `layout` is a layout over a communicator, and `ValueError` unless all its ranks are among those."""
    size_of(comm)
    if not isinstance(layout, Layout):
        raise TypeError(f"{name}: {layout!r} is not a Layout")
    partition_of(name, layout.partition, comm)


def check_summed(name: str, layout: Layout, dims: Iterable[int], axes: str = "`axes`") -> None:
    """Raise `ValueError` unless the workers along these dimensions of the partition, which are summed over, hold the same windows."""
    for dim in dims:
        if not layout.copied[dim]:
            raise ValueError(
                f"{name}: dimension {dim} of the partition {layout.partition} is summed over, but its workers hold "
                f"different windows of {layout}; local tensors that are summed lie over the same window "
                f"(say so with {axes}, None for a dimension that is not cut)"
            )


def single_worker(name: str, rank: int, order: int, comm: Communicator) -> Partition:
    """Partition 1 × ... × 1 of `order` dimensions of the one worker `rank`; `ValueError` unless it is a rank of `comm`."""
    size = size_of(comm)
    if not 0 <= whole_number(name, rank) < size:
        raise ValueError(f"{name}: {rank} is not a rank of the communicator, which has ranks 0 to {size - 1}")
    return Partition((1,) * order, [rank])


@contextmanager
def arguments_renamed(**names: str) -> Iterator[None]:
    """Raise errors about an inner argument under the name that the caller knows: ``arguments_renamed(cuts="cut")``.

    Errors of the lab begin with the name of the argument and a colon; others pass unchanged.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        name, colon, rest = str(error).partition(":")
        if not colon or name not in names:
            raise
        raise type(error)(f"{names[name]}:{rest}") from None
