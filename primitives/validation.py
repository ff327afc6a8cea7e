"""Arguments that no operator can be made with: every rank raises the same error, and it has the caller's name for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from operator import index

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.primitives.broadcast_rules import check_ranks

__all__ = ["an_integer", "called", "check_layout", "worker"]


def check_layout(name: str, layout: Layout, size: int) -> None:
    """Raise `TypeError` for what is no layout, and `ValueError` for one over ranks beyond a communicator of `size` ranks."""
    if not isinstance(layout, Layout):
        raise TypeError(f"{name}: {layout!r} is no Layout")
    check_ranks(name, layout.partition, size)


def worker(name: str, rank: int, order: int, size: int) -> Partition:
    """The partition 1 × ... × 1 of the one worker `rank`; `ValueError` where a communicator of `size` ranks has none such."""
    if not 0 <= an_integer(name, rank) < size:
        raise ValueError(f"{name}: {rank} is no rank of the communicator, which has ranks 0 to {size - 1}")
    return Partition((1,) * order, [rank])


def an_integer(name: str, value: object) -> int:
    """`value` as an integer; `TypeError` naming the argument where it is something else."""
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name}: {value!r} is no integer") from None


@contextmanager
def called(**names: str) -> Iterator[None]:
    """``with called(cuts="cut"):`` errors about what is called `cuts` inside name the caller's argument `cut`."""
    try:
        yield
    except (TypeError, ValueError) as error:
        name, colon, rest = str(error).partition(":")
        if not colon or name not in names:
            raise
        raise type(error)(f"{names[name]}:{rest}") from None
