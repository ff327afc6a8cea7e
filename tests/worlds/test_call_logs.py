"""The log of a run that goes on and on is of bounded size, and says of its calls what an uncut one would."""

from __future__ import annotations

import sys
from itertools import cycle, islice

import pytest

pytest.importorskip("mpi4py")

from adjointlab.worlds.mpi.call_log import CallEntry, CallLog, Describer, first_mismatch

pytestmark = pytest.mark.mpi_skip


def entry(name: str) -> CallEntry:
    return (name, None, None, None, None, sys._getframe().f_code, 0)


def log_of(names: list[str]) -> CallLog:
    log = CallLog()
    for name in names:
        log.append(entry(name))
    return log


def test_a_log_counts_all_calls_and_keeps_the_latest() -> None:
    names = list(islice(cycle(["Bcast", "Reduce", "Barrier"]), 100_000))
    log = log_of(names)
    assert log.calls == 100_000
    assert len(log) < 5000
    summary = log.summary(Describer())
    assert [call.name for call in summary.latest] == names[-len(summary.latest) :]
    assert summary.call(99_999) is not None
    assert summary.call(0) is None


@pytest.mark.parametrize("number", [300, 2047, 2048, 2049, 10_000])
def test_an_early_call_that_differs_is_seen_however_the_logs_were_cut(number: int) -> None:
    names = ["Bcast"] * number
    others = ["Reduce", *names[1:]]
    same, other = (log_of(each).summary(Describer()) for each in (names, others))
    assert first_mismatch({0: same, 1: log_of(names).summary(Describer())}) is None
    mismatch = first_mismatch({0: same, 1: other})
    assert mismatch is not None
    assert "ago, they call different collectives" in mismatch.reason
