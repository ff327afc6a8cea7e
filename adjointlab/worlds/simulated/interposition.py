"""mpi4py's ``Request.Waitall`` and kin, for simulated requests too, while simulated ranks run.

They are class methods of mpi4py's own, and refuse what is no request of MPI. So the name ``mpi4py.MPI.Request`` stands
for a class of both kinds during a run, if mpi4py is imported: what holds a simulated request goes to
:class:`adjointlab.MPI.Request`, anything else to mpi4py untouched. (A class that was imported by itself, with
``from mpi4py.MPI import Request``, keeps its own.)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NoReturn

from adjointlab import MPI

__all__ = ["Interposition"]

_CAPITAL = ("Waitall", "Waitany", "Waitsome", "Testall", "Testany", "Testsome")
_NAMES = (*_CAPITAL, *map(str.lower, _CAPITAL))


class Interposition:
    """In force from entry to exit."""

    def __init__(self) -> None:
        self._theirs: Any = None

    def __enter__(self) -> None:
        self.look()

    def __exit__(self, *_: object) -> None:
        if self._theirs is not None:
            sys.modules["mpi4py.MPI"].Request = self._theirs  # type: ignore[attr-defined]
            self._theirs = None

    def look(self) -> None:
        """See whether mpi4py has been imported by now: user code may do so within a call."""
        mpi: Any = sys.modules.get("mpi4py.MPI")
        if mpi is not None and self._theirs is None:
            self._theirs = mpi.Request
            mpi.Request = _of_both(mpi.Request)


@lru_cache(maxsize=4)  # of mpi4py, and of the guard of the world of MPI
def _of_both(theirs: Any) -> Any:
    class Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, theirs | MPI.Request)

    forked = {name: staticmethod(_forked(name, getattr(theirs, name))) for name in _NAMES}
    return Kind("Request", (theirs,), {"__module__": "mpi4py.MPI", **forked})


def _forked(name: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
    ours: Callable[..., Any] = getattr(MPI.Request, name, _unknown(name))

    def call(requests: Sequence[Any], *statuses: Any, **keywords: Any) -> Any:
        is_worlds = any(isinstance(request, MPI.Request) for request in requests)
        return (ours if is_worlds else theirs)(requests, *statuses, **keywords)

    return call


def _unknown(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(
            f"Request.{name} is not known to simulated ranks: use adjointlab.MPI.Request, or what the requests have"
        )

    return refuse
