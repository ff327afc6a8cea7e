"""``mpi4py.MPI.COMM_WORLD`` while ranks of a run live: it means the communicator of the run.

Code that talks over COMM_WORLD, past the communicator that it is handed, would meet no other rank in simulation, where the
process is alone in its COMM_WORLD; under MPI it would wait for processes that the case leaves out. Neither is what the code does
when it is used. So a :class:`_Redirection` stands in for COMM_WORLD, of a class of Python that derives from mpi4py's: outside
runs it does what COMM_WORLD does, with the same handle, and in a run it passes every call on to the run's communicator.

The stand-in replaces COMM_WORLD wherever Python refers to it: in mpi4py's module, in modules and classes that hold it under a
name of their own, in objects, in defaults of arguments and in closures. A tuple cannot be mended, nor what C code holds.

A communicator that user code has made from COMM_WORLD when its module was imported is another matter: no case can say which
ranks it has. It is refused in a run, with the sentence that says what to do.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from types import CellType, FunctionType, ModuleType
from typing import Any, Final

__all__ = ["CommunicatorOf", "own_handle", "redirected"]

CommunicatorOf = Callable[[], Any]
"""Returns the communicator of the run that the calling thread is a rank of. Raises where it is no rank's thread."""

_MADE_BEFORE: Final = (
    "{call} on a communicator that was made before the case began, from MPI.COMM_WORLD: the lab runs the code on other numbers "
    "of ranks than this process has been started with. Make it from the communicator that the operator is given, or from "
    "MPI.COMM_WORLD in a call, when the operator is made"
)


def own_handle(comm: Any) -> Any:
    """A handle of `comm`, an intracommunicator, that means it in a run too: for the lab's own messages."""
    from mpi4py import MPI

    return MPI.Intracomm(comm)


class redirected:  # noqa: N801 - a context manager that reads as what it is
    """Context in which COMM_WORLD means the communicator that `communicator` returns, if mpi4py is imported by then."""

    def __init__(self, communicator: CommunicatorOf) -> None:
        self._communicator = communicator
        self._redirection: _Redirection | None = None

    def __enter__(self) -> None:
        self.look()

    def __exit__(self, *_: object) -> None:
        if self._redirection is not None:
            self._redirection.communicator = None
            self._redirection = None

    def look(self) -> None:
        """Take effect if mpi4py has been imported by now: user code may do so at any time of a run."""
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is not None and self._redirection is None:
            self._redirection = _redirection_of(mpi)
            self._redirection.communicator = self._communicator


@lru_cache(maxsize=1)
def _redirection_of(mpi: Any) -> _Redirection:
    return _Redirection(mpi)


class _Redirection:
    """What stands in for the communicators of mpi4py that were there before a run.

    It stays for the rest of the process, because user code may have taken a reference to it. `communicator` is None outside
    runs.
    """

    def __init__(self, mpi: Any) -> None:
        self.communicator: CommunicatorOf | None = None
        self._mpi = mpi
        self._classes: dict[type, type] = {}
        world = mpi.COMM_WORLD
        self.world = self.stand_in(world)
        _replace_everywhere(world, self.world)
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] not in ("adjointlab", "mpi4py"):
                self._replace_in(module)

    def stand_in(self, comm: Any) -> Any:
        """An object with the handle of `comm` that is passed on to the run, or refused, while there is one."""
        kind = type(comm)
        if kind not in self._classes:
            self._classes[kind] = self._class_for(kind)
        return self._classes[kind](comm)

    def target(self, comm: Any, call: str) -> Any:
        """The communicator that `comm` means now; None if it means itself."""
        if self.communicator is None:
            return None
        if comm is self.world:
            return self.communicator()
        raise RuntimeError(_MADE_BEFORE.format(call=call))

    def outside(self, result: Any) -> Any:
        """`result` of a call outside runs: a communicator that it made is refused in runs."""
        is_new = isinstance(result, self._mpi.Comm) and type(result) not in self._classes.values()
        return self.stand_in(result) if is_new and result != self._mpi.COMM_NULL else result

    def _replace_in(self, module: ModuleType) -> None:
        """Let the module's own communicators be refused in runs."""
        kinds = (self._mpi.Intracomm, self._mpi.Cartcomm, self._mpi.Graphcomm, self._mpi.Distgraphcomm)
        spared = (self._mpi.COMM_SELF, self._mpi.COMM_NULL)
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if type(value) in kinds and value not in spared:
                setattr(module, name, self.stand_in(value))

    def _class_for(self, kind: type) -> type:
        members: dict[str, Any] = {"__module__": kind.__module__, "__slots__": ()}
        for name in dir(kind):
            if not name.startswith("_"):
                member = getattr(kind, name)
                if not callable(member):
                    members[name] = self._property(kind, name)
                elif getattr(member, "__self__", None) is not kind:  # a class method needs no communicator
                    members[name] = self._method(member, name)
        members["__eq__"] = self._equal(kind)
        members["__hash__"] = kind.__hash__
        return type(kind.__name__, (kind,), members)

    def _method(self, theirs: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(comm: Any, *arguments: Any, **keywords: Any) -> Any:
            target = self.target(comm, name)
            if target is None:
                return self.outside(theirs(comm, *arguments, **keywords))
            return getattr(target, name)(*arguments, **keywords)

        call.__name__, call.__doc__ = name, theirs.__doc__
        return call

    def _property(self, kind: type, name: str) -> property:
        theirs: Any = getattr(kind, name)

        def read(comm: Any) -> Any:
            target = self.target(comm, name)
            return theirs.__get__(comm, kind) if target is None else getattr(target, name)

        def write(comm: Any, value: Any) -> None:
            target = self.target(comm, name)
            if target is None:
                theirs.__set__(comm, value)
            else:
                setattr(target, name, value)

        return property(read, write)

    def _equal(self, kind: type) -> Callable[[Any, object], bool]:
        theirs: Any = kind.__eq__

        def equal(comm: Any, other: object) -> Any:
            target = self.target(comm, "==") if comm is self.world else None
            if target is None:
                return theirs(comm, other)
            return comm is other or bool(target == other)

        return equal


def _replace_everywhere(old: object, new: object) -> None:
    """Let everything in Python that refers to `old` refer to `new`, the variables of running functions aside."""
    # No closure here over `old`: its cell would be one of the referrers.
    for known in gc.get_objects():
        # The collector does not track tuples of what it does not track, so it does not know that defaults refer to `old`.
        if type(known) is FunctionType:
            if known.__defaults__:
                known.__defaults__ = tuple(_replaced(known.__defaults__, old, new))
            _replace(known.__kwdefaults__ or {}, old, new)
        elif isinstance(known, type):
            # By name, because the interpreter caches the attributes of classes.
            for name in [name for name, value in vars(known).items() if value is old]:
                setattr(known, name, new)
    for referrer in gc.get_referrers(old):
        if isinstance(referrer, dict):
            _replace(referrer, old, new)
        elif isinstance(referrer, list):
            referrer[:] = _replaced(referrer, old, new)
        elif isinstance(referrer, CellType):
            referrer.cell_contents = new
        elif isinstance(getattr(referrer, "__dict__", None), dict):
            # Since CPython 3.11 the attributes lie in the object itself until somebody asks for its dictionary.
            _replace(vars(referrer), old, new)


def _replace(names: dict[Any, Any], old: object, new: object) -> None:
    names.update({name: new for name, value in names.items() if value is old})


def _replaced(values: Iterable[Any], old: object, new: object) -> list[Any]:
    return [new if value is old else value for value in values]
