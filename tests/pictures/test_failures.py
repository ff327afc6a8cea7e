"""Pictures of failures: the wrong entry on both sides, the matrices, who waits for whom, and messages in their order."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import adjointlab as al
from adjointlab.check_result import CheckResult
from adjointlab.checks.drawing import verdict_drawing
from adjointlab.checks.evidence import Evidence, Wait
from adjointlab.checks.verdict import unjudged
from adjointlab.pictures.model import Lanes, Matrices, Movement, Role, Waits
from adjointlab.pictures.text import as_rich, as_text
from adjointlab.report.failure_picture import failure_picture
from adjointlab.store.job_log import Done, JobLog
from tests import samples
from tests.pictures.drawings import HOSTILE, FirstCome, SpecifiedShift, failure, specified

pytestmark = pytest.mark.mpi_skip

Fail = Callable[..., CheckResult]


@pytest.fixture
def fail(world: al.SimulatedWorld, tmp_path: Path) -> Fail:
    return lambda subject, check, schedules=1, seed=1: failure(
        subject, check, tmp_path, world, schedules, seed
    )


def picture(result: CheckResult) -> str:
    return failure_picture(result, unicode=True)


def test_the_wrong_entry_is_marked_on_both_sides(fail: Fail) -> None:
    result = fail(samples.wrong, "adjoint")
    lines = picture(result).splitlines()
    assert len(lines) <= 12
    assert lines[3].split()[:4] == ["rank", "1", "·", "●"]
    assert lines[2].split()[4:] == ["rank", "0", "◆", "·"]
    assert "● x[1] on rank 1 ──×1──▶ ◆ x[0] on rank 0" in lines[4]
    assert "◀──×0──" in lines[5]
    assert "must be forward's ×1" in lines[5]


def test_the_matrices_differ_where_they_are_marked(fail: Fail) -> None:
    drawing = verdict_drawing(fail(samples.wrong, "matrix").result.verdict)
    (matrices,) = (part for part in drawing.parts if isinstance(part, Matrices))
    forward, adjoint = matrices.matrices
    differing = {
        (i, j)
        for i in range(len(matrices.rows))
        for j in range(len(matrices.columns))
        if forward.entries[i][j] != adjoint.entries[i][j]
    }
    assert forward.wrong == adjoint.wrong == differing != set()


def test_a_fault_of_both_directions_stands_beside_the_specification(fail: Fail) -> None:
    result = fail(al.subject.operator(SpecifiedShift, name="Specified")(specified), "specification")
    drawing = verdict_drawing(result.result.verdict)
    (movement,) = (part for part in drawing.parts if isinstance(part, Movement))
    assert [(weight.value, weight.remark) for weight in movement.weights] == [("0", "should be ×1")]
    marks = [mark for grid in movement.grids for mark in grid.marks]
    assert [mark.role for mark in marks] == [Role.SOURCE, Role.TARGET]
    (matrices,) = (part for part in drawing.parts if isinstance(part, Matrices))
    assert [matrix.title for matrix in matrices.matrices] == ["forward", "specification"]
    assert "[0]" in picture(result)


def test_a_wrong_adjoint_is_held_against_the_specification(fail: Fail) -> None:
    class WrongAdjoint(SpecifiedShift):
        def shifted(self, x: object, step: int) -> object:
            return samples.RingShift.shifted(self, x, step) if step == 1 else super().shifted(x, step)

    text = picture(fail(al.subject.operator(WrongAdjoint, name="WrongAdjoint")(specified), "adjoint"))
    assert "should be ×1" in text
    assert "specification" in text


def test_ranks_that_wait_for_each_other_are_a_circle_with_their_line_of_code(fail: Fail) -> None:
    result = fail(samples.hanging, "adjoint")
    text = picture(result)
    assert "rank 0 ──▶ rank 1\n  ▲           │\n  └───────────┘" in text
    assert "samples.py:" in text
    assert "self.comm.Recv(result" in text
    (waits,) = verdict_drawing(result.result.verdict).parts
    assert isinstance(waits, Waits)
    assert waits.cycle == (0, 1)


def test_ranks_that_wait_in_one_line_are_named_together_with_the_arguments_that_they_share() -> None:
    def lines(*calls: str) -> list[str]:
        waits = [Wait(rank, call, "a.py:1", (1 - rank,)) for rank, call in enumerate(calls)]
        verdict = unjudged("deadlock", is_hang=True, evidence=Evidence(waits=tuple(waits)))
        return as_text(verdict_drawing(verdict)).splitlines()

    assert "ranks 0, 1  Recv(tag=0)  a.py:1" in lines("Recv(tag=0)", "Recv(tag=0)")
    assert "ranks 0, 1  Ssend(…)  a.py:1" in lines("Ssend(dest=1)", "Ssend(dest=0)")


def test_of_many_ranks_those_of_the_cycle_are_drawn() -> None:
    waits = [Wait(rank, "Recv", "a.py:1", (rank + 1,)) for rank in range(98)]
    waits += [Wait(98, "Recv", "a.py:1", (99,)), Wait(99, "Recv", "a.py:2", (98,))]
    verdict = unjudged("deadlock", is_hang=True, evidence=Evidence(waits=tuple(waits)))
    (part,) = verdict_drawing(verdict).parts
    assert isinstance(part, Waits)
    assert part.cycle == (98, 99)
    assert {98, 99} <= {each.rank for each in part.waiting}
    assert part.left_out == 84
    assert len(as_text(verdict.drawing()).splitlines()) < 30


def test_messages_that_depend_on_the_schedule_are_drawn_in_their_order(fail: Fail) -> None:
    # With this seed no case comes first whose two sides are added up in another order.
    result = fail(al.subject.operator(FirstCome, name="FirstCome")(specified), "linearity", 8, 1)
    lanes = [part for part in verdict_drawing(result.result.verdict).parts if isinstance(part, Lanes)]
    assert len(lanes) == 2
    assert [event.source for event in lanes[0].events] != [event.source for event in lanes[1].events]
    assert all(sum(event.is_marked for event in each.events) == 1 for each in lanes)
    assert "├" in picture(result) or "┤" in picture(result)


def test_an_element_that_differs_is_marked_with_both_values(fail: Fail) -> None:
    @al.subject.operator(SpecifiedShift, name="Referenced", reference=lambda x, layout: x)
    def referenced(draw: object, ranks: int) -> dict[str, object]:
        return specified(draw, ranks)

    text = picture(fail(referenced, "sequential"))
    assert text.count("✖") == 2
    assert "distributed" in text
    assert "sequential" in text


def test_a_coherent_result_and_a_known_failure_have_no_picture(fail: Fail) -> None:
    assert picture(fail(samples.right, "adjoint")) == ""
    assert picture(replace(fail(samples.wrong, "adjoint"), known="list:1: known")) == ""


def test_evidence_comes_back_from_other_processes_and_from_the_job_log(fail: Fail, tmp_path: Path) -> None:
    log = JobLog(tmp_path / "log")
    log.begin(seed=1, shrinking=1.0)
    for number, (subject, check) in enumerate(((samples.wrong, "adjoint"), (samples.hanging, "adjoint"))):
        result = fail(subject, check).result
        evidence = result.verdict.evidence
        assert evidence is not None
        assert pickle.loads(pickle.dumps(result)).verdict.evidence == evidence  # noqa: S301 - our own
        log.finish(Done(str(number), result, None, ""))
        assert log.done[number].result.verdict.evidence == evidence


def test_a_picture_has_nothing_that_a_terminal_takes_for_a_command() -> None:
    waits = (Wait(0, HOSTILE, "nowhere.py:1", (0,)),)
    drawing = verdict_drawing(unjudged("deadlock", evidence=Evidence(waits=waits)))
    assert "\x1b" not in as_text(drawing)
    assert as_rich(drawing).plain == as_text(drawing)
    assert ":rocket: [bold]" in as_rich(drawing).plain


def test_failures_show_themselves_in_notebooks(fail: Fail) -> None:
    result = fail(samples.wrong, "adjoint")
    for each in (result, result.result, result.result.verdict):
        assert "adjoint is not the transpose of forward" in each._repr_html_()
        assert "<svg" in each._repr_html_()
