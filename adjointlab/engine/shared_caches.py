"""Caches of functions that simulated ranks share, as threads of one process: a right program may go wrong by them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

from adjointlab.checks.verdict import Status, Verdict
from adjointlab.engine.subject import Subject
from adjointlab.worlds.module_state import cached_functions

__all__ = ["with_shared_caches"]


def with_shared_caches(verdict: Verdict, subject: Subject) -> Verdict:
    """Return a failing verdict on simulated ranks with a line on functions of the subject's modules that share a cache."""
    shared = sorted(_shared(subject))
    if verdict.status is not Status.INCOHERENT or not shared:
        return verdict
    modules = sorted({module for module, _ in shared})
    line = (
        "perhaps",
        f"simulated ranks share what {', '.join(name for _, name in shared)} has kept (functools.lru_cache), where processes have caches "
        f"of their own: rank_local={modules} in the subject's declaration gives each rank one",
    )
    return replace(verdict, lines=(*verdict.lines, line))


def _shared(subject: Subject) -> Iterator[tuple[str, str]]:
    """Functions whose cache has been of use, by module."""
    packages = tuple(f"{package}." for package in subject.rank_local)
    for name in {
        subject.declared_in,
        *(getattr(each, "__module__", "") for each in (subject.draws, subject.target)),
    }:
        module = sys.modules.get(name)
        if module is not None and not name.startswith("adjointlab.") and not f"{name}.".startswith(packages):
            for variable, cached in cached_functions(vars(module)):
                if cached.cache_info().hits:
                    yield name, variable
