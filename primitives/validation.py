"""Checks of the arguments that an operator is made with.

Every rank checks the same arguments before any message, so all raise the same error, which names the caller's argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from operator import index
from typing import SupportsIndex

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition

__all__ = ["arguments_renamed", "as_integer", "check_layout", "check_ranks", "single_worker"]


def check_ranks(name: str, partition: Partition, size: int) -> None:
    """Raise `TypeError` unless `partition` is a partition, and `ValueError` unless all its ranks are below `size`."""
    if not isinstance(partition, Partition):
        raise TypeError(f"{name}: {partition!r} is no Partition")
    if max(partition.ranks) >= size:
        beyond = sorted(rank for rank in partition.ranks if rank >= size)
        raise ValueError(
            f"{name}: the partition {partition} uses ranks {beyond}, but the communicator has ranks 0 to {size - 1}"
        )


def check_layout(name: str, layout: Layout, size: int) -> None:
    """Raise `TypeError` unless `layout` is a layout, and `ValueError` unless all its ranks are below `size`."""
    if not isinstance(layout, Layout):
        raise TypeError(f"{name}: {layout!r} is no Layout")
    check_ranks(name, layout.partition, size)


def single_worker(name: str, rank: int, order: int, size: int) -> Partition:
    """Partition 1 × ... × 1 of `order` dimensions of the one worker `rank`; `ValueError` unless it is below `size`."""
    if not 0 <= as_integer(name, rank) < size:
        raise ValueError(f"{name}: {rank} is no rank of the communicator, which has ranks 0 to {size - 1}")
    return Partition((1,) * order, [rank])


def as_integer(name: str, value: SupportsIndex) -> int:
    """`value` as an integer; `TypeError` naming the argument where it is something else."""
    try:
        return index(value)
    except TypeError:
        raise TypeError(f"{name}: {value!r} is no integer") from None


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
