"""Every figure that is printed or written stands beside a value that was computed by hand."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from adjointlab.check_result import CheckResult
from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import VARIOUS, Figure, Status, Verdict, coherent, incoherent, unjudged
from adjointlab.engine.case import Case
from adjointlab.engine.counts import CaseCounts
from adjointlab.engine.discovery import found_as
from adjointlab.engine.drawn_cases import DrawnCases
from adjointlab.engine.folded_warnings import FoldedWarning
from adjointlab.engine.search_result import SearchResult
from adjointlab.engine.subject import SubjectError
from adjointlab.exit_codes import ExitCode
from adjointlab.quantities import counted, ranks_listed
from adjointlab.report import summary, tables
from adjointlab.report.failure_text import failure_text, replay_command
from adjointlab.report.json_report import as_data
from adjointlab.report.junit import as_junit
from adjointlab.report.recap import recap
from adjointlab.store.json_lines import json_figures
from adjointlab.store.reproducer import Written
from tests.samples import right, wrong

CASE = Case("Ring", "adjoint", 2, {"side": 3}, InputSetting(5), 0)
WRONG = incoherent("adjoint is not the transpose of forward", ("form", "floating"))


def result(verdict: Verdict | None = None, known: str = "", **given: Any) -> CheckResult:
    fields = {"subject": "Ring", "check": "adjoint", "world": "simulated", "verdict": verdict or coherent()}
    return CheckResult(found_as(right), SearchResult(**(fields | given)), known=known)


def printed(table: Any) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=240).print(table)
    return [" ".join(line.split()) for line in stream.getvalue().splitlines()]


COUNTS = CaseCounts(20, judged=20, on_several_ranks=15, communicating=14, most_ranks=3)
EXACT = {Figure.GAIN: 2, Figure.GAIN_SOURCE: "declared", Figure.MISS_PROBABILITY: 1.5e-10}


# The last line.


def test_the_summary_counts_verdicts_and_cases_and_adds_up_seconds() -> None:
    results = [
        result(tried=7, seconds=1.25),
        result(tried=10, seconds=0.5),
        result(WRONG, tried=3, seconds=2.0),
        result(unjudged("deadlock"), tried=1),
        result(WRONG, known="list:1", tried=4),
        result(known="list:2", tried=5),
    ]
    assert summary.summary(results, 9) == (
        "5 of 9 checks judged, 2 coherent, 1 incoherent, 1 could not be judged (deadlock), 1 failed as expected, "
        "1 passed unexpectedly: 30 cases in 3.8 s"
    )
    assert (
        summary.summary(results[:1], 1, seconds=0.25) == "1 of 1 check judged, 1 coherent: 7 cases in 0.2 s"
    )
    faults = [
        unjudged(kind) for kind in ("buffer misused", "deadlock", "buffer misused", "raised ValueError")
    ]
    assert ", 4 could not be judged (buffer misused 2, deadlock 1): " in summary.summary(
        [result(each) for each in faults], 4
    )
    both = summary.Tally.of([result(faults[0])]) + summary.Tally.of([result(faults[1]), result(faults[0])])
    assert "3 could not be judged (buffer misused 2, deadlock 1): " in both.line(3)
    assert "2 could not be judged (deadlock 1): " in summary.summary(
        [result(each) for each in faults[1::2]], 2
    )
    assert "2 could not be judged (buffer misused): " in summary.summary(
        [result(each) for each in faults[::2]], 2
    )
    assert "1 could not be judged: " in summary.summary([result(faults[3])], 1)
    assert summary.summary([], 0) == "0 of 0 checks judged, nothing checked: 0 cases in 0.0 s"


def test_the_summary_of_a_proof_counts_what_is_proved() -> None:
    proved = [result(tried=1200, seconds=1.0), result(tried=34, seconds=0.5)]
    text = summary.proof_summary([*proved, result(WRONG, tried=5, seconds=0.25)])
    assert text.startswith("1,234 cases of 2 subjects proved in 1.8 s: ")
    assert text.endswith("; 1 subject failed")
    assert "failed" not in summary.proof_summary(proved)
    assert summary.proof_summary([]) == "nothing proved in 0.0 s"
    assert summary.proof_summary([result(WRONG, seconds=0.5)]) == "nothing proved in 0.5 s; 1 subject failed"


def test_a_table_of_proofs_states_cases_entries_and_seconds() -> None:
    entries = result(tried=1200, seconds=1.25, figures={Figure.ENTRIES: 34567})
    _, row = printed(tables.proof_table([entries], [{"ranks": 3, "side": 2}]))
    assert row == "Ring ranks 3, side 2 proved 1,200 34,567 1.2"


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ([], ExitCode.COHERENT),
        ([Status.COHERENT] * 2, ExitCode.COHERENT),
        ([Status.COHERENT, Status.UNJUDGED], ExitCode.UNJUDGED),
        ([Status.UNJUDGED, Status.INCOHERENT, Status.COHERENT], ExitCode.INCOHERENT),
    ],
)
def test_the_exit_code_is_that_of_the_worst_verdict(statuses: list[Status], code: ExitCode) -> None:
    assert summary.exit_code(statuses) is code


def test_known_failures_do_not_count_and_unexpected_passes_do() -> None:
    assert summary.outcome([result(), result(WRONG, known="list:1")]) is ExitCode.COHERENT
    assert summary.outcome([result(), result(known="list:1")]) is ExitCode.INCOHERENT
    assert summary.outcome([result(WRONG)]) is ExitCode.INCOHERENT
    assert summary.outcome([result(unjudged("deadlock"))]) is ExitCode.UNJUDGED


def test_a_wrong_declaration_is_a_wrong_call_unless_an_operator_is_wrong() -> None:
    misdeclared = result(unjudged("no domain", kind=SubjectError.__name__))
    assert summary.outcome([result(), misdeclared]) is ExitCode.USAGE
    assert summary.outcome([result(WRONG), misdeclared]) is ExitCode.INCOHERENT


def test_a_subject_that_nothing_is_compared_with_has_a_blind_spot() -> None:
    def of(name: str, **given: Any) -> CheckResult:
        return replace(result(subject=name), found=found_as(replace(right, name=name, **given)))

    assert summary.blind_spots([of("A"), of("B", reference=lambda x: x), of("C"), of("A")]).startswith(
        "A, C: no reference"
    )
    assert summary.blind_spots([of("B", reference=lambda x: x)]) == ""


def test_a_subject_whose_results_are_all_zero_and_compared_with_nothing_has_a_line() -> None:
    def of(name: str, nonzero: int, **given: Any) -> CheckResult:
        entry = result(subject=name, figures={Figure.NONZERO: nonzero})
        return replace(entry, found=found_as(replace(right, name=name, **given)))

    twin = {"reference": lambda x: x}
    line = summary.zeros([of("A", 0), of("B", 2), of("C", 0, **twin), of("A", 0), of("D", 0)])
    assert line.startswith("A, D: every result was zero")
    assert line in summary.notes([of("A", 0), of("D", 0)])
    assert summary.zeros([of("B", 2), of("C", 0, **twin)]) == ""


def test_warnings_of_one_place_are_added_up_over_all_checks() -> None:
    def given(times: int, line: int = 7) -> FoldedWarning:
        return FoldedWarning("UserWarning", "beware", "ring.py", line, times)

    results = [result(warnings=(given(2), given(1, 8))), result(warnings=(given(3),))]
    assert summary.warned(results) == [
        "ring.py:7: UserWarning: beware (5 times)",
        "ring.py:8: UserWarning: beware",
    ]


def test_junit_counts_failures_errors_and_what_is_skipped() -> None:
    results = [
        result(),
        result(WRONG),
        result(known="list:1"),
        result(unjudged("deadlock")),
        result(WRONG, known="list:2"),
    ]
    suite = ElementTree.fromstring(as_junit(results).encode())
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["5", "2", "1", "1"]
    assert [[child.tag for child in case][1:] for case in suite] == [
        [],
        ["failure"],
        ["failure"],
        ["error"],
        ["skipped"],
    ]


def test_junit_has_notes_as_the_standard_error_of_the_suite() -> None:
    suite = ElementTree.fromstring(as_junit([result()], notes=["one", "two"]).encode())
    assert [child.tag for child in suite] == ["testcase", "system-err"]
    assert suite.findtext("system-err") == "one\ntwo"


@pytest.mark.parametrize(
    ("world", "launcher"),
    [("mpi", "mpiexec -n 2 "), ("torch", "torchrun --nproc-per-node 2 -m "), ("simulated", "")],
)
def test_a_failure_is_replayed_on_the_ranks_that_it_was_shrunk_to(world: str, launcher: str) -> None:
    shrunk = replace(
        result(WRONG, world=world, case=CASE, drawn_ranks=8), written=Written(Path("ring.json"), None)
    )
    assert replay_command(shrunk).startswith(f"{launcher}adjointlab replay ring.json")


def test_failures_of_two_subjects_that_read_alike_are_told_apart() -> None:
    one, other = result(WRONG), replace(result(WRONG, subject="Wrong"), found=found_as(wrong))
    assert one.fault == replace(one).fault != other.fault
    assert [line for line in recap([one, other]) if line.startswith("  ")] == [
        f"  {name} (adjoint): {WRONG.headline}" for name in ("Ring", "Wrong")
    ]


@pytest.mark.parametrize(
    ("said", "also"),
    [
        (
            "rank 0 raised Exception: MPI_Wait(request=0x7f1a)",
            "rank 0 raised Exception: MPI_Wait(request=0x7fe2)",
        ),
        ("rank 0 raised ValueError: it is 3", "rank 1 raised ValueError: it is 3"),
    ],
)
def test_failures_that_differ_in_an_address_or_in_the_rank_that_came_first_read_alike(
    said: str, also: str
) -> None:
    other = "rank 0 raised ValueError: it is 4"
    assert result(unjudged(said)).fault == result(unjudged(also)).fault != result(unjudged(other)).fault


# The table of verdicts.


@pytest.mark.parametrize(
    ("given", "reach"),
    [
        # 1.5e-10 is below 1e-9, and not below 1e-10.
        (dict(figures=EXACT, exact=20), "exact: misses a wrong case with probability below 1e-9"),
        (dict(figures=EXACT, exact=12), "12 of 20 cases exact: misses a wrong case with probability below 1e-9; the rest within rounding"),
        (dict(figures=EXACT | {Figure.MISS_PROBABILITY: 1e-10}, exact=20), "probability below 1e-9"),
        (dict(figures=EXACT | {Figure.MISS_PROBABILITY: 0.9e-10}, exact=20), "probability below 1e-10"),
        (dict(figures=EXACT | {Figure.MISS_PROBABILITY: 0.0}, exact=20), "probability below 1e-300"),
        (dict(figures={}), "within rounding only"),
        (dict(figures=EXACT | {Figure.NONZERO: 2}, exact=20), "exact: misses a wrong case with probability below 1e-9"),
        (dict(figures=EXACT | {Figure.NONZERO: 0}, exact=20), "every result was zero, in both directions"),
        (dict(figures={Figure.FLOATING_ERROR: 2.34e-17}), "within rounding only; floating error 2e-17"),
        (dict(figures={Figure.PROVED: "all entries"}, check="matrix"), "entries: all"),
        (dict(figures={Figure.PROVED: "a sample"}, check="matrix"), "entries: a sample"),
        (dict(figures={Figure.PROVED: "various"}, check="matrix"), "entries: all or a sample"),
        (dict(check="matrix", counts=CaseCounts(20, 20)), "on one rank only"),
        (dict(check="matrix", counts=CaseCounts(20, 20, 15)), "no rank communicated with another"),
        (dict(check="matrix", counts=CaseCounts(20, 20, 15, lacking_messages=1)), "no rank communicated with another, though the spaces need messages"),
        (dict(check="matrix", counts=CaseCounts(20, 20, 15, 14, 3, rejected={"too small": 4, "too large": 3})), "7 cases beside these not judged: too small"),
        (dict(figures={Figure.ROUNDING: 0.1047}, check="gradients"), "differences up to 10.5% counted as rounding, as declared or as measured on the sequential layer"),
        (dict(figures={Figure.REACHED: 1}, check="gradients"), "gradients reach only one part of a parameter that is cut, in every case: perhaps indices or masks leave out the other ranks"),
        (dict(figures={Figure.REACHED: 1, Figure.LEAST_REACHED: "table.weight"}, check="gradients"), "gradients reach only one part of table.weight, which is cut, in every case: perhaps indices or masks leave out the other ranks"),
        (dict(figures={Figure.REACHED: 1, Figure.LEAST_REACHED: VARIOUS}, check="gradients"), "gradients reach only one part of a parameter that is cut, in every case: perhaps indices or masks leave out the other ranks"),
        (dict(figures={Figure.ROUNDING: 0.0019, Figure.PROVED: "all"}, check="gradients"), "entries: all"),
        (dict(verdict=WRONG, figures=EXACT), "adjoint is not the transpose of forward"),
    ],
)  # fmt: skip
def test_the_reach_of_a_verdict(given: dict[str, Any], reach: str) -> None:
    entry = result(**({"tried": 20, "seed": 77, "counts": COUNTS} | given))
    (row,) = printed(tables.VerdictRows.of([("Ring", entry.result.check)], 20).row(1, entry))
    assert row.endswith(reach)
    assert f" {given.get('counts', COUNTS).most_ranks} 77 " in row
    assert " 20 " in row


@pytest.mark.parametrize(
    ("columns", "headings"),
    [
        (None, "# Subject Check Verdict Cases Ranks Seed Reach"),
        (200, "# Subject Check Verdict Cases Ranks Seed Reach"),
        (80, "# Subject Check Verdict Cases Reach"),
        (70, "Subject Check Verdict Cases Reach"),
        (64, "Subject Check Verdict Reach"),
        (20, "Subject Check Verdict Reach"),
    ],
)
def test_columns_of_the_least_interest_make_room_for_the_reach(columns: int | None, headings: str) -> None:
    rows = tables.VerdictRows.of([("Ring", "adjoint")], 20, columns)
    assert printed(rows.heading()) == [headings]
    (row,) = printed(rows.row(1, result(tried=20, seed=77, counts=COUNTS)))
    assert (" 77 " in row) == ("Seed" in headings)


def test_the_ranks_of_a_failure_are_at_least_those_of_its_case() -> None:
    for counts, most in ((CaseCounts(20), "2"), (COUNTS, "3")):
        entry = result(WRONG, tried=1, seed=77, counts=counts, case=CASE)
        (row,) = printed(tables.VerdictRows.of([("Ring", "adjoint")], 20).row(1, entry))
        assert f" {most} 77 " in row


def test_a_probability_is_never_rounded_down() -> None:
    for probability in (1e-9, 1.0000001e-9, 9.9e-10, 2 / 4095, 1.0, 3e-301):
        text = tables._rounded_up(probability)
        assert probability <= float(text) <= 11 * probability


@pytest.mark.parametrize(("number", "text"), [(0, "0 ranks"), (1, "1 rank"), (2, "2 ranks")])
def test_a_number_of_things(number: int, text: str) -> None:
    assert counted(number, "rank") == text


def test_a_number_of_things_whose_plural_is_no_s_more() -> None:
    assert counted(1, "crash", "crashes") == "1 crash"
    assert counted(2, "crash", "crashes") == "2 crashes"


@pytest.mark.parametrize(("ranks", "text"), [([3], "rank 3"), ([0, 2], "ranks 0, 2")])
def test_listed_ranks(ranks: list[int], text: str) -> None:
    assert ranks_listed(ranks) == text


# Counts of cases.


def test_counts_of_two_searches_add_up_and_of_ranks_the_most_count() -> None:
    counts = CaseCounts(9, 1, 2, 3, 4, 5)
    counts.add(CaseCounts(100, 10, 20, 30, 3, 50))
    assert counts == CaseCounts(9, 11, 22, 33, 4, 55)


@pytest.mark.parametrize(
    ("counts", "needs_several", "headline"),
    [
        (CaseCounts(5), False, "no case could be drawn: the subject's strategy rejects them all"),
        (CaseCounts(5, rejected={"a": 2, "b": 3}), False, "no case could be judged of 5 that were drawn"),
        (CaseCounts(5, 5), True, "no case of several ranks could be judged, only 5 of one rank"),
        (CaseCounts(5, 4, 4), True, "only 4 of 5 cases could be judged"),
        (CaseCounts(5, 5, 1), True, ""),
        (CaseCounts(5, 5), False, ""),
    ],
)
def test_too_few_cases_are_told_with_their_number(
    counts: CaseCounts, needs_several: bool, headline: str
) -> None:
    verdict = counts.shortfall(needs_several_ranks=needs_several)
    assert (verdict.headline if verdict else "") == headline


def test_the_commonest_three_reasons_are_told_with_their_numbers() -> None:
    counts = CaseCounts(9, 1, rejected={"a": 1, "b": 5, "c": 3, "d": 4})
    verdict = counts.shortfall(needs_several_ranks=False)
    assert verdict is not None
    assert verdict.lines == (("rejected", "5: b"), ("rejected", "4: d"), ("rejected", "3: c"))


def test_drawing_is_given_up_after_eight_rejected_cases_for_each_that_was_asked_for() -> None:
    assert not CaseCounts(5, rejected={"a": 30, "b": 10}).is_hopeless
    assert CaseCounts(5, rejected={"a": 30, "b": 11}).is_hopeless


def test_the_worst_of_each_figure_is_kept_and_texts_that_differ_are_various() -> None:
    drawn = DrawnCases(1)
    for figures in (
        {
            Figure.GAIN: 3,
            Figure.MISS_PROBABILITY: 1e-12,
            Figure.PROVED: "a sample",
            Figure.GAIN_SOURCE: "probe",
        },
        {
            Figure.GAIN: 2,
            Figure.MISS_PROBABILITY: 1e-10,
            Figure.PROVED: "all entries",
            Figure.GAIN_SOURCE: "probe",
        },
    ):
        drawn._add_figures(figures)  # type: ignore[arg-type]
    assert drawn.figures == {
        Figure.GAIN: 3,
        Figure.MISS_PROBABILITY: 1e-10,
        Figure.PROVED: "various",
        Figure.GAIN_SOURCE: "probe",
    }


# A failure, in text and in JSON.


@pytest.mark.parametrize(
    ("given", "history"),
    [
        (dict(tried=1, drawn_ranks=2), "(found after 1 case, on 2 ranks)"),
        (dict(tried=12, drawn_ranks=8), "(found after 12 cases, shrunk to 2 ranks)"),
        (dict(tried=12, drawn_ranks=8, is_smallest=True), "(found after 12 cases, shrunk to 2 ranks, no smaller neighbour fails)"),
    ],
)  # fmt: skip
def test_a_failure_tells_after_how_many_cases_and_on_how_many_ranks(
    given: dict[str, Any], history: str
) -> None:
    first, *_ = failure_text(result(WRONG, case=CASE, **given)).splitlines()
    assert first == f"Ring: adjoint is not the transpose of forward        {history}"


def test_a_failure_shows_its_memory_values_and_parameters() -> None:
    case = Case(
        "Ring", "adjoint", 2, {"side": 3}, InputSetting(5, "torch", "strided", "offset"), 0, values="tiny"
    )
    lines = [" ".join(line.split()) for line in failure_text(result(WRONG, case=case)).splitlines()]
    assert lines[1:] == [
        "ranks 2",
        "side 3",
        "memory torch, x strided, y offset",
        "values tiny",
        "form floating",
    ]


def test_the_figures_of_the_text_stand_in_the_json_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checked = [result(tried=20, seed=77, seconds=1.23456, figures=EXACT, exact=20, counts=COUNTS)]
    data: Any = as_data(checked, "simulated", 8, ExitCode.COHERENT, 3, complete=True, nameless=["a note"])
    (entry,) = data.pop("reports")
    assert data == {
        "schema": 1,
        "world": "simulated",
        "ranks": 8,
        "complete": True,
        "exit_code": 0,
        "asked": 3,
        "notes": [*summary.notes(checked), "a note"],
    }
    assert (entry["cases"], entry["seed"], entry["seconds"]) == (20, 77, 1.235)
    assert entry["figures"] == {"gain": 2, "gain from": "declared", "miss probability": 1.5e-10}
    assert entry["counts"] == {
        "asked": 20,
        "judged": 20,
        "on_several_ranks": 15,
        "communicating": 14,
        "most_ranks": 3,
        "lacking_messages": 0,
        "rejected": {},
        "is_cut_short": False,
        "undecided": 0,
    }
    assert (entry["verdict"], entry["case"], entry["known"]) == ("coherent", None, None)


def test_figures_that_json_does_not_have_stand_there_as_texts() -> None:
    figures: dict[Figure, float | str] = dict(
        zip(Figure, (float("inf"), "probe", float("-inf"), float("nan"), 3), strict=False)
    )
    assert list(json_figures(figures).values()) == ["inf", "probe", "-inf", "nan", 3]


def test_silence_is_told_of_subjects_none_of_whose_checks_saw_a_message() -> None:
    def of(subject: str, counts: CaseCounts) -> tuple[str, CaseCounts]:
        return subject, counts

    quiet, lacking, one_rank = CaseCounts(5, 5, 4), CaseCounts(5, 5, 4, lacking_messages=1), CaseCounts(5, 5)
    text = summary.silence(
        [of("A", quiet), of("B", lacking), of("C", one_rank), of("D", quiet), of("D", COUNTS)]
    )
    assert text.startswith(
        "A, B: no rank communicated with another in any case; the spaces of B need messages"
    )
    assert summary.silence([of("C", one_rank), of("D", COUNTS)]) == ""
