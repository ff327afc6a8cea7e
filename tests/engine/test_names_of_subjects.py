"""Each subject has a place and a name of its own in reports and files, whoever made it and whatever its functions are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adjointlab.check_result import CheckResult
from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import coherent, incoherent
from adjointlab.engine.case import Case
from adjointlab.engine.counts import CaseCounts
from adjointlab.engine.discovery import Found, find, found_as
from adjointlab.engine.search_result import SearchResult
from adjointlab.report.failure_text import failure_text, replay_command
from adjointlab.report.json_report import as_data
from adjointlab.report.junit import as_junit
from adjointlab.report.recap import recap
from adjointlab.report.summary import blind_spots, notes
from adjointlab.session import kept
from adjointlab.store.corpus import stored
from adjointlab.store.known_failures import read

FACTORY = """
import adjointlab as al

def subject_of(forward, adjoint):
    @al.subject.pair(forward, adjoint)
    def cases(draw, ranks):
        space = al.Space(al.Layout((2 * ranks,), (ranks,)))
        return dict(domain=space, codomain=space)
    return cases
"""

SUBJECTS = """
from {factory} import subject_of

def twice(comm, x): return 2 * x
def thrice(comm, x): return 3 * x
def copied(comm, x): return x.copy()

one = subject_of(twice, copied)
other = subject_of(thrice, copied)
namesake = subject_of(thrice, twice)
"""

COUNTS = {"asked": 5, "judged": 5, "on_several_ranks": 4}


@pytest.fixture
def subjects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Found]:
    """The subjects of a file, all made by a function of another one; the last two have one forward function."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = tmp_path.name.replace("-", "_")
    Path(f"factory_{name}.py").write_text(FACTORY)
    Path(f"made_{name}.py").write_text(SUBJECTS.format(factory=f"factory_{name}"))
    return find([f"made_{name}.py"])


def failure(found: Found, check: str = "adjoint", headline: str = "wrong") -> CheckResult:
    case = Case(found.subject.name, check, 1, {"side": 3}, InputSetting(5), 0)
    return kept(
        found,
        SearchResult(found.subject.name, check, "simulated", incoherent(headline), case=case),
        Path("stored"),
    )


def test_the_place_of_a_subject_is_its_variable_though_another_module_made_it(subjects: list[Found]) -> None:
    for entry, variable in zip(subjects, ("one", "other", "namesake"), strict=True):
        assert entry.subject.location.endswith(f":{variable}")
        assert found_as(entry.subject) == entry
        assert find([found_as(entry.subject).reference]) == [entry]


def test_failures_of_different_subjects_are_never_told_as_one(subjects: list[Found]) -> None:
    one, *_ = subjects
    assert failure(one).fault == failure(one, "matrix").fault
    assert len({failure(each).fault for each in subjects}) == 3
    assert sum(line.endswith("(adjoint): wrong") for line in recap([failure(each) for each in subjects])) == 3


def test_subjects_of_one_name_have_files_of_their_own_for_the_same_case(subjects: list[Found]) -> None:
    _, other, namesake = subjects
    files = [entry.written.json for entry in (failure(other), failure(namesake)) if entry.written]
    assert len({*files}) == 2
    for found, file in zip((other, namesake), files, strict=True):
        assert [path for path, _ in stored(Path("stored"), found.subject, "adjoint")] == [file]
        assert file.with_suffix(".py").is_file()
        assert failure(found, headline="wrong again").written == failure(found).written
    assert replay_command(failure(namesake)).endswith(f"{files[1].name} --subject {namesake.reference}")


def test_reports_tell_subjects_of_one_name_apart_by_their_variables(subjects: list[Found]) -> None:
    results = [failure(each) for each in subjects]
    names = ["twice", "thrice[other]", "thrice[namesake]"]
    data: Any = as_data(results, "simulated", 8, 1, 3, complete=True)
    assert [each.subject.label for each in subjects] == names
    assert [entry["subject"] for entry in data["reports"]] == names
    assert [failure_text(entry).partition(":")[0] for entry in results] == names
    assert [line.split()[0] for line in recap(results) if line.endswith("wrong")] == names
    assert all(f'name="{name} adjoint"' in as_junit(results) for name in names)
    assert blind_spots(results).startswith(f"{', '.join(names)}: no reference")


def test_a_known_failure_is_that_of_one_of_several_subjects_of_one_name(subjects: list[Found]) -> None:
    Path("known.txt").write_text("thrice[other] adjoint  # until it is mended\n")
    known = read(Path("known.txt"))
    expected = [known.of_check(each.subject.label, "adjoint") is not None for each in subjects]
    assert expected == [False, True, False]


def test_silence_of_a_subject_is_said_though_another_of_its_name_sends(subjects: list[Found]) -> None:
    def judged(found: Found, communicating: int) -> CheckResult:
        counts = CaseCounts(**COUNTS, communicating=communicating)
        return CheckResult(found, SearchResult("thrice", "adjoint", "simulated", coherent(), counts=counts))

    elsewhere = Found(subjects[0].subject, "elsewhere.py:one", False)
    for speaking, silent, name in (
        (subjects[1], subjects[2], "thrice[namesake]"),
        (elsewhere, Found(elsewhere.subject, "here.py:one", False), "thrice (here.py:one)"),
    ):
        said = notes([judged(speaking, 4), judged(silent, 0)])
        assert any(line.startswith(f"{name}: no rank communicated") for line in said)
