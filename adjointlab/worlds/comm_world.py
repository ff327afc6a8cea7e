"""Redirection of mpi4py's ``COMM_WORLD`` to the communicator of the run.

User code may communicate over COMM_WORLD rather than over the communicator that it is given. In simulation it would find no
other rank there, because the process is alone in its COMM_WORLD; under MPI it would wait for processes that are not part of the
case. So every method and attribute of mpi4py's communicators is replaced, in the dictionaries of its classes: then it does
not matter how user code has obtained the object. Outside runs they behave as before. The lab's own communicators are of classes
that have the originals (:func:`own_handle`). A datatype packs for the run's communicators as for COMM_SELF. Windows, files and
sessions that include other ranks than the caller are refused. Reduction operations are made by the run. Bound methods that user code
took before (``recv = MPI.COMM_WORLD.recv``) are changed too, wherever they are kept. A function that it took from a class
(``MPI.Comm.recv``) before the replacement is out of reach.

A communicator that was made before the run cannot be redirected, because its ranks are not those of a case: a run refuses it, with
advice. COMM_SELF, and communicators made from it, stay as they are, and so do those of a single process in a job of
several. In a job of one process, a duplicate of COMM_SELF cannot be distinguished from one of COMM_WORLD afterwards, so the lab
records the origin of communicators from the time when it imports subjects (:func:`~adjointlab.worlds.interposition.follow_imports`). ``Abort``
of any communicator is called on that of the run; outside runs, it never ends the process with exit code 0.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MethodType
from typing import Any, Final, TypeVar

from adjointlab.exit_codes import ExitCode
from adjointlab.worlds.call_sites import CallSite, call_site
from adjointlab.worlds.current_run import CurrentRun
from adjointlab.worlds.exit_of_c import allow_exit_of_c
from adjointlab.worlds.local_calls import LocalCalls

__all__ = [
    "MODULE",
    "Redirection",
    "asked_outside_runs",
    "means_comm_world",
    "own_handle",
    "redirection_of",
    "set_members",
]

CommT = TypeVar("CommT")

MODULE: Final = "mpi4py.MPI"

_KINDS: Final = ("Comm", "Intracomm", "Topocomm", "Cartcomm", "Graphcomm", "Distgraphcomm", "Intercomm")

_LOCAL: Final = frozenset(
    {"handle", "info", "py2f", "Get_info", "Set_info", "Get_errhandler", "Set_errhandler", "Call_errhandler"}
)
"""Members that the run's communicators do not have. They are local, so COMM_WORLD's own can be used."""

_SIZES: Final = frozenset({"Get_size", "Get_rank", "size", "rank"})
_ASKED_AT_MOST: Final = 5

_MAKERS: Final = {
    "Win": ("Allocate", "Allocate_shared", "Create", "Create_dynamic"),
    "File": ("Open",),
    "Session": ("Init",),
    "Intracomm": ("Create_from_group",),
}
"""Functions that take a communicator but call none of its methods."""

_PACKERS: Final = ("Pack", "Pack_size", "Unpack")
"""Methods of a datatype that take a communicator. They are local, so COMM_SELF can be used."""

_ALWAYS_OF_ALL: Final = ("Init", "Create_from_group")

_MADE_BEFORE: Final = (
    "{call} on a communicator that was made before the case began: the lab runs the code on other numbers of ranks than this "
    "process has been started with. Make it in a call, when the operator is made, from the communicator that the operator is "
    "given or from MPI.COMM_WORLD; or name the module that makes it when it is imported in the subject's rank_local, and it runs again in "
    "each case"
)


def own_handle(comm: CommT) -> CommT:
    """A handle of `comm` for the lab's own messages: it is never redirected, not even in a run."""
    own: CommT = redirection_of(sys.modules[MODULE]).own(comm)
    return own


def asked_outside_runs() -> tuple[str, ...]:
    """Lines of user code that have read the size or rank of COMM_WORLD outside runs, where it is that of the job."""
    mpi: Any = sys.modules.get(MODULE)
    return () if mpi is None else tuple(redirection_of(mpi).asked)


def means_comm_world(other: object) -> bool:
    """Return True if `other` is mpi4py's COMM_WORLD, which during a run equals the communicator of the run."""
    mpi: Any = sys.modules.get(MODULE)
    return mpi is not None and isinstance(other, mpi.Comm) and other == mpi.COMM_WORLD


@lru_cache(maxsize=1)
def redirection_of(mpi: Any) -> Redirection:
    """The redirection of the communicators of mpi4py's module `mpi`."""
    return Redirection(mpi)


class Redirection:
    """Replacements of the members of mpi4py's communicators, from the first run to the end of the process.

    They are never undone, because CPython stops caching attribute look-ups of a class that has been changed a thousand times.
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
        """Replace the members; only the first call has an effect."""
        if self._is_installed:
            return
        self._is_installed = True
        for kind, members in self._originals.items():
            set_members(
                kind,
                {
                    name: self._method(member, name) if callable(member) else self._attribute(member, name)
                    for name, member in members.items()
                },
            )
        for name, makers in _MAKERS.items():
            kind = getattr(self._mpi, name)
            made = {maker: self._maker(getattr(kind, maker), f"MPI.{name}.{maker}") for maker in makers}
            set_members(kind, {maker: staticmethod(function) for maker, function in made.items()})
        datatype, operation = self._mpi.Datatype, self._mpi.Op
        set_members(datatype, {packer: self._packer(vars(datatype)[packer]) for packer in _PACKERS})
        set_members(operation, {"Create": classmethod(self._operation_maker(operation.Create))})
        self._change_bound_methods()

    def _change_bound_methods(self) -> None:
        """Make all existing bound methods call the replacements."""
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
        """Return `comm` as an object of a class that has the original members."""
        kind = next(base for base in type(comm).__mro__ if base in self._originals)
        if kind not in self._own_kinds:
            members: dict[str, Any] = {"__slots__": (), "__module__": MODULE}
            for base in reversed(kind.__mro__):
                members |= self._originals.get(base, {})
            self._own_kinds[kind] = type(kind.__name__, (kind,), members)
        return self._own_kinds[kind](comm)

    def target(self, comm: Any, name: str) -> Any:
        """The communicator that calls on `comm` are redirected to; None if they are not redirected."""
        if isinstance(comm, LocalCalls):
            return comm  # a communicator of the run, passed to a function of mpi4py's class: `MPI.Comm.Get_rank(comm)`
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
            # MPI reuses the handles of communicators that have been freed.
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
                # User code ends the process before the lab does, so it must not look like a success.
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


def set_members(kind: type, members: Mapping[str, Any]) -> None:
    """Set members of a class defined in C, whose attributes Python code cannot set."""
    # Its __dict__ is a proxy whose only referent is the dictionary. The class's caches must be invalidated.
    (dictionary,) = gc.get_referents(kind.__dict__)
    dictionary.update(members)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def _set_function(method: MethodType, function: Callable[..., Any]) -> None:
    """Make a bound `method` call `function`: the first field of its C structure after the object's header."""
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
        # Class methods defined in C have a type of their own that Python does not name.
        and getattr(getattr(kind, name), "__self__", None) is not kind
    }
