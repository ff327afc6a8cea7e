"""Replacements of mpi4py's names during a run.

**COMM_WORLD** is the communicator of the run (:mod:`adjointlab.worlds.comm_world`).

**Request** completes the requests of the worlds too. ``Request.Waitall`` and similar static methods accept only MPI's own
requests, and wait without limit. So they are replaced, as soon as mpi4py is imported, by functions that pass requests of the worlds to
:class:`adjointlab.MPI.Request`, and all others to mpi4py. ``Wait`` and other methods of a single request are replaced too, for those of
simulated ranks. During a run the name refers to a class of which requests of the worlds are instances, and whose ``Wait`` calls that of
the request that it is given, under MPI too. (Code that has imported the class itself, with ``from mpi4py.MPI import Request``, does not
get that class.)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

from adjointlab import MPI
from adjointlab.worlds.comm_world import MODULE, Redirection, redirection_of, set_members
from adjointlab.worlds.current_run import CurrentRun

__all__ = ["Interposition", "follow_imports"]

_UPPER_CASE: Final = ("Waitall", "Waitany", "Waitsome", "Testall", "Testany", "Testsome")
_REQUEST_METHODS: Final = (*_UPPER_CASE, *map(str.lower, _UPPER_CASE))
_METHODS_OF_ONE: Final = (
    *("Wait", "Test", "Get_status", "Cancel", "Free", "Start"),
    *("wait", "test", "get_status", "cancel"),
)
"""Methods of a single request, which may also be taken from the class: ``map(MPI.Request.Wait, requests)``."""


class Interposition:
    """Context in which mpi4py's names are replaced as described above.

    Importing mpi4py takes time and needs an MPI library, so only user code imports it, perhaps during the run.
    """

    def __init__(self, run: CurrentRun) -> None:
        self._run = run
        self._run_before: CurrentRun | None = None
        self._before: dict[str, Any] = {}
        self._attached: dict[int, object] = {}
        self._finder: _Finder | None = None  # set while mpi4py is not imported yet

    def __enter__(self) -> None:
        if MODULE in sys.modules:
            self._begin()
        else:
            self._finder = _Finder(self._begin)
            sys.meta_path.insert(0, self._finder)

    def __exit__(self, *_: object) -> None:
        if self._finder is not None:
            self._finder.withdraw()
            self._finder = None  # it refers to this object: breaks a reference cycle
        if self._before:
            mpi: Any = sys.modules[MODULE]
            redirection_of(mpi).run = self._run_before
            vars(mpi).update(self._before)

    def _begin(self) -> None:
        mpi: Any = sys.modules[MODULE]
        redirection = _installed()
        # A run may begin within another, in the same process.
        self._run_before = redirection.run
        redirection.run = self._run
        members: dict[str, Any] = {"Attach_buffer": self._attach, "Detach_buffer": self._detach}
        if self._run_before is None:  # else the outer run has replaced these already
            members |= {
                "Request": _for_both(mpi.Request, MPI.Request),
                "Prequest": _for_both(mpi.Prequest, MPI.Prequest),
                "Group": _for_all_groups(mpi.Group),
            }
        self._before = {name: getattr(mpi, name) for name in members}
        vars(mpi).update(members)

    def _attach(self, buf: object) -> None:
        """Pretend to attach a buffer. `Bsend` needs none in a run, and a process, which ranks may share, can have only one."""
        rank = self._run.communicator().Get_rank()
        if rank in self._attached:
            raise MPI.Exception("a buffer is attached already", MPI.ERR_OTHER)
        self._attached[rank] = buf

    def _detach(self) -> object:
        rank = self._run.communicator().Get_rank()
        if rank not in self._attached:
            raise MPI.Exception("no buffer is attached", MPI.ERR_OTHER)
        return self._attached.pop(rank)


def follow_imports() -> None:
    """Replace members of mpi4py's classes as soon as mpi4py is imported, before user code makes communicators."""
    if MODULE in sys.modules:
        _installed()
    elif not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder(_installed))


def _installed() -> Redirection:
    """Install the redirection of mpi4py's communicators, and the functions that complete requests; return the redirection."""
    mpi: Any = sys.modules[MODULE]
    redirection = redirection_of(mpi)
    redirection.install()
    _complete_requests_of_worlds(mpi)
    return redirection


class _Finder(MetaPathFinder):
    """Import hook that calls `imported` when mpi4py has been imported."""

    def __init__(self, imported: Callable[[], object]) -> None:
        self._imported = imported

    def withdraw(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname != MODULE:
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


# Requests


@cache  # once in a process
def _complete_requests_of_worlds(mpi: Any) -> None:
    """Replace the functions of mpi4py's classes that complete requests."""
    for theirs, ours, names in (
        (mpi.Request, MPI.Request, _REQUEST_METHODS),
        (mpi.Prequest, MPI.Prequest, ("Startall",)),
    ):
        methods = {name: _of_either(getattr(ours, name), getattr(theirs, name)) for name in names}
        of_one = {
            name: _of_its_own(vars(theirs)[name], but_of=theirs)
            for name in _METHODS_OF_ONE
            if name in vars(theirs)
        }
        set_members(theirs, of_one | {name: staticmethod(method) for name, method in methods.items()})


@lru_cache(maxsize=4)
def _for_both(theirs: Any, ours: Any) -> Any:
    class EitherKind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, theirs | ours)

    of_one = {name: _of_its_own(getattr(theirs, name)) for name in _METHODS_OF_ONE if hasattr(theirs, name)}
    return EitherKind(theirs.__name__, (theirs,), {"__module__": MODULE, **of_one})


def _of_its_own(theirs: Callable[..., Any], but_of: type | tuple[()] = ()) -> Callable[..., Any]:
    """Return a function that calls mpi4py's method, or, for a request of the worlds, that request's own.

    On a request of the simulated world, mpi4py's method would read invalid memory. Requests of class `but_of` get mpi4py's method,
    because their own may call this function.
    """

    @wraps(theirs)
    def call(request: Any, /, *arguments: Any, **keywords: Any) -> Any:
        if isinstance(request, MPI.Request) and not isinstance(request, but_of):
            return getattr(request, theirs.__name__)(*arguments, **keywords)
        return theirs(request, *arguments, **keywords)

    return call


def _of_either(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(theirs)
    def call(requests: Sequence[Any], *statuses: Any, **keywords: Any) -> Any:
        is_ours = any(isinstance(request, MPI.Request) for request in requests)
        return (ours if is_ours else theirs)(requests, *statuses, **keywords)

    return call


# Groups

_GROUP_METHODS: Final = (
    *("Compare", "Difference", "Excl", "Incl", "Intersect", "Intersection"),
    *("Range_excl", "Range_incl", "Translate_ranks", "Union"),
)


@lru_cache(maxsize=2)
def _for_all_groups(theirs: Any) -> Any:
    """Subclass of mpi4py's Group whose functions, taken from the class, call those of the group that is their first argument."""

    class AnyGroup(type):
        def __instancecheck__(cls, instance: object) -> bool:
            # Duck typing, because the simulated world's class cannot be imported here: only groups have this method.
            return isinstance(instance, theirs) or hasattr(type(instance), "Translate_ranks")

    def of_its_kind(name: str) -> Callable[..., Any]:
        def call(group: Any, *arguments: Any, **keywords: Any) -> Any:
            function = getattr(theirs if isinstance(group, theirs) else type(group), name)
            return function(group, *arguments, **keywords)

        return call

    members = {name: staticmethod(of_its_kind(name)) for name in _GROUP_METHODS}
    return AnyGroup(theirs.__name__, (theirs,), {"__module__": MODULE, **members})
