"""Failures by what simulated ranks share, as threads of one process, or have not; and by what modules keep from earlier cases or the job."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import CellType, FunctionType, ModuleType
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from adjointlab.checks.verdict import Verdict
from adjointlab.engine.subject import Subject
from adjointlab.quantities import counted
from adjointlab.typing import Communicator
from adjointlab.worlds.comm_world import asked_outside_runs
from adjointlab.worlds.module_state import CachedFunction, ModuleState
from adjointlab.worlds.modules_run_again import after_imports, imports, uses_comm_world
from adjointlab.worlds.run import FindingKind

__all__ = ["note_state", "with_line_on_fewer_ranks", "with_lines_on_exceptions", "with_module_state"]

_MOST_NAMED: Final = 5
_LOOKED_AFTER: Final = {"adjointlab", "numpy", "torch"}
"""Packages whose state the worlds know, and give each rank for itself where it needs one."""

_NOT_OF_RANKS: Final = (
    _LOOKED_AFTER
    | sys.stdlib_module_names
    | {"array_api_compat", "cupy", "hypothesis", "jax", "jaxlib", "mpi4py", "pytest", "scipy", "triton"}
)
"""Packages that a subject's module imports without their state being that of a rank: it is not looked through."""

_ON_THREADS: Final = (
    "simulated ranks are threads, and none of them the main one, which has imported the module: what Python binds to a thread, such as a "
    "signal handler, an event loop or a value of threading.local, is missing here and may be there on real ranks"
)
_ON_THE_ENVIRONMENT: Final = (
    "simulated ranks are threads of one process, and have no environment variables of their own: ask the communicator or dist.get_rank() "
    "for the rank of a case, which need not be that of the job under a launcher either"
)
_ON_COMPILED_CODE: Final = (
    "the communicator of a case has the methods of mpi4py's, and is none that compiled code takes: neither mpi4py.util.pkl5 nor a class that is "
    "derived from mpi4py's is made of one, so call its own methods"
)
_ON_THE_ORDER: Final = (
    "functions are called with the communicator of the case first, as forward(comm, x), and a torch.autograd.Function with it after the "
    "tensors, as apply(x, comm)"
)
_OF_A_TENSOR: Final = re.compile(
    r"AttributeError: '(?:numpy\.ndarray|Tensor)' object has no attribute '(\w+)'"
)
_OF_A_COMMUNICATOR: Final = re.compile(
    r"TypeError: (?!.*unhashable).*\b(?:Communicator|Guarded\w*comm)\b|AttributeError: the \w+ communicator has no '(\w+)'",
    re.IGNORECASE,
)
_IN_EXCEPTIONS: Final = {"expected mpi4py.MPI.": _ON_COMPILED_CODE}
"""Lines by what an exception speaks of."""

_OF_SIMULATED_RANKS: Final = {
    "thread": _ON_THREADS,
    **dict.fromkeys(("RANK'", "WORLD_SIZE'", "MASTER_ADDR'", "MASTER_PORT'"), _ON_THE_ENVIRONMENT),
}
"""Those of simulated ranks alone; KeyErrors end in the name of what is missing."""


def _are_in_other_order(headline: str) -> bool:
    """Return True for an error of a tensor that is asked for a method of communicators, or of a communicator that is taken for a tensor."""
    if asked := _OF_A_TENSOR.search(headline):
        return hasattr(Communicator, asked[1])
    if asked := _OF_A_COMMUNICATOR.search(headline):
        tensors = (np.ndarray, getattr(sys.modules.get("torch"), "Tensor", None))
        name = asked[1]
        # `split` is perhaps meant as `Split`.
        return name is None or (
            any(hasattr(kind, name) for kind in tensors) and not hasattr(Communicator, name.capitalize())
        )
    return False


def with_lines_on_exceptions(verdict: Verdict, *, is_simulated: bool) -> Verdict:
    """Return a failing verdict with a line on what ranks of a case lack, if one has raised what speaks of it."""
    if not verdict.kind.startswith("raised "):
        return verdict
    words = _IN_EXCEPTIONS | (_OF_SIMULATED_RANKS if is_simulated else {})
    lines = dict.fromkeys(line for word, line in words.items() if word in verdict.headline)
    if not lines and _are_in_other_order(verdict.headline):
        lines[_ON_THE_ORDER] = None
    return verdict.with_lines(*(("perhaps", line) for line in lines))


class Explained(NamedTuple):
    """A verdict, and whether what modules keep has been seen to be the cause."""

    verdict: Verdict
    is_of_state: bool


