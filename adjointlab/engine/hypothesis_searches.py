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
    """Have Hypothesis do what it does in the first search of a thread, among which is a full garbage collection.

    To be called before torch is imported: the collection would visit all of its objects, which takes a tenth of a second.
    """

    # With a seed, as searches have one: without, Hypothesis registers the generator of the thread never, or later.
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
    """No more cases are to be drawn: ends a search of Hypothesis's at once, which passes on what is no `Exception`."""


class BrokenOff(BaseException):
    """Carries what a run has not raised but was ended by, such as a time limit of pytest's, out of Hypothesis, which passes it on at once.

    Of an `Exception`, and of pytest's own, Hypothesis would take the case for a failing one, and run it again.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


WHILE_A_CASE_RAN: Final = "while a case ran"
"""The note on an exception that has ended a run from outside: none of the strategy's, and none of the code under test."""


def ended_a_case(error: BaseException) -> bool:
    """Return True for an exception that has ended the run of a case from outside."""
    return WHILE_A_CASE_RAN in getattr(error, "__notes__", ())


def end_of(every_case_is_coherent: Callable[[], None]) -> Failing | Verdict | None:
    """Draw cases, and return how that has ended: with one that fails, with a strategy that is no good, or with none."""
    try:
        with without_constants_of_modules():
            every_case_is_coherent()
    except Failing as failing:
        return failing
    except BrokenOff as broken:
        raise broken.error from None
    except AssertionError as error:
        # Hypothesis's own, upon an interrupt that comes before its engine is ready.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise
    except Flaky as error:
        # Of the cases themselves the judgements are remembered.
        return _unjudged("the subject's strategy draws other cases from the same choices", error)
    except (Enough, Unsatisfiable):
        return None  # the counts tell
    except FailedHealthCheck as error:
        return _unjudged("the subject's strategy is unhealthy", error)
    except HypothesisException as error:
        return _unjudged("the subject's strategy failed", error)
    return None


def settings_of(cases: int) -> hypothesis.settings:
    """Settings of Hypothesis for a search of so many `cases`.

    Whatever a user's profile, or the "ci" profile that Hypothesis loads where the variable CI is set, would change is set here: equal
    seeds have to draw equal cases everywhere. (A seed overrides `derandomize`.)
    """
    return hypothesis.settings(
        max_examples=cases,
        database=None,
        backend=INDEPENDENT,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        # Without Phase.explain, which would run variations of the failing case under a tracer.
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=(
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.nested_given,
            HealthCheck.filter_too_much,  # which cases were rejected, and why, is counted here
        ),
    )


def seed_of_draws(seed: int, check: str) -> int:
    """The seed of a check's draws: every check draws cases of its own, so that all of them look at more geometries."""
    return int.from_bytes(hashlib.sha256(f"{seed} {check}".encode()).digest()[:8], "little")


def _unjudged(headline: str, error: Exception) -> Verdict:
    text = message_of(error).strip().splitlines()
    return unjudged(headline, ("because", text[0] if text else type(error).__name__))
