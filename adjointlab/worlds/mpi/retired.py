"""Stand-in for an MPI communicator that must not be used any more."""

from __future__ import annotations

from typing import NoReturn

from adjointlab import MPI as ours

__all__ = ["Retired"]


class Retired:
    """Replaces a communicator: every use of it raises an error that states `reason`."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> NoReturn:
        raise ours.Exception(f"this communicator cannot be used: {self._reason}", ours.ERR_COMM)
