"""Comparison of the split sizes of ``all_to_all_single`` before the backend gets them: gloo ends the process if they differ.

A rank appends its own sizes to those in the store, then reads all that are there, without waiting. If the sizes of two ranks differ, the
one that writes later finds the other's, and raises before it has sent anything that could end the other rank.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, NamedTuple

import torch

from adjointlab.quantities import counted
from adjointlab.worlds.parts import part_text
from adjointlab.worlds.torch.store import Store

__all__ = ["SplitBoard", "SplitMismatch", "Splits", "UnequalSplits", "splits_of", "unequal_splits"]


class Splits(NamedTuple):
    """Numbers of elements that a rank sends to each rank of the group, and expects from each."""

    sent: tuple[int, ...]
    expected: tuple[int, ...]


class UnequalSplits(NamedTuple):
    """A sender and a receiver with the different numbers of elements that the one sends and the other expects."""

    sender: int
    receiver: int
    sent: int
    expected: int

    def __str__(self) -> str:
        return part_text(self.sender, self.receiver, counted(self.sent, "element"), str(self.expected))


class SplitMismatch(RuntimeError):
    """A rank sends another one a different number of elements than it expects."""


class SplitBoard:
    """The split sizes that ranks have published in `store`, which is used only for that."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def publish(self, call: str, members: Sequence[int], rank: int, own: Splits) -> None:
        """Publish the sizes of `rank` in a `call`, a name that is equal on all `members` of the group; raises :class:`SplitMismatch`."""
        # The key includes the members: if ranks make groups in different order, different groups have the same name.
        key = f"{call}/{'-'.join(map(str, members))}"
        self._store.append(key, f"{json.dumps([rank, *own])}\n".encode())
        known = {}
        for line in self._store.get(key).splitlines():  # does not wait, because the key exists
            member, sent, expected = json.loads(line)
            known[member] = Splits(tuple(sent), tuple(expected))
        if found := unequal_splits(members, known):
            raise SplitMismatch(str(found))


def splits_of(ranks: int, output: Any = None, tensor: Any = None, *sizes: Any) -> Splits | None:
    """Split sizes of a call with these arguments on a group of so many ranks; None if they are invalid, which torch reports."""
    try:
        expected_rows, sent_rows = ([index(size) for size in each] for each in (*sizes, (), ())[:2])
    except TypeError:
        return None
    sent, expected = _elements(ranks, tensor, sent_rows), _elements(ranks, output, expected_rows)
    return None if sent is None or expected is None else Splits(sent, expected)


def _elements(ranks: int, tensor: Any, rows: list[int]) -> tuple[int, ...] | None:
    """Number of elements for each rank in `tensor`, given the number of `rows` for each; equal shares if `rows` is empty."""
    if not isinstance(tensor, torch.Tensor):
        return None
    height = tensor.shape[0] if tensor.dim() else 1
    rows = rows or [height // ranks] * ranks
    if sum(rows) != height or len(rows) != ranks:
        return None
    row = tensor.numel() // height if height else 0
    return tuple(each * row for each in rows)


def unequal_splits(members: Sequence[int], splits: Mapping[int, Splits]) -> UnequalSplits | None:
    """The first pair of ranks of which one sends a different number of elements than the other expects."""
    place = {member: number for number, member in enumerate(members)}
    for sender in sorted(splits):
        for receiver in sorted(splits):
            sent = splits[sender].sent[place[receiver]]
            expected = splits[receiver].expected[place[sender]]
            if sent != expected:
                return UnequalSplits(sender, receiver, sent, expected)
    return None
