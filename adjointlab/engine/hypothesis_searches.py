"""Searches of Hypothesis: their settings and seeds, and the ways in which they end."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, given
from hypothesis.errors import FailedHealthCheck, Flaky, HypothesisException, Unsatisfiable

from adjointlab.checks.verdict import Verdict, unjudged
from adjointlab.engine.case import Case
from adjointlab.engine.constants_of_modules import without_constants_of_modules
from adjointlab.engine.independent_draws import INDEPENDENT
from adjointlab.engine.run_case import Judgement
from adjointlab.worlds.exception_text import message_of

__all__ = [
    "WHILE_A_CASE_RAN",
    "BrokenOff",
    "Enough",
    "Failing",
    "end_of",
    "ended_a_case",
    "prepare",
    "seed_of_draws",
    "settings_of",
]


def prepare() -> None:
    """Have Hypothesis do its set-up for the first search of a thread, which includes a full garbage collection.

    Call it before torch is imported: otherwise the collection visits all of torch's objects, which takes a tenth of a second.
    """

    # With a seed, as in searches: without one, Hypothesis registers the thread's generator later, or never.
    @hypothesis.seed(0)
    @hypothesis.settings(
        max_examples=1, database=None, deadline=None, verbosity=Verbosity.quiet, phases=(Phase.generate,)
    )
    @given(hypothesis.strategies.none())
    def draw(_: None) -> None: ...

    draw()


class Failing(Exception):
    """A case failed; carries it out of Hypothesis, which raises the exception of the smallest failing case again."""

    def __init__(self, case: Case, judgement: Judgement) -> None:
        super().__init__(judgement.verdict.headline)
        self.case, self.verdict, self.spaces = case, *judgement


class Enough(BaseException):
    """No more cases are needed. Hypothesis lets a `BaseException` that is not an `Exception` through, so this ends a search at once."""


class BrokenOff(BaseException):
    """Carries an exception that ended a run from outside, such as a time limit of pytest, out of Hypothesis.

    Hypothesis lets this class through at once. After an `Exception`, or one of pytest's own, it would take the case for a failing one,
    and run it again.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


WHILE_A_CASE_RAN: Final = "while a case ran"
"""The note on an exception that has ended a run from outside: neither the strategy nor the code under test raised it."""


def ended_a_case(error: BaseException) -> bool:
    """Return True for an exception that has ended the run of a case from outside."""
    return WHILE_A_CASE_RAN in getattr(error, "__notes__", ())


def end_of(every_case_is_coherent: Callable[[], None]) -> Failing | Verdict | None:
    """Draw cases; return the failing one, a verdict if the strategy is at fault, or `None` if no case failed."""
    try:
        with without_constants_of_modules():
            every_case_is_coherent()
    except Failing as failing:
        return failing
    except BrokenOff as broken:
        raise broken.error from None
    except AssertionError as error:
        # An assertion in Hypothesis fails if an interrupt comes before its engine is ready.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise
    except Flaky as error:
        # Judgements of cases are remembered, so they cannot be what changed.
        return _unjudged("the subject's strategy draws other cases from the same choices", error)
    except (Enough, Unsatisfiable):
        return None  # the counts say why
    except FailedHealthCheck as error:
        return _unjudged("the subject's strategy is unhealthy", error)
    except HypothesisException as error:
        return _unjudged("the subject's strategy failed", error)
    return None


def settings_of(cases: int) -> hypothesis.settings:
    """Settings of Hypothesis for a search of `cases` cases.

    Equal seeds have to draw equal cases everywhere. So everything is set here that a user's profile would change, or the "ci" profile,
    which Hypothesis loads if the variable CI is set. (A seed overrides `derandomize`.)
    """
    return hypothesis.settings(
        max_examples=cases,
        database=None,
        backend=INDEPENDENT,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        # Phase.explain would run variations of the failing case under a tracer.
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=(
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.nested_given,
            HealthCheck.filter_too_much,  # rejected cases are counted by adjointlab, with their reasons
        ),
    )


def seed_of_draws(seed: int, check: str) -> int:
    """The seed of a check's draws: each check draws different cases, so that together they cover more geometries."""
    return int.from_bytes(hashlib.sha256(f"{seed} {check}".encode()).digest()[:8], "little")


def _unjudged(headline: str, error: Exception) -> Verdict:
    text = message_of(error).strip().splitlines()
    return unjudged(headline, ("because", text[0] if text else type(error).__name__))
