"""The meaning of mpi4py's names ``COMM_WORLD`` and ``Request`` while ranks of a run live.

**COMM_WORLD** means the communicator of the run. Code that talks over it, past the communicator that it is handed, would meet no
other rank in simulation, where the process is alone in its COMM_WORLD; under MPI it would wait for processes that the case
leaves out. So an object of a class that derives from mpi4py's stands in for it: outside runs it does what COMM_WORLD does, with
the same handle, and in a run it passes every call on. It replaces COMM_WORLD wherever Python refers to it: in mpi4py's module,
in modules and classes that have it under a name of their own, in objects, in defaults of arguments and in closures. A
tuple keeps its own, and so does C code.

A communicator that user code made from COMM_WORLD before is another matter: no case can say which ranks it has. It is refused in
a run, with the sentence that says what to do.

**Request** completes the requests of the worlds too. ``Request.Waitall`` and kin are static methods, refuse what is no request of
MPI, and wait without end. So the name stands for a class whose methods hand requests of the worlds to
:class:`adjointlab.MPI.Request`, and any others to mpi4py untouched. (A class that was imported by itself, with ``from
mpi4py.MPI import Request``, keeps its own.)
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CellType, FunctionType, ModuleType
from typing import Any, Final

from adjointlab import MPI

__all__ = ["Interposition", "own_handle"]

_MODULE: Final = "mpi4py.MPI"

_UPPER_CASE: Final = ("Waitall", "Waitany", "Waitsome", "Testall", "Testany", "Testsome")
_REQUEST_METHODS: Final = (*_UPPER_CASE, *map(str.lower, _UPPER_CASE))


class Interposition:
    """Context in which the names of mpi4py mean what this module says.

    `communicator` returns the communicator of the run that the calling thread is a rank of, and raises in a thread that is no
    rank's. Importing mpi4py takes time and needs a library of MPI, so it is left to user code, which may do so in the run.
    """

    def __init__(self, communicator: Callable[[], Any]) -> None:
        self._communicator = communicator
        self._before: tuple[Any, Callable[[], Any] | None] | None = None
        self._finder = _Finder(self._begin)

    def __enter__(self) -> None:
        if _MODULE in sys.modules:
            self._begin()
        else:
            sys.meta_path.insert(0, self._finder)

    def __exit__(self, *_: object) -> None:
        self._finder.withdraw()
        if self._before is not None:
            mpi: Any = sys.modules[_MODULE]
            mpi.Request, _redirection(mpi).communicator = self._before

    def _begin(self) -> None:
        mpi: Any = sys.modules[_MODULE]
        redirection = _redirection(mpi)
        # A run in simulation may begin in a process of MPI, but none begins within another.
        self._before = mpi.Request, redirection.communicator
        redirection.communicator = self._communicator
        mpi.Request = _for_both(mpi.Request)


class _Finder(MetaPathFinder):
    """Calls `imported` when mpi4py has been imported."""

    def __init__(self, imported: Callable[[], None]) -> None:
        self._imported = imported

    def withdraw(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        self.withdraw()
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_tell(module: ModuleType) -> None:
                execute(module)
                self._imported()

            spec.loader.exec_module = execute_and_tell  # type: ignore[method-assign]
        return spec


def own_handle(comm: Any) -> Any:
    """A handle of `comm`, an intracommunicator, that means it in a run too: for the lab's own messages."""
    return sys.modules[_MODULE].Intracomm(comm)


# Requests


@lru_cache(maxsize=2)
def _for_both(theirs: Any) -> Any:
    class EitherKind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, theirs | MPI.Request)

    forked = {name: staticmethod(_forked(name, getattr(theirs, name))) for name in _REQUEST_METHODS}
    return EitherKind("Request", (theirs,), {"__module__": _MODULE, **forked})


def _forked(name: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
    ours: Callable[..., Any] = getattr(MPI.Request, name)

    def call(requests: Sequence[Any], *statuses: Any, **keywords: Any) -> Any:
        is_ours = any(isinstance(request, MPI.Request) for request in requests)
        return (ours if is_ours else theirs)(requests, *statuses, **keywords)

    return call


# Communicators

_MADE_BEFORE: Final = (
    "{call} on a communicator that was made before the case began, from MPI.COMM_WORLD: the lab runs the code on other numbers "
    "of ranks than this process has been started with. Make it from the communicator that the operator is given, or from "
    "MPI.COMM_WORLD in a call, when the operator is made"
)


@lru_cache(maxsize=1)
def _redirection(mpi: Any) -> _Redirection:
    return _Redirection(mpi)


class _Redirection:
    """The objects that stand in for mpi4py's communicators from the first run to the end of the process.

    They stay, because user code may have taken references to them. `communicator` is None outside runs.
    """

    def __init__(self, mpi: Any) -> None:
        self.communicator: Callable[[], Any] | None = None
        self._mpi = mpi
        self._classes: dict[type, type] = {}
        world = mpi.COMM_WORLD
        self._world = own_handle(world)
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
        if comm is self.world or self._mpi.Comm.__eq__(comm, self._world):
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
        elif issubclass(
            type(known), type
        ):  # not isinstance, which asks objects that are imported at the first question
            # By name, because the interpreter caches the attributes of classes.
            for name in _names(vars(known), old):
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
    names.update(dict.fromkeys(_names(names, old), new))


def _names(names: Mapping[Any, Any], old: object) -> list[Any]:
    return [name for name, value in names.items() if value is old]


def _replaced(values: Iterable[Any], old: object, new: object) -> list[Any]:
    return [new if value is old else value for value in values]
