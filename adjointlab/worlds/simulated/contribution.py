"""Contribution of one rank to a collective, as the pending collective sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from adjointlab import MPI
from adjointlab.typing import Communicator

__all__ = ["Contribution", "Disagreement", "Signature", "valid_root"]


class Disagreement(Exception):
    """The arguments of two ranks do not fit together."""

    def __init__(self, one: int, other: int, reason: str) -> None:
        super().__init__(reason)
        self.ranks = one, other  # of the communicator


class Signature(NamedTuple):
    """Arguments that all ranks must agree on; None where a rank has no say."""

    root: int | None = None
    op: str | None = None
    datatype: str | None = None
    shape: object = None  # a count, counts, or what a new communicator is made from


class Contribution:
    """Arguments of one rank, and the computation that the last rank to arrive performs for all."""

    __slots__ = ("compute", "group", "kind", "root", "signature")

    def __init__(self, kind: str, compute: Callable[[Sequence[Any]], None], signature: Signature) -> None:
        self.kind = kind  # equal for calls that match
        self.compute = compute  # takes the contributions of all ranks
        self.root = signature.root or 0
        self.signature = signature
        self.group: list[int] | None = None  # of the communicator to be made, where the call names one

    # Of a non-blocking collective, whose buffers belong to the run until `finish`

    def watch(self) -> None:
        """Note what the send buffer holds, so that :meth:`misuse` sees changes."""

    def hold(self) -> None:
        """Read the send buffer now."""

    def delay(self) -> None:
        """Write the result elsewhere, and make the receive buffer useless until :meth:`finish`."""

    def misuse(self) -> str:
        """Describe what user code has done to the buffers before :meth:`finish`; empty if nothing is wrong."""
        return ""

    def finish(self) -> Any:
        """Give the buffers back to user code; return the call's result."""


def valid_root(comm: Communicator, root: int) -> int:
    """`root`, if it is a rank of `comm`; `adjointlab.MPI.Exception` otherwise."""
    if not 0 <= root < comm.size:
        raise MPI.Exception(
            f"Invalid root {root}: must be nonnegative and less than {comm.size}", MPI.ERR_ROOT
        )
    return root
