"""The parameters of a case as a tree of containers and entries.

Layouts are entries; spaces and tensors contain layouts. A sequence may itself be a shape or a cut, so it is visited before its entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from adjointlab.core.layout import Layout
from adjointlab.core.space import Space, Tensor

__all__ = ["Change", "is_cut", "leaves", "mapped", "nodes", "own_copy"]

Change = Callable[[object], object]
"""A function of an entry, or of a sequence as a tuple; it returns its argument itself if it does not change it."""


def mapped(value: object, change: Change) -> object:
    """Return `value` with `change` applied to all sequences, and to the entries of those that it leaves unchanged."""
    match value:
        case Mapping():
            return {key: mapped(entry, change) for key, entry in value.items()}
        case list() | tuple():
            whole = tuple(value)
            after = change(whole)
            if after is whole:
                after = tuple(mapped(entry, change) for entry in whole)
            assert isinstance(after, tuple)
            return list(after) if isinstance(value, list) else after
        case Space():
            return Space(*(_with_layout(tensor, change) for tensor in value.tensors))
        case Tensor():
            return _with_layout(value, change)
        case _:
            return change(value)


def _with_layout(tensor: Tensor, change: Change) -> Tensor:
    layout = change(tensor.layout)
    assert isinstance(layout, Layout)
    return replace(tensor, layout=layout)


def own_copy(value: Any) -> Any:
    """Return `value` with copies of its dictionaries and lists; everything else is immutable.

    Dictionaries and tuples become plain ones, as a file restores them.
    """
    match value:
        case Mapping():
            return {key: own_copy(entry) for key, entry in value.items()}
        case list():
            return [own_copy(entry) for entry in value]
        case tuple() if not hasattr(value, "_fields"):  # named tuples stay what they are, to be refused later
            return tuple(own_copy(entry) for entry in value)
        case _:
            return value


def nodes(value: object) -> Iterator[object]:
    """Yield sequences, as tuples, and entries, in the order in which :func:`mapped` visits them."""
    match value:
        case Mapping():
            for entry in value.values():
                yield from nodes(entry)
        case list() | tuple():
            yield tuple(value)
            for entry in value:
                yield from nodes(entry)
        case Space():
            yield from (tensor.layout for tensor in value.tensors)
        case Tensor():
            yield value.layout
        case _:
            yield value


def leaves(value: object) -> Iterator[object]:
    """Yield the entries, without the sequences."""
    return (node for node in nodes(value) if not isinstance(node, tuple))


def is_cut(value: object) -> TypeGuard[Sequence[int]]:
    """Return True for a sequence like 0, 2, 5, 7, which may be the boundaries of parts."""
    return (
        isinstance(value, tuple | list)
        and len(value) > 1
        and all(isinstance(end, int) for end in value)
        and value[0] == 0
        and list(value) == sorted(value)
    )
