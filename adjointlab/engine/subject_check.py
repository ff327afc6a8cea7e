"""All checks of one subject as a call, for scripts and notebooks."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace

from adjointlab import options
from adjointlab.checks.check import check_named, checks_of
from adjointlab.checks.told import hints_told, lines_told
from adjointlab.checks.verdict import Verdict
from adjointlab.core.declaration import SubjectError
from adjointlab.engine.case_lines import case_lines
from adjointlab.engine.counts import CaseCounts, is_silent
from adjointlab.engine.failed_runs import MISDECLARED
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget, SearchResult
from adjointlab.engine.subject import Subject
from adjointlab.spelling import described_type
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.world import World

__all__ = ["check_subject", "verdicts_of"]


def check_subject(
    subject: Subject,
    *,
    cases: int = options.CASES.default,
    ranks: int | None = None,
    seed: int = 0,
    checks: Collection[str] | None = None,
    world: World | None = None,
) -> Mapping[str, Verdict]:
    """Run all checks of a subject, as ``adjointlab check`` does, or those that `checks` names: `cases` cases on up to `ranks` simulated ranks (default: 8).

    In another `world`, such as ``adjointlab.MPIWorld()``, this is collective. Returns the verdicts by check, and warns if no rank
    communicated with another in any case. Raises `AssertionError` with the smallest failing case if one is not coherent, `TypeError`
    for an argument that is not a subject or world, `ValueError` for `cases` or `ranks` that are not numbers or out of range and for a check that does not
    apply, and :class:`SubjectError` for a wrong declaration.
    """
    __tracebackhide__ = True  # pytest and IPython end the traceback at the caller
    if isinstance(subject, type):
        raise TypeError(
            f"subject: {subject.__name__} is a class; decorate a strategy of its cases with adjointlab.subject.operator({subject.__name__})"
        )
    if not isinstance(subject, Subject):
        raise TypeError(
            f"subject: {described_type(subject)} is not a subject; decorate a strategy with adjointlab.subject"
        )
    return verdicts_of(subject, Budget(cases, ranks=ranks, seed=seed), world, checks)


def verdicts_of(
    subject: Subject, budget: Budget, world: World | None, checks: Collection[str] | None = None
) -> Mapping[str, Verdict]:
    """The verdicts of :func:`check_subject`, to be called by such a function: a warning names the line that called that function."""
    __tracebackhide__ = True
    if not (world is None or isinstance(world, World)):
        raise TypeError(
            f"world: {described_type(world)} is not a world: give an instance of adjointlab.SimulatedWorld, MPIWorld or TorchWorld, or none"
        )
    chosen = _chosen(subject, checks)
    verdicts: dict[str, Verdict] = {}
    counts: list[CaseCounts] = []
    with ExitStack() as stack:
        if world is None:
            world = SimulatedWorld(budget.ranks or options.RANKS.default)
            stack.callback(world.close)
        for check in chosen:
            try:
                result = investigate(world, subject, check, budget)
            except KeyboardInterrupt as interrupt:
                # The traceback has two hundred lines of Hypothesis and the world, and no user code, which runs in other threads.
                raise interrupt.with_traceback(None) from None
            if not result.verdict.is_coherent:
                is_misdeclared = result.verdict.kind == MISDECLARED
                raise (SubjectError if is_misdeclared else AssertionError)(_text(result))
            verdicts[check] = result.verdict
            counts += [] if result.counts is None else [result.counts]
    if is_silent(counts):
        warnings.warn(
            f"{subject.name}: no rank communicated with another in any case, so nothing distributed was checked if something should be",
            stacklevel=3,
        )
    return verdicts


def _chosen(subject: Subject, checks: Collection[str] | None) -> tuple[str, ...]:
    """The checks that apply to a subject, limited to the named ones if any are named."""
    applying = checks_of(subject)
    if checks is None:
        return applying
    if isinstance(checks, str) or not checks:
        raise TypeError(f"checks: {checks!r} is not a list of names of checks, such as {[applying[0]]}")
    for name in checks:
        if check_named(name).name not in applying:
            raise ValueError(
                f"checks: {name!r} does not apply to {subject.name}, to which these do: {', '.join(applying)}"
            )
    return checks_of(subject, checks)


def _text(result: SearchResult) -> str:
    case = result.case
    verdict = replace(result.verdict, lines=tuple(lines_told(result.verdict)))
    lines = [f"{result.subject} {result.check}: {verdict}"]
    lines += [hint.text for hint in hints_told(result.verdict)]
    if case is not None:
        lines += [f"ranks {case.ranks}"]
        lines += [" ".join(line) for line in case_lines(result) if line[0] != "ranks"]
    return "\n  ".join(lines)
