"""A call on a guarded communicator: its text in reports, and the ranks that it waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from mpi4py import MPI

from adjointlab.worlds.call_labels import CallLabel
from adjointlab.worlds.diagnosis import is_synchronous
from adjointlab.worlds.mpi.collectives import collective_kind

__all__ = ["GuardedCall", "by_name"]

_SEND: Final = ("buf", "dest", "tag")
_RECEIVE: Final = ("buf", "source", "tag")

_OF_MESSAGES: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("send", "ssend", "isend", "issend"), _SEND),
    **dict.fromkeys(("recv", "irecv"), _RECEIVE),
    **dict.fromkeys(("probe", "iprobe"), ("source", "tag")),
    **dict.fromkeys(
        ("sendrecv", "sendrecv_replace"), ("sendbuf", "dest", "sendtag", "recvbuf", "source", "recvtag")
    ),
}
"""mpi4py's parameters of point-to-point calls, in order, by the call's name in lower case."""


def by_name(
    parameters: Sequence[str], arguments: Sequence[object], keywords: Mapping[str, object]
) -> dict[str, Any]:
    """The arguments of a call by the names of its parameters."""
    return {**dict(zip(parameters, arguments, strict=False)), **keywords}


_SHOWN: Final = frozenset({"comm", "dest", "group", "source", "tag", "sendtag", "recvtag", "root"})


class _Target(Protocol):
    """The part of a communicator that a call needs."""

    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> tuple[int, ...]: ...
    def Get_name(self) -> str: ...


class GuardedCall(NamedTuple):
    """A call that has begun."""

    comm: _Target
    name: str
    arguments: tuple[object, ...] = ()  # also keeps the buffers alive
    keywords: Mapping[str, object] | None = None
    peer: int | None = None  # the one rank of `comm` that it waits for; None for all others
    missing: Callable[[], tuple[int, ...]] | None = None  # the ranks of the run that it waits for, if known
    is_receive: bool = False  # receives a message, and sends none
    label: CallLabel | None = None  # given by a library that makes the call for user code

    def __str__(self) -> str:
        if self.label is not None:
            return str(self.label)
        given = by_name(self._parameters, self.arguments, self.keywords or {})
        if comm := self.comm.Get_name():
            given["comm"] = comm
        shown = ", ".join(f"{key}={_constant(key, value)}" for key, value in given.items() if key in _SHOWN)
        return f"{self.name}({shown})"

    @property
    def is_send(self) -> bool:
        """True for a send that may or may not wait until the message is received; False for synchronous ones, which always wait."""
        return "dest" in self._parameters and not is_synchronous(self.name)

    @property
    def _parameters(self) -> tuple[str, ...]:
        return _OF_MESSAGES.get(self.name.lower()) or collective_kind(self.name).parameters

    @property
    def waits_for(self) -> tuple[int, ...]:
        """The ranks of the run that can end the wait."""
        if self.missing is not None:
            return self.missing()
        if self.peer is not None and 0 <= self.peer < len(self.comm.ranks):
            return (self.comm.ranks[self.peer],)
        return tuple(rank for index, rank in enumerate(self.comm.ranks) if index != self.comm.rank)


def _constant(key: str, value: object) -> object:
    if key in {"source", "dest"} and value == MPI.PROC_NULL:
        return "PROC_NULL"
    if key == "source" and value == MPI.ANY_SOURCE:
        return "ANY_SOURCE"
    if key.endswith("tag") and value == MPI.ANY_TAG:
        return "ANY_TAG"
    return value