def with_module_state(
    verdict: Verdict, subject: Subject, passes: Callable[[Subject], bool], *, on_several_ranks: bool
) -> Explained:
    """Return a failing verdict on simulated ranks with a line on what modules keep, from earlier cases or for all ranks together.

    `passes` runs the failing case of a subject that is declared otherwise, and returns True if it passes.
    """
    modules = dict(_modules(subject))
    may_be_of_import = on_several_ranks or verdict.kind == FindingKind.PAST_THE_RUN
    if may_be_of_import and (told := _run_at_import(modules, subject, passes)):
        return Explained(verdict.with_lines(("perhaps", told)), is_of_state=True)
    kept = ""
    for holders in (modules, dict(_imported_packages(modules.values()))):
        kept = kept or _kept_state(holders, subject, passes, on_several_ranks=on_several_ranks)
    asked = _asked_at_import(modules, subject, _OF_THIS_PROCESS) if on_several_ranks else ()
    lines = [*asked, *([kept] if kept else [])]
    return Explained(verdict.with_lines(*(("perhaps", line) for line in lines)), is_of_state=bool(kept))


def with_line_on_fewer_ranks(verdict: Verdict, subject: Subject, ranks: int, of_job: int) -> Verdict:
    """Return a failing verdict on real ranks with a line on what modules have asked COMM_WORLD, if the case has fewer ranks than the job."""
    if ranks == of_job:
        return verdict
    told = _OF_THE_JOB.format(of_job=counted(of_job, "rank"), ranks=ranks)
    asked = _asked_at_import(dict(_modules(subject)), subject, told)
    return verdict.with_lines(*(("perhaps", line) for line in asked))


def _run_at_import(
    modules: dict[str, ModuleType], subject: Subject, passes: Callable[[Subject], bool]
) -> str:
    """A line on modules that use COMM_WORLD when they are imported, if the case passes where they run again on each rank."""
    if "mpi4py.MPI" not in sys.modules:
        return ""  # without reading the sources of whole packages
    packages = {each.partition(".")[0] for name in modules for each in imports(name)}
    near = (*modules.values(), *(sys.modules[package] for package in packages if package in sys.modules))
    names: tuple[str, ...] = ()
    for name in after_imports(modules, partial(_is_followed, near=near)):
        # What imports one of these may have taken numbers of it.
        if uses_comm_world(name) or not set(names).isdisjoint(imports(name)):
            names += (name,)
    users = [name for name in names if uses_comm_world(name)]
    # In this order, whatever order the subject has them in.
    rank_local = tuple(dict.fromkeys((*names, *subject.rank_local)))
    if not users or rank_local == subject.rank_local or not passes(replace(subject, rank_local=rank_local)):
        return ""
    return (
        f"MPI.COMM_WORLD is that of this process when {' and '.join(users)} is imported: the case passes with "
        f"rank_local={list(rank_local)} in the subject's declaration, with which code outside functions and classes runs again on each rank"
    )


def _is_followed(name: str, near: Iterable[ModuleType]) -> bool:
    file = getattr(sys.modules.get(name), "__file__", None)
    return bool(file) and name.partition(".")[0] not in _NOT_OF_RANKS and _is_beside(Path(file or ""), near)


def _modules(subject: Subject) -> Iterator[tuple[str, ModuleType]]:
    """The modules of the subject and of what it checks, by name."""
    parts = (subject.draws, subject.target, *subject.pair)
    for name in dict.fromkeys((subject.declared_in, *(getattr(part, "__module__", "") for part in parts))):
        module = sys.modules.get(name or "")
        if module is not None and name.partition(".")[0] not in _LOOKED_AFTER:
            yield name, module


def _imported_packages(modules: Iterable[ModuleType]) -> Iterator[tuple[str, ModuleType]]:
    """The packages of which these modules have imported modules, functions or classes, by name."""
    origins = (origin for module in modules for origin in _origins(module))
    for name in dict.fromkeys(origin.partition(".")[0] for origin in origins):
        package = sys.modules.get(name)
        if package is not None:
            yield name, package


def _origins(module: ModuleType) -> Iterator[str]:
    """The names of modules that this one has imported, or has functions or classes of, but for those whose state is not that of a rank."""
    for value in list(vars(module).values()):
        if not issubclass(type(value), (ModuleType, FunctionType, type, CachedFunction)):
            continue
        origin = str(value.__name__ if issubclass(type(value), ModuleType) else value.__module__)
        if origin.partition(".")[0] not in _NOT_OF_RANKS:
            yield origin


