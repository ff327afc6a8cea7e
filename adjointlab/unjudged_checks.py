"""Results of checks that judged no case, because the subject cannot run in the world or its code ended the search."""

from __future__ import annotations

import traceback

from adjointlab.check_result import NO_COMMUNICATOR, NO_MEMORY
from adjointlab.checks.verdict import Verdict, unjudged
from adjointlab.engine.drawing_errors import advice_on, formatted, refusal
from adjointlab.engine.failed_runs import MISDECLARED, NO_RETURN
from adjointlab.engine.hypothesis_searches import WHILE_A_CASE_RAN, ended_a_case
from adjointlab.engine.search_result import SearchResult
from adjointlab.engine.subject import Subject, SubjectError
from adjointlab.worlds.exception_text import in_brief, message_of, with_kind
from adjointlab.worlds.watchdog import DRAWING, Overdue
from adjointlab.worlds.world import World

__all__ = ["unsupported", "verdict_on", "without_case"]


def unsupported(world: World, subject: Subject, device: str | None = None) -> Verdict | None:
    """Return the verdict on a subject that cannot run in `world` or on `device`; None if it can."""
    if device is not None:
        try:
            subject.libraries(device)
        except SubjectError as problem:
            return unjudged(message_of(problem), kind=NO_MEMORY)
    if world.has_communicator or subject.process_group:
        return None
    return unjudged(
        "it takes a communicator, which ranks of torchrun do not have: check it under mpiexec, or on simulated ranks, without a "
        "launcher; torch.distributed code says process_group=True",
        kind=NO_COMMUNICATOR,
    )


def without_case(world: World, subject: Subject, check: str, seed: int, verdict: Verdict) -> SearchResult:
    """Return the result of a check that judged no case."""
    return SearchResult(subject.name, check, world.name, verdict, seed=seed)


def verdict_on(error: BaseException, subject: Subject, when: str = "") -> Verdict:
    """Return the verdict on a search that an error of the subject's code has ended.

    `when` describes the activity, such as a replay, if it was not drawing cases.
    """
    if isinstance(error, Overdue):
        text = "".join(traceback.format_exception(error)).rstrip()
        # A replay draws no case, so the code that is overdue was called by the judge, such as a sequential module.
        who = "the code under test" if when else DRAWING
        headline = f"{who} {message_of(error)}" + (f", {when}" if when else "")
        return unjudged(headline, ("traceback", text), kind=NO_RETURN)
    # Without the subject's name, which the caller prints.
    if (problem := message_of(error) if isinstance(error, SubjectError) else refusal(error)) is not None:
        return unjudged(problem.removeprefix(f"{subject.name}: "), kind=MISDECLARED)
    kind = f"raised {type(error).__name__}"
    when = when or (WHILE_A_CASE_RAN if ended_a_case(error) else "")
    sentence = with_kind(kind, in_brief(message_of(error)))
    headline = f"{sentence}, {when}" if when else f"drawing its cases {sentence}"
    advice = advice_on(error)
    perhaps = [("perhaps", advice)] if advice else []
    return unjudged(headline, ("traceback", formatted(error)), *perhaps, kind=kind)
