"""An output that is not finite is named as that by the check that sees it, and never as something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from adjointlab.checks.verdict import Status
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget, SearchResult
from adjointlab.engine.subject import Subject
from adjointlab.worlds.simulated.world import SimulatedWorld
from tests.checks import not_finite
from tests.running import run

# One process starts the others.
pytestmark = pytest.mark.mpi_skip

CHECKS = ["adjoint", "matrix", "linearity", "purity", "reentrancy"]
CASES = [("nan_forward", "forward returned nan on rank 1"), ("inf_adjoint", "adjoint returned inf on rank 1")]


def investigated(subject: Subject, check: str) -> SearchResult:
    return investigate(SimulatedWorld(4), subject, check, Budget(20, seed=1))


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(("subject", "headline"), CASES)
def test_every_check_names_it_while_the_other_ranks_wait_for_that_rank(
    subject: str, headline: str, check: str
):
    report = investigated(getattr(not_finite, subject), check)

    assert (report.status, report.verdict.headline) == (Status.INCOHERENT, headline)
    assert report.case is not None
    assert report.case.ranks == 2


@pytest.mark.starts_mpiexec
@pytest.mark.parametrize(("subject", "headline"), CASES)
def test_it_is_named_under_mpi_too(tmp_path: Path, subject: str, headline: str):
    options = ("--check", "adjoint", "--cases", "20", "--seed", "1")
    ended = run("adjointlab", "check", f"{not_finite.__file__}:{subject}", *options, cwd=tmp_path, ranks=2)

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert f": {headline} " in ended.stdout


def test_a_nan_that_is_kept_from_an_earlier_call_is_reported_as_that():
    report = investigated(not_finite.keeps_nan, "reentrancy")

    assert report.verdict.headline == "forward depends on earlier calls"


@pytest.mark.parametrize("subject", ["reads_fresh_memory", "keeps_fresh_memory"])
def test_a_nan_from_memory_that_nobody_wrote_is_reported_as_that(subject: str):
    report = investigated(getattr(not_finite, subject), "purity")

    assert report.verdict.headline == "forward reads uninitialised memory"
