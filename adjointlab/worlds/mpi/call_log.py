"""What each rank called on a communicator, in order: enough to see the first collective that does not match.

A trail is kept while a run goes, cheaply, and put into words at its end. The communicator's members then compare: the
kind of the call, its root, operation, datatype and number of elements, as far as MPI demands that they be equal.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from adjointlab import MPI as ours
from adjointlab.worlds.buffers import elements as elements_of
from adjointlab.worlds.call_sites import is_lab
from adjointlab.worlds.constants import is_in_place, op
from adjointlab.worlds.mpi.calls import Place, place_of

__all__ = ["Account", "Fingerprint", "Note", "account", "difference", "fingerprint", "noter", "shorthand"]

_TOLD: Final = 256
"""So many of a trail's latest calls travel to the leader; of those before, a checksum."""

Note = tuple[str, Any, Any, Any, Any, Any, int]
"""A call as it is noted: name, root, operation, dtype, number of elements, code object, and where in that.

A number from 0 is a line, one below is the complement of an instruction's.
"""

Noter = Callable[[Sequence[Any], Mapping[str, Any], Any, int], Note]

Words = dict[tuple[int, int], tuple[str, bool, Any]]
"""Places that were put into words before."""


class Fingerprint(NamedTuple):
    """A collective call in words; `None` where MPI does not demand equality, or it is not known."""

    name: str
    root: int | None
    op: str | None
    dtype: str | None
    elements: int | None
    where: str
    is_own: bool  # the lab made it, not user code

    def __str__(self) -> str:
        shown = [
            None if self.root is None else f"root={self.root}",
            self.op,
            None if self.elements is None else f"{self.elements} of {self.dtype}",
        ]
        # The makers of communicators are noted with their arguments.
        return self.name if self.name.endswith(")") else f"{self.name}({', '.join(filter(None, shown))})"

    def told(self, rank: int) -> str:
        """The call as one of `rank`."""
        if self.is_own:
            # Where the lab calls it is nobody's concern.
            return f"rank {rank} has come back from user code"
        return f"rank {rank} calls {self} at {self.where}"

    def difference(self, other: Fingerprint) -> str:
        """In what the two do not match; empty where they may."""
        if self.name != other.name or self.is_own != other.is_own:
            return "they call different collectives"
        for what, mine, theirs in (
            ("roots differ", self.root, other.root),
            ("operations differ", self.op, other.op),
            ("datatypes differ", self.dtype, other.dtype),
            ("numbers of elements differ", self.elements, other.elements),
        ):
            if mine is not None and theirs is not None and mine != theirs:
                return f"the {what}: {mine} and {theirs}"
        return ""


class Account(NamedTuple):
    """One rank's trail on one communicator: how many calls, a checksum of those not told, and the latest ones."""

    calls: int
    checksum: int
    latest: tuple[Fingerprint, ...]

    def call(self, number: int) -> Fingerprint | None:
        """The call of that number, from 0, if it is told."""
        index = number - (self.calls - len(self.latest))
        return self.latest[index] if 0 <= index < len(self.latest) else None


def account(trail: Sequence[Note], words: Words) -> Account:
    """The account of a trail; `words` is added to."""
    untold = trail[:-_TOLD] if len(trail) > _TOLD else ()
    checksum = zlib.crc32(",".join(note[0] for note in untold).encode())
    return Account(len(trail), checksum, tuple(fingerprint(note, words) for note in trail[-_TOLD:]))


def fingerprint(note: Note, words: Words) -> Fingerprint:
    """A noted call in words."""
    name, root, operation, dtype, count, code, place = note
    key = (id(code), place)
    entry = words.get(key)
    if entry is None:
        where = Place(code, place) if place >= 0 else place_of(code, ~place)
        # The code object is kept, so that no other takes over its identity.
        entry = words[key] = (str(where), is_lab(code.co_filename), code)
    return Fingerprint(
        name,
        None if root is None else int(root),
        None if operation is None else _operation(operation),
        None if dtype is None else str(dtype),
        count,
        *entry[:2],
    )


