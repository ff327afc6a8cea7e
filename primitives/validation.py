"""Checks of the arguments from which an operator is made.

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
    """Return `partition`, or the partition with these sides; raise `TypeError` if it is neither, or if `comm` is not a communicator.

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
    """Raise `TypeError` unless these are a layout and a communicator, and `ValueError` unless that has all ranks of the layout."""
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
    """Return the partition 1 × ... × 1 of `order` dimensions with the worker `rank`; raise `ValueError` unless `comm` has that rank."""
    size = size_of(comm)
    if not 0 <= whole_number(name, rank) < size:
        raise ValueError(f"{name}: {rank} is not a rank of the communicator, which has ranks 0 to {size - 1}")
    return Partition((1,) * order, [rank])


@contextmanager
def arguments_renamed(**names: str) -> Iterator[None]:
    """Rename the argument in errors to the caller's name for it, as in ``arguments_renamed(cuts="cut")``.

    Errors of the lab begin with the name of the argument and a colon; others pass unchanged.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        name, colon, rest = str(error).partition(":")
        if not colon or name not in names:
            raise
        raise type(error)(f"{names[name]}:{rest}") from None
