"""Ways in which ranks that are simulated, as threads of one process, differ from processes: a right program may fail by them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType

from adjointlab.checks.verdict import Verdict
from adjointlab.engine.subject import Subject
from adjointlab.worlds.interposition import asked_outside_runs
from adjointlab.worlds.module_state import cached_functions

__all__ = ["with_artefacts"]


def with_artefacts(verdict: Verdict, subject: Subject, passes: Callable[[Subject], bool]) -> Verdict:
    """Return a failing verdict on simulated ranks with a line on what may be the simulation's doing.

    `passes` runs the failing case of a subject that is declared otherwise, and returns True if it passes.
    """
    modules = dict(_modules(subject))
    lines = [*_asked_at_import(modules), *_shared_caches(modules, subject, passes)]
    return (
        replace(verdict, lines=(*verdict.lines, *(("perhaps", line) for line in lines))) if lines else verdict
    )


def _modules(subject: Subject) -> Iterator[tuple[str, ModuleType]]:
    """The modules of the subject and of what it checks, by name."""
    parts = (subject.draws, subject.target, *subject.pair)
    for name in dict.fromkeys((subject.declared_in, *(getattr(part, "__module__", "") for part in parts))):
        module = sys.modules.get(name or "")
        if module is not None and not name.startswith("adjointlab."):
            yield name, module


def _asked_at_import(modules: dict[str, ModuleType]) -> Iterator[str]:
    files = {getattr(module, "__file__", None) for module in modules.values()}
    if sites := [site for site in asked_outside_runs() if site.rpartition(":")[0] in files]:
        yield (
            f"MPI.COMM_WORLD was asked for its size or rank outside of all cases, at {', '.join(sites)}: there it is that of this process, "
            "of which simulated ranks are threads; ask the communicator that the operator is given, when it is made"
        )


def _shared_caches(
    modules: dict[str, ModuleType], subject: Subject, passes: Callable[[Subject], bool]
) -> Iterator[str]:
    shared = sorted(_functions_with_results(modules, subject))
    names = sorted({module for module, _ in shared})
    if shared and passes(replace(subject, rank_local=(*subject.rank_local, *names))):
        yield (
            f"simulated ranks share what {', '.join(name for _, name in shared)} has kept (functools.lru_cache), where processes have caches "
            f"of their own: the case passes with rank_local={names} in the subject's declaration, which gives each rank one"
        )


def _functions_with_results(modules: dict[str, ModuleType], subject: Subject) -> Iterator[tuple[str, str]]:
    """Functions whose cache has been of use, by module."""
    packages = tuple(f"{package}." for package in subject.rank_local)
    for name, module in modules.items():
        if not f"{name}.".startswith(packages):
            for variable, cached in cached_functions(vars(module)):
                if cached.cache_info().hits:
                    yield name, variable
