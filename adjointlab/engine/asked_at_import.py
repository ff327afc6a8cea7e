"""Failures because modules use COMM_WORLD when they are imported, when it is that of the process or job, not of a case."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import CellType, FunctionType, ModuleType
from typing import Final

from adjointlab.checks.verdict import Verdict
from adjointlab.engine.modules_of_subjects import NOT_OF_RANKS, imported_packages, modules_of
from adjointlab.engine.subject import Subject
from adjointlab.quantities import counted
from adjointlab.worlds.comm_world import asked_outside_runs
from adjointlab.worlds.modules_run_again import after_imports, imports, uses_comm_world

__all__ = ["OF_THIS_PROCESS", "line_on_running_again", "lines_on_asking", "with_line_on_fewer_ranks"]

OF_THIS_PROCESS: Final = "of this process, of which simulated ranks are threads"
_OF_THE_JOB: Final = "of the job, which has {of_job}, and this case has {ranks}"
_RANK_LOCAL: Final = "ask the communicator that the operator is given, when it is made, or name the module that asks in the subject's rank_local"
_DEFINED: Final = (
    "rank_local names the module, so its code runs again on each rank, but functions and classes keep values that they stored when they were "
    "defined, as defaults of arguments, class attributes or variables of an enclosing function: let their code read variables of the module, and "
    "name modules that import its variables after it"
)


def with_line_on_fewer_ranks(verdict: Verdict, subject: Subject, ranks: int, of_job: int) -> Verdict:
    """Return a failing verdict on real ranks with a line on modules that asked COMM_WORLD, if the case has fewer ranks than the job."""
    if ranks == of_job:
        return verdict
    whose = _OF_THE_JOB.format(of_job=counted(of_job, "rank"), ranks=ranks)
    asked = lines_on_asking(dict(modules_of(subject)), subject, whose)
    return verdict.with_lines(*(("perhaps", line) for line in asked))


def line_on_running_again(
    modules: dict[str, ModuleType], subject: Subject, passes: Callable[[Subject], bool]
) -> str:
    """A line on modules that use COMM_WORLD when they are imported, if the case passes when they run again on each rank."""
    if "mpi4py.MPI" not in sys.modules:
        return ""  # saves reading the sources of whole packages
    packages = {each.partition(".")[0] for name in modules for each in imports(name)}
    near = (*modules.values(), *(sys.modules[package] for package in packages if package in sys.modules))
    names: tuple[str, ...] = ()
    for name in after_imports(modules, partial(_is_followed, near=near)):
        # A module that imports one of these may have copied numbers from it.
        if uses_comm_world(name) or not set(names).isdisjoint(imports(name)):
            names += (name,)
    users = [name for name in names if uses_comm_world(name)]
    # In the order of imports, whatever order the subject has them in.
    rank_local = tuple(dict.fromkeys((*names, *subject.rank_local)))
    if not users or rank_local == subject.rank_local or not passes(replace(subject, rank_local=rank_local)):
        return ""
    return (
        f"MPI.COMM_WORLD is that of this process when {' and '.join(users)} is imported: the case passes with "
        f"rank_local={list(rank_local)} in the subject's declaration, with which code outside functions and classes runs again on each rank"
    )


def _is_followed(name: str, near: Iterable[ModuleType]) -> bool:
    file = getattr(sys.modules.get(name), "__file__", None)
    return bool(file) and name.partition(".")[0] not in NOT_OF_RANKS and _is_beside(Path(file or ""), near)


def lines_on_asking(modules: dict[str, ModuleType], subject: Subject, whose: str) -> Iterator[str]:
    """Lines on modules that asked COMM_WORLD for its size or rank outside of cases; `whose` describes that COMM_WORLD."""
    near = (*modules.values(), *(package for _, package in imported_packages(modules.values())))
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
    """Return True if functions or classes of a module have stored integers, perhaps ranks or sizes, when they were defined."""
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

    A module may import the answers that another one got, as plain numbers (`from parallel import rank`), which do not show their origin.
    """
    for module in modules:
        folders = list(vars(module).get("__path__", ()))  # packages only; they may have no file
        if any(file.is_relative_to(folder) for folder in folders):
            return True
        if not folders and file.parent == Path(vars(module).get("__file__") or "").parent:
            return True
    return False