def difference(accounts: Mapping[int, Account]) -> tuple[int, int, int, str] | None:
    """The first call that two ranks made and that does not match: its number from 0, the ranks, and why."""
    (first, reference), *others = accounts.items()
    found = []
    for rank, entry in others:
        for number in range(min(reference.calls, entry.calls)):
            one, other = reference.call(number), entry.call(number)
            if one is not None and other is not None and (why := one.difference(other)):
                found.append((number, first, rank, why))
                break
        else:
            if reference.calls == entry.calls and reference.checksum != entry.checksum:
                found.append(
                    (
                        0,
                        first,
                        rank,
                        f"or later, more than {_TOLD} calls ago, they call different collectives",
                    )
                )
    return min(found, default=None)


def noter(name: str, size: int) -> Noter:
    """What notes a call of `name` on a communicator of `size` ranks, from its arguments, code and instruction."""
    kind = name.lower().removeprefix("i")
    parameters = _PARAMETERS.get(kind, ())
    counted = _COUNTED.get(kind)

    def note(arguments: Sequence[Any], keywords: Mapping[str, Any], code: Any, place: int) -> Note:
        given = dict(zip(parameters, arguments, strict=False))
        given.update(keywords)
        root = given.get("root", 0) if "root" in parameters else None
        operation = given.get("op", ours.SUM) if "op" in parameters else None
        dtype = count = None
        if counted is not None:
            first, second, share = counted
            dtype, count = _described(given.get(first))
            if count is None and second is not None:
                dtype, count = _described(given.get(second))
                if count is not None and share:
                    count //= size
        return name, root, operation, dtype, count, code, place

    return note


def shorthand(name: str) -> tuple[int, int, int | None, Any]:
    """How a call with arrays and nothing else is noted: how many there are, which of them counts, root and operation.

    The number is -1 for calls that have no such form.
    """
    kind = name.lower()
    counted, parameters = _COUNTED.get(kind), _PARAMETERS.get(kind, ())
    if counted is None:
        return -1, 0, None, None
    buffers = [parameter for parameter in parameters if parameter.endswith("buf")]
    root = 0 if "root" in parameters else None
    return len(buffers), buffers.index(counted[0]), root, ours.SUM if "op" in parameters else None


_PARAMETERS: Final[dict[str, tuple[str, ...]]] = {
    "bcast": ("buf", "root"),
    "gather": ("sendbuf", "recvbuf", "root"),
    "gatherv": ("sendbuf", "recvbuf", "root"),
    "scatter": ("sendbuf", "recvbuf", "root"),
    "scatterv": ("sendbuf", "recvbuf", "root"),
    "allgather": ("sendbuf", "recvbuf"),
    "alltoall": ("sendbuf", "recvbuf"),
    "reduce": ("sendbuf", "recvbuf", "op", "root"),
    "allreduce": ("sendbuf", "recvbuf", "op"),
    "reduce_scatter": ("sendbuf", "recvbuf", "recvcounts", "op"),
    "reduce_scatter_block": ("sendbuf", "recvbuf", "op"),
    "scan": ("sendbuf", "recvbuf", "op"),
    "exscan": ("sendbuf", "recvbuf", "op"),
}
# Which buffer's elements all ranks must have the same number of; the one to look at where that is IN_PLACE; and whether
# a rank's share of that is meant.
_COUNTED: Final[dict[str, tuple[str, str | None, bool]]] = {
    "bcast": ("buf", None, False),
    "gather": ("sendbuf", "recvbuf", True),
    "scatter": ("recvbuf", "sendbuf", True),
    "allgather": ("sendbuf", "recvbuf", True),
    "alltoall": ("sendbuf", "recvbuf", False),
    "reduce": ("sendbuf", "recvbuf", False),
    "allreduce": ("sendbuf", "recvbuf", False),
    "reduce_scatter": ("sendbuf", "recvbuf", False),
    "reduce_scatter_block": ("recvbuf", "sendbuf", True),
    "scan": ("sendbuf", "recvbuf", False),
    "exscan": ("sendbuf", "recvbuf", False),
}


def _described(spec: Any) -> tuple[Any, int | None]:
    """The datatype and number of elements of a buffer, where they are told easily."""
    if type(spec) is np.ndarray:
        return spec.dtype, spec.size
    if is_in_place(spec):
        return None, None
    try:
        found = elements_of(spec, writable=False)
    except Exception:  # derived datatypes, memory of a device: MPI knows
        return None, None
    return found.array.dtype, found.array.size


def _operation(value: Any) -> str:
    try:
        known = op(value)
    except TypeError:
        return str(value)
    return str(known.value) if isinstance(known, ours.Op) else "an operation of user code"
