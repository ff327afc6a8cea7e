"""One call on a guarded communicator: what it is called in messages, and whom it waits for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, Final, NamedTuple

from mpi4py import MPI

from adjointlab.worlds.call_sites import user_frame

__all__ = ["Call", "Place", "caller", "place_of"]

_P2P_SEND: Final = ("buf", "dest", "tag")
_P2P_RECEIVE: Final = ("buf", "source", "tag")
_ROOT_SECOND: Final = ("buf", "root")
_ROOT_THIRD: Final = ("sendbuf", "recvbuf", "root")

# The parameters, in order, of the calls that have any worth showing.
_PARAMETERS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("send", "ssend", "isend", "issend"), _P2P_SEND),
    **dict.fromkeys(("recv", "irecv"), _P2P_RECEIVE),
    **dict.fromkeys(("probe", "iprobe"), ("source", "tag")),
    "sendrecv": ("sendbuf", "dest", "sendtag", "recvbuf", "source", "recvtag"),
    "sendrecv_replace": ("buf", "dest", "sendtag", "source", "recvtag"),
    "bcast": _ROOT_SECOND,
    **dict.fromkeys(("gather", "gatherv", "scatter", "scatterv"), _ROOT_THIRD),
    "reduce": ("sendbuf", "recvbuf", "op", "root"),
}
# mpi4py's object forms have no receive buffer.
_OBJECT_PARAMETERS: Final[dict[str, tuple[str, ...]]] = {
    "gather": _ROOT_SECOND,
    "scatter": _ROOT_SECOND,
    "reduce": ("sendobj", "op", "root"),
}
_SHOWN: Final = frozenset({"comm", "dest", "group", "source", "tag", "sendtag", "recvtag", "root"})


class Call(NamedTuple):
    """A call in the making."""

    comm: Any  # the GuardedComm
    name: str
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] | None = None
    peer: int | None = None  # the one rank of `comm` that it waits for; None for all the others
    missing: Callable[[], tuple[int, ...]] | None = (
        None  # the ranks of the run that it waits for, if that is known
    )

    def __str__(self) -> str:
        parameters = _OBJECT_PARAMETERS.get(self.name)
        if parameters is None:
            name = self.name.lower()
            parameters = _PARAMETERS.get(name) or _PARAMETERS.get(name.removeprefix("i"), ())
        given = {**dict(zip(parameters, self.arguments, strict=False)), **(self.keywords or {})}
        if self.comm.label:
            given["comm"] = self.comm.label
        shown = ", ".join(f"{key}={_constant(key, value)}" for key, value in given.items() if key in _SHOWN)
        return f"{self.name}({shown})"

    @property
    def waits_for(self) -> tuple[int, ...]:
        """The ranks of the run that can end the wait."""
        if self.missing is not None:
            return self.missing()
        if self.peer is not None and 0 <= self.peer < len(self.comm.ranks):
            return (self.comm.ranks[self.peer],)
        here = self.comm.rank
        return tuple(rank for index, rank in enumerate(self.comm.ranks) if index != here)


def _constant(key: str, value: Any) -> Any:
    if key in {"source", "dest"} and value == MPI.PROC_NULL:
        return "PROC_NULL"
    if key == "source" and value == MPI.ANY_SOURCE:
        return "ANY_SOURCE"
    if key.endswith("tag") and value == MPI.ANY_TAG:
        return "ANY_TAG"
    return value


class Place(NamedTuple):
    """A line of code, cheap to note."""

    code: CodeType
    line: int

    def __str__(self) -> str:
        return f"{self.code.co_filename}:{self.line}"


def place_of(code: CodeType, instruction: int) -> Place:
    """The line that an instruction stands in."""
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return Place(code, line)
    return Place(code, code.co_firstlineno)


def caller() -> Place:
    """The line of user code that calls."""
    frame = user_frame(sys._getframe(1))
    return Place(frame.f_code, frame.f_lineno)
