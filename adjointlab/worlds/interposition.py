"""The meaning of mpi4py's ``COMM_WORLD`` and ``Request`` while ranks of a run live.

**COMM_WORLD** means the communicator of the run. Code that talks over it, past the communicator that it is handed, would meet no
other rank in simulation, where the process is alone in its COMM_WORLD; under MPI it would wait for processes that the case
leaves out. So every method and attribute of mpi4py's communicators is replaced, in the dictionaries of its classes: then it does
not matter how user code has come by the object. Outside runs they do what they did. The lab's own communicators are of classes
that have the originals (:func:`own_handle`). A datatype packs for the run's communicators as for COMM_SELF. Windows, files and
sessions of other ranks than the caller are refused. Reduction operations are made by the run. Bound methods that user code took
before (``recv = MPI.COMM_WORLD.recv``) are changed too, wherever they are kept; not reached is a function that it took from a class
(``MPI.Comm.recv``) before it was replaced.

A communicator that was made before the run is another matter: no case can say which ranks it has. It is refused in a run, with
the sentence that says what to do. COMM_SELF, and what is made from it, stay as they are, and so does one of a single process where
the job has several. In a job of one process nothing tells a duplicate of COMM_SELF from one of COMM_WORLD afterwards: so the lab
follows what is made from the time when it imports subjects (:func:`follow_imports`). ``Abort`` of any communicator is a call on
that of the run, and outside runs it does not end the process with 0.

**Request** completes the requests of the worlds too. ``Request.Waitall`` and kin are static methods, refuse what is no request of
MPI, and wait without end. So they are replaced too, by functions that hand requests of the worlds to
:class:`adjointlab.MPI.Request`, and any others to mpi4py untouched. In a run the name stands for a class of which requests of the
worlds are instances, and whose ``Wait`` and other methods of one request are those of the request that they are given. (A class
that was imported by itself, with ``from mpi4py.MPI import Request``, has neither.)
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import MethodType, ModuleType
from typing import Any, Final, NoReturn, Protocol, TypeVar

from adjointlab import MPI
from adjointlab.exit_codes import ExitCode
from adjointlab.worlds.call_sites import CallSite, call_site
from adjointlab.worlds.exit_of_c import allow_exit_of_c
from adjointlab.worlds.local_calls import LocalCalls
from adjointlab.worlds.run import FindingKind

__all__ = [
    "CurrentRun",
    "Interposition",
    "NotedRefusals",
    "asked_outside_runs",
    "follow_imports",
    "means_comm_world",
    "own_handle",
]

CommT = TypeVar("CommT")

_MODULE: Final = "mpi4py.MPI"

_UPPER_CASE: Final = ("Waitall", "Waitany", "Waitsome", "Testall", "Testany", "Testsome")
_REQUEST_METHODS: Final = (*_UPPER_CASE, *map(str.lower, _UPPER_CASE))

_METHODS_OF_ONE: Final = (
    "Wait",
    "Test",
    "Get_status",
    "Cancel",
    "Free",
    "Start",
    "wait",
    "test",
    "get_status",
    "cancel",
)
"""Methods of one request, which a class may be asked for too: ``map(MPI.Request.Wait, requests)``."""


class CurrentRun(Protocol):
    """The run that ranks live in."""

    def communicator(self) -> Any:
        """The communicator of the run, of the rank that the calling thread is; raises in a thread that is no rank's."""

    def refuse(self, reason: str, kind: FindingKind = FindingKind.PAST_THE_RUN) -> NoReturn:
        """Raise, and let the run not pass for a good one even if user code catches that. The finding is of that `kind`."""

    def operation(self, kind: Any, create: Callable[..., Any], function: Any, commute: bool) -> Any:
        """A reduction operation of user code: an object of `kind`, mpi4py's class, which its `create` would make."""


class NotedRefusals:
    """A run that notes its refusals for the case, in a list that it is given."""

    def __init__(self, noted: list[str]) -> None:
        self._noted = noted

    def refuse(self, reason: str, kind: FindingKind = FindingKind.PAST_THE_RUN) -> NoReturn:
        """Raise, and note it."""
        self._noted.append(reason)
        raise RuntimeError(reason)

    def operation(self, kind: Any, create: Callable[..., Any], function: Any, commute: bool) -> Any:
        """That of mpi4py; where it has no room for more, the error says why."""
        try:
            return create(function, commute)
        except RuntimeError as error:
            error.add_note(_OPERATIONS_KEPT)
            raise