_OF_THIS_PROCESS: Final = "of this process, of which simulated ranks are threads"
_OF_THE_JOB: Final = "of the job, which has {of_job}, and this case has {ranks}"
_RANK_LOCAL: Final = "ask the communicator that the operator is given, when it is made, or name the module that asks in the subject's rank_local"
_DEFINED: Final = (
    "code there runs again on each rank, for rank_local names the module, but not what functions and classes took when they were made, as defaults "
    "of arguments, attributes of a class or variables of an enclosing function: let their code read variables of the module, and name modules that "
    "have imported its variables after it"
)


def _asked_at_import(modules: dict[str, ModuleType], subject: Subject, whose: str) -> Iterator[str]:
    near = (*modules.values(), *(package for _, package in _imported_packages(modules.values())))
    run_again = {module.__file__: module for name in subject.rank_local if (module := sys.modules.get(name))}
    named: dict[str, list[str]] = {}
    for site in asked_outside_runs():
        file = site.rpartition(":")[0]
        if not _is_beside(Path(file), near):
            continue
        if file not in run_again:
            named.setdefault(_RANK_LOCAL, []).append(site)
        elif _have_taken_numbers(run_again[file]):
            named.setdefault(_DEFINED, []).append(site)
    for advice, sites in named.items():
        yield (
            f"MPI.COMM_WORLD was asked for its size or rank outside of all cases, at {', '.join(sites)}: there it is that {whose}; {advice}"
        )


def _have_taken_numbers(module: ModuleType) -> bool:
    """Return True if functions or classes of a module have integers that they took when they were made, as ranks and sizes are."""
    taken: list[object] = []
    for value in list(vars(module).values()):
        if issubclass(type(value), FunctionType):
            taken += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
            taken += [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
        elif issubclass(type(value), type) and value.__module__ == module.__name__:
            taken += [each for name, each in vars(value).items() if not name.startswith("__")]
    return any(type(each) is int for each in taken)


def _is_beside(file: Path, modules: Iterable[ModuleType]) -> bool:
    """Return True for a file of one of these packages, or in the folder of one of these modules.

    Modules take what another has asked as plain numbers (`from parallel import rank`), which do not show where they come from.
    """
    for module in modules:
        folders = list(vars(module).get("__path__", ()))  # of a package, which may have no file
        if any(file.is_relative_to(folder) for folder in folders):
            return True
        if not folders and file.parent == Path(vars(module).get("__file__") or "").parent:
            return True
    return False


_STATES: Final[WeakKeyDictionary[ModuleType, ModuleState]] = WeakKeyDictionary()
"""State of modules of subjects, and of packages that they import, before the first case of this process that ran code of theirs."""


def note_state(subject: Subject) -> None:
    """Note what the modules of a subject and the packages that they import hold, unless that was done before an earlier case.

    Called before the first one.
    """
    modules = dict(_modules(subject))
    for name, module in (*modules.items(), *_imported_packages(modules.values())):
        if module not in _STATES:
            _STATES[module] = ModuleState([name])


def _kept_state(
    modules: dict[str, ModuleType],
    subject: Subject,
    passes: Callable[[Subject], bool],
    *,
    on_several_ranks: bool,
) -> str:
    packages = tuple(f"{package}." for package in subject.rank_local)
    states = {
        name: _STATES[module]
        for name, module in sorted(modules.items())
        if module in _STATES and not f"{name}.".startswith(packages)
    }
    kept = {name: names for name, state in states.items() if (names := state.kept())}
    if not kept:
        return ""

    def passes_from_the_start(holders: Collection[str], *, apart: bool) -> bool:
        with ExitStack() as stack:
            for name in holders:
                stack.enter_context(states[name].put_back())
            return passes(replace(subject, rank_local=(*subject.rank_local, *holders)) if apart else subject)

    # What passes without is kept from an earlier case, as processes keep it too.
    if passes_from_the_start(kept, apart=False):
        named = _named(kept.values())
        return (
            f"earlier cases have left something in {named}: the case passes with that as it was before the first one, and so may a replay "
            "while the fault is there"
        )
    if not on_several_ranks or not passes_from_the_start(kept, apart=True):
        return ""
    if len(kept) > 1:  # many packages keep something that has nothing to do with the failure
        kept = next(({name: kept[name]} for name in kept if passes_from_the_start([name], apart=True)), kept)
    return (
        f"simulated ranks share what is kept in {_named(kept.values())}, where processes have their own: the case passes with "
        f"rank_local={list(kept)} in the subject's declaration, which gives each rank its own"
    )


def _named(kept: Iterable[Sequence[str]]) -> str:
    names = list(dict.fromkeys(name for names in kept for name in names))
    return ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")
