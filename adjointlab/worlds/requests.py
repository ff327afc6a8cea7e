"""mpi4py's ``Request.Waitall`` and kin, for the requests of both worlds, while user code runs.

They are static methods of a class of mpi4py's, refuse what is no request of MPI, and wait without end. So while ranks
run, and if mpi4py is imported, the name ``mpi4py.MPI.Request`` stands for a class whose methods hand requests of the
worlds to :class:`adjointlab.MPI.Request`, and any others to mpi4py untouched. (A class that was imported by itself, with
``from mpi4py.MPI import Request``, keeps its own.)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from adjointlab import MPI

__all__ = ["Interposition"]

_UPPER_CASE: Final = ("Waitall", "Waitany", "Waitsome", "Testall", "Testany", "Testsome")
_NAMES: Final = (*_UPPER_CASE, *map(str.lower, _UPPER_CASE))


class Interposition:
    """Context in which ``mpi4py.MPI.Request`` completes the requests of the worlds too."""

    def __init__(self) -> None:
        self._original: Any = None

    def __enter__(self) -> None:
        self.look()

    def __exit__(self, *_: object) -> None:
        if self._original is not None:
            sys.modules["mpi4py.MPI"].Request = self._original  # type: ignore[attr-defined]
            self._original = None

    def look(self) -> None:
        """Take effect if mpi4py has been imported by now: user code may do so at any time of a run."""
        mpi: Any = sys.modules.get("mpi4py.MPI")
        if mpi is not None and self._original is None:
            self._original = mpi.Request
            mpi.Request = _for_both(mpi.Request)


@lru_cache(maxsize=2)
def _for_both(theirs: Any) -> Any:
    class EitherKind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, theirs | MPI.Request)

    forked = {name: staticmethod(_forked(name, getattr(theirs, name))) for name in _NAMES}
    return EitherKind("Request", (theirs,), {"__module__": "mpi4py.MPI", **forked})


def _forked(name: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
    ours: Callable[..., Any] = getattr(MPI.Request, name)

    def call(requests: Sequence[Any], *statuses: Any, **keywords: Any) -> Any:
        is_ours = any(isinstance(request, MPI.Request) for request in requests)
        return (ours if is_ours else theirs)(requests, *statuses, **keywords)

    return call