class Interposition:
    """Context in which the names of mpi4py mean what this module says.

    Importing mpi4py takes time and needs a library of MPI, so it is left to user code, which may do so in the run.
    """

    def __init__(self, run: CurrentRun) -> None:
        self._run = run
        self._run_before: CurrentRun | None = None
        self._before: dict[str, Any] = {}
        self._attached: dict[int, object] = {}
        self._finder: _Finder | None = None  # of an import that is to come

    def __enter__(self) -> None:
        if _MODULE in sys.modules:
            self._begin()
        else:
            self._finder = _Finder(self._begin)
            sys.meta_path.insert(0, self._finder)

    def __exit__(self, *_: object) -> None:
        if self._finder is not None:
            self._finder.withdraw()
            self._finder = None  # it refers to this object: a cycle would wait for a garbage collection
        if self._before:
            mpi: Any = sys.modules[_MODULE]
            _redirection(mpi).run = self._run_before
            vars(mpi).update(self._before)

    def _begin(self) -> None:
        mpi: Any = sys.modules[_MODULE]
        redirection = _redirection(mpi)
        # A run may begin within another, in the same process.
        self._run_before = redirection.run
        redirection.run = self._run
        redirection.install()
        members: dict[str, Any] = {"Attach_buffer": self._attach, "Detach_buffer": self._detach}
        if self._run_before is None:  # else the run around this one has replaced these
            members |= {
                "Request": _for_both(mpi.Request, MPI.Request),
                "Prequest": _for_both(mpi.Prequest, MPI.Prequest),
                "Group": _for_all_groups(mpi.Group),
            }
        self._before = {name: getattr(mpi, name) for name in members}
        vars(mpi).update(members)

    def _attach(self, buf: object) -> None:
        """Have a buffer for `Bsend`, which needs none in a run: of the process there could be one alone."""
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
    """Replace the members of mpi4py's communicators as soon as mpi4py is imported, before user code makes communicators."""
    if _MODULE in sys.modules:
        _redirection(sys.modules[_MODULE]).install()
    elif not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder(lambda: _redirection(sys.modules[_MODULE]).install()))


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


# Requests


@lru_cache(maxsize=4)
def _for_both(theirs: Any, ours: Any) -> Any:
    class EitherKind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, theirs | ours)

    of_one = {
        name: _of_its_own(name, getattr(theirs, name)) for name in _METHODS_OF_ONE if hasattr(theirs, name)
    }
    return EitherKind(theirs.__name__, (theirs,), {"__module__": _MODULE, **of_one})


