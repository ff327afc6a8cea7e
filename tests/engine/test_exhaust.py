"""Exhaustive runs: every case within a bound is proved, and the first that is wrong is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import adjointlab as al
from adjointlab.checks.verdict import Status, incoherent
from adjointlab.engine.case_body import body
from adjointlab.engine.counts import CaseCounts
from adjointlab.engine.discovery import Found
from adjointlab.engine.exhaust import exhaust
from adjointlab.engine.listed_cases import bound_of, every_case
from adjointlab.engine.run_case import Judgement, run_case
from adjointlab.engine.shares_of_proofs import Share
from adjointlab.engine.subject import Subject, SubjectError
from adjointlab.primitives.subjects.reductions import all_sum_reduces
from adjointlab.replaying import replay
from adjointlab.session import kept
from adjointlab.store.reproducer import read, write
from adjointlab.worlds.simulated.world import SimulatedWorld
from tests.checks.test_each_check_catches_its_own import UnequalCopies
from tests.running import run

from . import enumerated_subjects

SUBJECTS = str(Path(enumerated_subjects.__file__))


def proved(name: str, **bound: int) -> Any:
    subject: Subject = getattr(enumerated_subjects, name)
    return exhaust(subject, f"{SUBJECTS}:{name}", bound_of(subject, bound), jobs=2)


def test_every_case_within_the_bound_is_proved() -> None:
    report = proved("right")
    assert report.status is Status.COHERENT
    assert (
        report.tried
        == len(list(every_case(enumerated_subjects.right, bound_of(enumerated_subjects.right))))
        == 12
    )
    assert report.figures["entries"] == sum((size * width) ** 2 for size in (1, 2, 3) for width in range(4))


def test_results_in_memory_that_is_used_again_are_those_of_each_call() -> None:
    assert proved("returns_its_own_memory").status is Status.COHERENT


def test_a_case_of_which_a_proof_can_say_nothing_is_told_with_the_reason() -> None:
    verdict = proved("of_an_enormous_gain").verdict
    assert verdict.headline == "a proof can say nothing about this case"
    ((label, reason),) = verdict.lines
    assert label == "because"
    assert "no integer is exact under a gain of 1152921504606846976" in reason


def test_a_proof_does_not_load_torch() -> None:
    assert proved("for_both_libraries", ranks=1).status is Status.COHERENT


@pytest.mark.parametrize(
    ("name", "headline"),
    [
        ("loses_in_both", "forward is not what its specification says"),
        ("loses", "adjoint is not what its specification says"),
        ("right_in_batches", "forward gives a random vector another image than its matrix does"),
        ("adds_into_out", "forward into `out` gives a random vector another image than its matrix does"),
    ],
)
def test_the_first_case_that_is_wrong_is_found_whatever_process_has_it(name: str, headline: str) -> None:
    report = proved(name)
    assert report.verdict.headline == headline
    width = 3 if name.startswith("loses") else 1
    assert (report.case.ranks, report.case.parameters["layout"].shape) == (1, (width,))
    assert report.tried == width + 1


@pytest.mark.parametrize(
    ("name", "headline", "width"),
    [
        ("loses", "adjoint is not what its specification says", 3),
        ("waits_in_vain", "deadlock", 3),
        ("sends_one_too_many", "message left over", 3),
        ("replaces_a_comparison", "numpy.array_equal had been replaced in the run", 2),
    ],
)
def test_a_failure_in_a_batch_is_that_of_its_case(name: str, headline: str, width: int) -> None:
    subject: Subject = getattr(enumerated_subjects, name)
    report = exhaust(subject, f"{SUBJECTS}:{name}", bound_of(subject, {"ranks": 1, "side": 63}), jobs=1)
    assert report.verdict.headline.startswith(headline)
    assert report.case.parameters["layout"].shape == (width,)
    assert report.counts.judged == width  # those before it, in the same batch


def test_a_form_in_place_that_does_nothing_is_found() -> None:
    report = proved("does_nothing_in_place")
    assert (
        report.verdict.headline == "adjoint in place gives a random vector another image than its matrix does"
    )
    assert report.case.ranks == 2  # on one nothing is to be done


def headlines(kind: type[al.LinearOperator], **bound: int) -> list[str]:
    """The headlines of the cases of an operator within the bound, one of each; empty where it is right."""
    subject = al.subject(kind, every=enumerated_subjects.equal_blocks)(enumerated_subjects.drawn)
    world = SimulatedWorld()
    verdicts = world.lead(
        body(subject), lambda run: [run_case(run, case) for case in every_case(subject, bound)]
    )
    world.close()
    return [entry[0].headline for entry in verdicts if entry is not None]


def test_a_wrong_adjoint_is_found_without_a_specification_too() -> None:
    class Unspecified(enumerated_subjects.LosesTheThird):
        def specification(self) -> None:  # type: ignore[override]
            return None

    assert headlines(Unspecified, ranks=1, side=3) == ["", "", "", "adjoint is not the transpose of forward"]


def test_a_wrong_copy_which_no_matrix_sees_is_found() -> None:
    class Unequal(UnequalCopies):
        def __init__(self, comm: Any, layout: al.Layout) -> None:
            super().__init__(comm, side=2)

    assert headlines(Unequal, ranks=2, side=0) == [
        "",
        "forward returns different copies of what is declared equal",
    ]


def test_a_failure_is_stored_and_fails_again_when_it_is_replayed(tmp_path: Path) -> None:
    report = proved("loses")
    entry = kept(Found(enumerated_subjects.loses, f"{SUBJECTS}:loses", False), report, tmp_path)
    assert entry.written is not None
    world = SimulatedWorld()
    again = replay(world, enumerated_subjects.loses, read(entry.written.json).case)
    world.close()
    assert again.verdict.headline == report.verdict.headline
    assert entry.written.script.exists()


@pytest.mark.parametrize("name", ["loses", "loses_in_both"])
def test_the_script_of_a_failure_shows_the_entry_that_is_wrong(name: str, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    written = write(proved(name), getattr(enumerated_subjects, name), tmp_path)
    result = subprocess.run(
        [sys.executable, str(written.script)], capture_output=True, text=True, timeout=120, check=False
    )
    right = "1.0" if name == "loses" else "0.0"
    assert result.stdout.splitlines() == [f"<Fx, y>  = {right}", "<x, F*y> = 0.0", "expected  = 1.0"], (
        result.stderr
    )
    assert result.returncode == 1


@pytest.mark.parametrize("name", ["breaks", "breaks_late"])
def test_a_list_that_fails_is_no_proof(name: str) -> None:
    report = proved(name)
    assert report.status is Status.UNJUDGED
    assert "the list ends here" in dict(report.verdict.lines)["because"]


def test_a_process_that_ends_has_proved_nothing() -> None:
    report = proved("ends")
    assert report.status is Status.UNJUDGED
    assert "it ended with exit code 3" in str(report.verdict.lines)


def test_a_subject_that_lists_no_cases_is_told_how_to() -> None:
    with pytest.raises(SubjectError, match=r"lists no cases; give its decorator every=function"):
        bound_of(enumerated_subjects.lists_nothing)


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("right", {"ranks": 0}, r"no case within the bound ranks 0, side 3"),
        ("without_default", {}, r"the bound ranks of every= has no whole number as its default"),
        ("no_pairs", {}, r"every= yields \{'layout': 2\}, not a pair"),
        ("breaks_at_once", {}, r"every= fails, IndexError: list index out of range"),
    ],
)
def test_a_list_that_cannot_be_used_is_refused(name: str, given: dict[str, int], told: str) -> None:
    with pytest.raises(SubjectError, match=told):
        bound_of(getattr(enumerated_subjects, name), given)


def test_a_system_that_does_not_tell_which_cores_may_be_used_has_them_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert (
        exhaust(enumerated_subjects.right, f"{SUBJECTS}:right", bound_of(enumerated_subjects.right)).status
        is Status.COHERENT
    )


def test_of_the_failures_of_several_processes_the_first_case_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = enumerated_subjects.right
    cases = list(every_case(subject, bound_of(subject)))
    shares = [
        Share(CaseCounts(0), failure=(number, cases[number], Judgement(incoherent(f"case {number}"), None)))
        for number in (7, 3, 5)
    ]
    monkeypatch.setattr("adjointlab.engine.exhaust.in_processes", lambda *given: shares)
    found = exhaust(subject, "unused", bound_of(subject))
    assert (found.verdict.headline, found.tried, found.case) == ("case 3", 4, cases[3])


def test_every_case_has_a_random_vector_and_a_schedule_of_its_own() -> None:
    subject = enumerated_subjects.right
    cases = list(every_case(subject, bound_of(subject)))
    assert len({case.setting.seed for case in cases}) == len({case.schedule for case in cases}) == len(cases)


def test_a_bound_changes_what_is_listed() -> None:
    every = {name: len(list(every_case(all_sum_reduces, bound))) for name, bound in BOUNDS.items()}
    assert every["fewer ranks"] < every["as it is"]
    assert every["smaller"] < every["as it is"]


BOUNDS = {
    "as it is": bound_of(all_sum_reduces, {"ranks": 3}),
    "fewer ranks": bound_of(all_sum_reduces, {"ranks": 2, "none of its": 7}),
    "smaller": bound_of(all_sum_reduces, {"ranks": 3, "side": 1}),
}


def test_the_command_says_what_it_has_proved(tmp_path: Path) -> None:
    result = run(
        "adjointlab", "exhaust", "AllSumReduce", "--bound", "ranks=2", "--bound", "side=1", cwd=tmp_path
    )
    count = len(list(every_case(all_sum_reduces, bound_of(all_sum_reduces, {"ranks": 2, "side": 1}))))
    assert result.returncode == 0, result.stderr
    assert "ranks 2, order 3, side 1" in result.stdout
    assert f"{count:,} cases of 1 subject proved" in result.stdout
    assert "given linearity, which was sampled in every case" in result.stdout


def test_the_command_stores_what_is_wrong_and_names_what_it_was_not_asked_for(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "from tests.engine.enumerated_subjects import loses, right\n\nlisted = [right]\ndel right\n"
    )
    result = run("adjointlab", "exhaust", "wrong.py", cwd=tmp_path)
    assert result.returncode == 1
    assert "adjoint is not what its specification says" in result.stdout
    assert "in `listed`" in result.stdout
    assert len(list((tmp_path / ".adjointlab").glob("*.json"))) == 1


def test_the_command_says_what_it_has_proved_when_it_is_interrupted(tmp_path: Path) -> None:
    result = run("adjointlab", "exhaust", f"{SUBJECTS}:right", f"{SUBJECTS}:interrupted", cwd=tmp_path)
    assert result.returncode == 130
    assert "12 cases of 1 subject proved" in result.stdout
    assert "1 of 2 subjects are done" in result.stdout
    assert "interrupted" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("AllSumReduce", "--bound", "corners=2"), "--bound: corners is not one of order, ranks, side"),
        (("AllSumReduce", "--bound", "ranks"), "--bound: 'ranks' is not NAME=N"),
        (("AllSumReduce", "--bound", "ranks=²"), "--bound: 'ranks=²' is not NAME=N"),
        (("AllSumReduce", "--bound", "order=0"), "no case within the bound ranks 4, order 0, side 2"),
        ((f"{SUBJECTS}:lists_nothing",), "lists no cases"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    result = run("adjointlab", "exhaust", *arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert told in result.stderr


def test_a_list_of_arguments_that_the_operator_does_not_take_is_a_wrong_declaration(tmp_path: Path) -> None:
    (tmp_path / "unknown.py").write_text(
        "import adjointlab as al\nfrom tests.samples import RingShift\n\n\n"
        "@al.subject(RingShift, every=lambda ranks=2: [(1, {'cells': 1})])\n"
        "def cases(draw, ranks):\n    return {'cells': 1}\n"
    )
    for command in ("check", "exhaust"):
        result = run("adjointlab", command, "unknown.py", cwd=tmp_path)
        assert result.returncode == 2
        assert "RingShift(comm, layout) takes no `cells`" in result.stdout
