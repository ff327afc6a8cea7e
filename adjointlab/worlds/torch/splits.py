"""Split sizes of ``all_to_all_single``, compared before the backend gets them: gloo ends the process where they differ.

A rank adds its own to those in the store, then reads all that are there. Nobody waits. Of two ranks whose sizes differ, the one that writes
later sees the other's, and raises before it has sent anything that could end the other one.
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
    """Elements that a rank sends to each rank of the group, and expects from each."""

    sent: tuple[int, ...]
    expected: tuple[int, ...]


class UnequalSplits(NamedTuple):
    """Two ranks of which the first sends the second another number of elements than that expects."""

    sender: int
    receiver: int
    sent: int
    expected: int

    def __str__(self) -> str:
        return part_text(self.sender, self.receiver, counted(self.sent, "element"), str(self.expected))


class SplitMismatch(RuntimeError):
    """A rank sends another one a different number of elements than that expects."""


class SplitBoard:
    """The split sizes that ranks have published in a `store`, which is for that alone."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def publish(self, call: str, members: Sequence[int], rank: int, own: Splits) -> None:
        """Publish those of `rank` in a `call`, which has the same name on all `members` of the group; raises :class:`SplitMismatch`."""
        # With the members: ranks that make groups in different order have other ones of the same name.
        key = f"{call}/{'-'.join(map(str, members))}"
        self._store.append(key, f"{json.dumps([rank, *own])}\n".encode())
        known = {}
        for line in self._store.get(key).splitlines():  # which does not wait, since the key is there
            member, sent, expected = json.loads(line)
            known[member] = Splits(tuple(sent), tuple(expected))
        if found := unequal_splits(members, known):
            raise SplitMismatch(str(found))


def splits_of(ranks: int, output: Any = None, tensor: Any = None, *sizes: Any) -> Splits | None:
    """Those of a call with these arguments on a group of so many ranks; None where it is left to torch to refuse them."""
    try:
        expected_rows, sent_rows = ([index(size) for size in each] for each in (*sizes, (), ())[:2])
    except TypeError:
        return None
    sent, expected = _elements(ranks, tensor, sent_rows), _elements(ranks, output, expected_rows)
    return None if sent is None or expected is None else Splits(sent, expected)


def _elements(ranks: int, tensor: Any, rows: list[int]) -> tuple[int, ...] | None:
    """Elements of each rank in `tensor`, of which it has so many `rows`; all as many, where they are not given."""
    if not isinstance(tensor, torch.Tensor):
        return None
    height = tensor.shape[0] if tensor.dim() else 1
    rows = rows or [height // ranks] * ranks
    if sum(rows) != height or len(rows) != ranks:
        return None
    row = tensor.numel() // height if height else 0
    return tuple(each * row for each in rows)


def unequal_splits(members: Sequence[int], splits: Mapping[int, Splits]) -> UnequalSplits | None:
    """The first pair, in the order of ranks, of which the one sends another number of elements than the other expects."""
    place = {member: number for number, member in enumerate(members)}
    for sender in sorted(splits):
        for receiver in sorted(splits):
            sent = splits[sender].sent[place[receiver]]
            expected = splits[receiver].expected[place[sender]]
            if sent != expected:
                return UnequalSplits(sender, receiver, sent, expected)
    return None