def _of_its_own(name: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
    """The method of the request that is given: mpi4py's reads memory that a request of the simulated world does not have."""

    def call(request: Any, *arguments: Any, **keywords: Any) -> Any:
        if isinstance(request, MPI.Request):
            return getattr(request, name)(*arguments, **keywords)
        return theirs(request, *arguments, **keywords)

    return call


def _of_either(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
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
    """mpi4py's class, whose functions, called by the class, are those of the group that they are given first."""

    class AnyGroup(type):
        def __instancecheck__(cls, instance: object) -> bool:
            # Nothing but a group translates ranks; that of the simulated world is not known here.
            return isinstance(instance, theirs) or hasattr(type(instance), "Translate_ranks")

    def of_its_kind(name: str) -> Callable[..., Any]:
        def call(group: Any, *arguments: Any, **keywords: Any) -> Any:
            function = getattr(theirs if isinstance(group, theirs) else type(group), name)
            return function(group, *arguments, **keywords)

        return call

    members = {name: staticmethod(of_its_kind(name)) for name in _GROUP_METHODS}
    return AnyGroup(theirs.__name__, (theirs,), {"__module__": _MODULE, **members})


# Communicators

_KINDS: Final = ("Comm", "Intracomm", "Topocomm", "Cartcomm", "Graphcomm", "Distgraphcomm", "Intercomm")

_LOCAL: Final = frozenset(
    {"handle", "info", "py2f", "Get_info", "Set_info", "Get_errhandler", "Set_errhandler", "Call_errhandler"}
)
"""Members that the run's communicators do not have, and that need no other rank: COMM_WORLD's own are as good."""

_SIZES: Final = frozenset({"Get_size", "Get_rank", "size", "rank"})
_ASKED_AT_MOST: Final = 5

_MAKERS: Final = {
    "Win": ("Allocate", "Allocate_shared", "Create", "Create_dynamic"),
    "File": ("Open",),
    "Session": ("Init",),
    "Intracomm": ("Create_from_group",),
}
"""Functions that make something of a communicator without calling it."""

_PACKERS: Final = ("Pack", "Pack_size", "Unpack")
"""Functions of a datatype that take a communicator and ask no other rank: COMM_SELF is as good."""

_ALWAYS_OF_ALL: Final = ("Init", "Create_from_group")

_OPERATIONS_KEPT: Final = (
    "mpi4py has room for few operations in a process, and a check makes many operators: make the operation once, where its module is "
    "imported, or free it when the operator goes"
)

_MADE_BEFORE: Final = (
    "{call} on a communicator that was made before the case began: the lab runs the code on other numbers of ranks than this "
    "process has been started with. Make it in a call, when the operator is made, from the communicator that the operator is "
    "given or from MPI.COMM_WORLD"
)


def own_handle(comm: CommT) -> CommT:
    """A handle of `comm` for the lab's own messages, which means the same communicator in a run too."""
    own: CommT = _redirection(sys.modules[_MODULE]).own(comm)
    return own


def asked_outside_runs() -> tuple[str, ...]:
    """Lines of user code that have asked COMM_WORLD for its size or rank outside of runs, where it is that of the job."""
    mpi: Any = sys.modules.get(_MODULE)
    return () if mpi is None else tuple(_redirection(mpi).asked)


def means_comm_world(other: object) -> bool:
    """Return True if `other` is mpi4py's COMM_WORLD, which equals the communicator of the run in a run."""
    mpi: Any = sys.modules.get(_MODULE)
    return mpi is not None and isinstance(other, mpi.Comm) and other == mpi.COMM_WORLD


@lru_cache(maxsize=1)
def _redirection(mpi: Any) -> _Redirection:
    return _Redirection(mpi)


class _Redirection:
    """Replacements of the members of mpi4py's communicators, from the first run to the end of the process.

    It is not undone, because CPython gives a class that has been changed a thousand times no version for its caches any more.
    `run` is None outside runs.
    """

    def __init__(self, mpi: Any) -> None:
        self.run: CurrentRun | None = None
        self._mpi = mpi
        self.asked: dict[str, None] = {}  # lines of user code, in order
        self._is_installed = False
        self._own_kinds: dict[type, type] = {}
        self._made_of_self: set[int] = set()  # handles of communicators that come from COMM_SELF
        self._originals = {kind: _members(kind) for kind in (getattr(mpi, name) for name in _KINDS)}
        self._handle: Callable[[Any], int] = self._originals[mpi.Comm]["handle"].__get__

    def install(self) -> None:
        """Replace the members, at the first call."""
        if self._is_installed:
            return
        self._is_installed = True
        for kind, members in self._originals.items():
            _set_members(
                kind,
                {
                    name: self._method(member, name) if callable(member) else self._attribute(member, name)
                    for name, member in members.items()
                },
            )
        for name, makers in _MAKERS.items():
            kind = getattr(self._mpi, name)
            made = {maker: self._maker(getattr(kind, maker), f"MPI.{name}.{maker}") for maker in makers}
            _set_members(kind, {maker: staticmethod(function) for maker, function in made.items()})
        datatype, operation = self._mpi.Datatype, self._mpi.Op
        _set_members(datatype, {packer: self._packer(vars(datatype)[packer]) for packer in _PACKERS})
        _set_members(operation, {"Create": classmethod(self._operation_maker(operation.Create))})
        for theirs, ours, names in (
            (self._mpi.Request, MPI.Request, _REQUEST_METHODS),
            (self._mpi.Prequest, MPI.Prequest, ("Startall",)),
        ):
            methods = {name: _of_either(getattr(ours, name), getattr(theirs, name)) for name in names}
            _set_members(theirs, {name: staticmethod(method) for name, method in methods.items()})
        self._change_bound_methods()

    def _change_bound_methods(self) -> None:
        """Have the bound methods that there are call the replacements."""
        replacements = {
            id(member): vars(kind)[name]
            for kind, members in self._originals.items()
            for name, member in members.items()
            if callable(member)
        }
        own_kinds = set(self._own_kinds.values())
        for each in gc.get_objects():
            if type(each) is MethodType and type(each.__self__) not in own_kinds:
                replacement = replacements.get(id(each.__func__))
                if replacement is not None:
                    _set_function(each, replacement)

    def own(self, comm: Any) -> Any:
        """`comm` as an object of a class that has the original members."""
        kind = next(base for base in type(comm).__mro__ if base in self._originals)
        if kind not in self._own_kinds:
            members: dict[str, Any] = {"__slots__": (), "__module__": _MODULE}
            for base in reversed(kind.__mro__):
                members |= self._originals.get(base, {})
            self._own_kinds[kind] = type(kind.__name__, (kind,), members)
        return self._own_kinds[kind](comm)

    def target(self, comm: Any, name: str) -> Any:
        """The communicator that `comm` means now; None if it means itself."""
        if isinstance(comm, LocalCalls):
            return comm  # one of the run, of which a function of mpi4py's class is called: `MPI.Comm.Get_rank(comm)`
        if self.run is None:
            if name in _SIZES and len(self.asked) < _ASKED_AT_MOST and comm == self._mpi.COMM_WORLD:
                self._note_asked(call_site())
            return None
        mpi = self._mpi
        if comm == mpi.COMM_WORLD:
            return None if name in _LOCAL else self.run.communicator()
        if name == "Abort":
            return self.run.communicator()
        if comm in (mpi.COMM_SELF, mpi.COMM_NULL) or self._handle(comm) in self._made_of_self:
            return None
        if self._is_of_one_process_among_several(comm):
            return None
        self.run.refuse(_MADE_BEFORE.format(call=name))

    def _note_asked(self, site: CallSite) -> None:
        if not site.is_lab:
            self.asked[str(site)] = None

    def _is_of_one_process_among_several(self, comm: Any) -> bool:
        size = self._originals[self._mpi.Comm]["Get_size"]
        return not isinstance(comm, self._mpi.Intercomm) and size(comm) == 1 < size(self._mpi.COMM_WORLD)

    def _note_origin(self, comm: Any, made: Any) -> None:
        if comm == self._mpi.COMM_SELF or self._handle(comm) in self._made_of_self:
            self._made_of_self.add(self._handle(made))
        else:
            # MPI uses the handle of a communicator that has been freed again.
            self._made_of_self.discard(self._handle(made))

    def _method(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(comm: Any, /, *arguments: Any, **keywords: Any) -> Any:
            target = self.target(comm, name)
            if target is not None:
                return getattr(target, name)(*arguments, **keywords)
            result = original(comm, *arguments, **keywords)
            if isinstance(result, self._mpi.Comm):
                self._note_origin(comm, result)
            return result

        def abort(comm: Any, errorcode: int = 0) -> Any:
            if self.run is None:
                # User code ends the process before it has earned a 0.
                allow_exit_of_c()
                errorcode = errorcode or ExitCode.UNJUDGED
            return call(comm, errorcode)

        replacement = abort if name == "Abort" else call
        replacement.__name__, replacement.__doc__ = name, original.__doc__
        return replacement

    def _maker(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def make(*arguments: Any, **keywords: Any) -> Any:
            kinds = (self._mpi.Comm, LocalCalls)
            given = [each for each in (*arguments, *keywords.values()) if isinstance(each, kinds)]
            is_local = all(comm == self._mpi.COMM_SELF for comm in given) and not name.endswith(
                _ALWAYS_OF_ALL
            )
            if self.run is not None and not is_local:
                self.run.refuse(
                    f"{name} in a case would be of the processes of the job, which are not the ranks of the case: use messages or "
                    "collectives on the communicator that the operator is given"
                )
            return original(*arguments, **keywords)

        return make

    def _operation_maker(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create(kind: Any, /, function: Any, commute: bool = False) -> Any:
            if self.run is None:
                return original(function, commute)
            return self.run.operation(self._mpi.Op, original, function, commute)

        create.__name__, create.__doc__ = "Create", original.__doc__
        return create

    def _packer(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def own(argument: Any) -> Any:
            return self._mpi.COMM_SELF if isinstance(argument, LocalCalls) else argument

        def call(datatype: Any, /, *arguments: Any, **keywords: Any) -> Any:
            return original(
                datatype, *map(own, arguments), **{name: own(each) for name, each in keywords.items()}
            )

        call.__name__, call.__doc__ = original.__name__, original.__doc__
        return call

    def _attribute(self, original: Any, name: str) -> property:
        def read(comm: Any) -> Any:
            target = self.target(comm, name)
            return original.__get__(comm) if target is None else getattr(target, name)

        def write(comm: Any, value: Any) -> None:
            target = self.target(comm, name)
            if target is None:
                original.__set__(comm, value)
            else:
                setattr(target, name, value)

        return property(read, write, doc=original.__doc__)


def _set_members(kind: type, members: Mapping[str, Any]) -> None:
    """Set members of a class that is made in C, of which Python code cannot set attributes."""
    # The proxy that is its __dict__ refers to the dictionary alone; the class's caches have to be told.
    (dictionary,) = gc.get_referents(kind.__dict__)
    dictionary.update(members)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def _set_function(method: MethodType, function: Callable[..., Any]) -> None:
    """Have a bound `method` call `function`. Its first field in C, after those of every object, refers to what it calls."""
    field = ctypes.c_void_p.from_address(id(method) + object.__basicsize__)
    before = method.__func__
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(function))
    field.value = id(function)
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(before))


def _members(kind: type) -> dict[str, Any]:
    """The public methods and attributes that `kind` itself defines; not its class methods, which need no communicator."""
    return {
        name: member
        for name, member in vars(kind).items()
        if not name.startswith("_")
        and not isinstance(member, classmethod | staticmethod)
        # In C, a class method is of a type that Python has no name for.
        and getattr(getattr(kind, name), "__self__", None) is not kind
    }
