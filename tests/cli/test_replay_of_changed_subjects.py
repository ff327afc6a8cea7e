"""A stored failure does not stand in the way of a subject that was corrected where its cases are declared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.running import run

pytestmark = pytest.mark.mpi_skip

SUBJECT = """
import adjointlab as al

class Scaled(al.LinearOperator):
    def __init__(self, comm, layout, factor):
        self.comm, self.domain, self.codomain = comm, al.Space(layout), al.Space(layout)
        self.factor = factor

    def forward(self, x):
        return (self.factor * x,)

    def adjoint(self, y):
        return (2 * y,)

@al.subject(Scaled)
def cases(draw, ranks):
    return dict(layout=al.Layout((3,), (ranks,)), factor=3)
"""

CHECK = ("adjointlab", "check", "scaled.py", "--check", "adjoint", "--cases", "3", "--ranks", "2")


@pytest.fixture
def subject(tmp_path: Path) -> Path:
    """A subject with a stored failure, for the factor 3."""
    file = tmp_path / "scaled.py"
    file.write_text(SUBJECT)
    assert run(*CHECK, cwd=tmp_path).returncode == 1
    return file


def test_a_stored_case_that_fails_still_says_that_it_is_one_and_what_to_do_if_it_is_drawn_no_more(
    subject: Path,
) -> None:
    subject.write_text(SUBJECT.replace("factor=3)", "factor=4 - 2)"))
    again = run(*CHECK, cwd=subject.parent)
    assert again.returncode == 1
    assert (
        "stored   this stored case still fails, so none was drawn; remove it if the strategy" in again.stdout
    )
    for file in subject.parent.glob(".adjointlab/*"):
        file.unlink()
    assert run(*CHECK, cwd=subject.parent).returncode == 0


def test_a_stored_case_that_does_not_fit_its_subject_any_more_is_passed_over_with_a_note(
    subject: Path,
) -> None:
    renamed = (
        SUBJECT.replace("factor=3)", "factor=4 - 2)")
        .replace("factor=", "by=")
        .replace("layout, factor", "layout, by")
    )
    subject.write_text(renamed.replace("self.factor = factor", "self.factor = by"))
    corrected = run(*CHECK, cwd=subject.parent)
    assert corrected.returncode == 0, corrected.stdout
    assert (
        "is not replayed: remove it, because its subject is now declared differently, in which"
        in corrected.stderr
    )
    assert "but Scaled(comm, layout, by) takes no `factor`" in corrected.stderr
    replayed = run(
        "adjointlab", "replay", stored_in(subject.parent), "--subject", subject, cwd=subject.parent
    )
    assert replayed.returncode == 2
    assert "but Scaled(comm, layout, by) takes no `factor`" in replayed.stdout


@pytest.mark.parametrize(
    ("declared", "changed", "told"),
    [
        ('arrays=("numpy",)', {"library": "torch"}, ", and has no arrays in the memory torch"),
        (
            'orders=("row-major",)',
            {"primal_order": "column-major on even ranks"},
            ", and has no arrays in column-major memory",
        ),
        ("ranks=(1,)", {"ranks": 2}, ", not for 2 ranks"),
    ],
)
def test_a_stored_case_that_is_not_declared_any_more_is_passed_over_with_a_note(
    subject: Path, declared: str, changed: dict[str, Any], told: str
) -> None:
    stored = stored_in(subject.parent)
    case = json.loads(stored.read_text())
    for entries in (case["case"], case["case"]["setting"]):
        entries.update({name: value for name, value in changed.items() if name in entries})
    stored.write_text(json.dumps(case))
    assert run(*CHECK, cwd=subject.parent).returncode == 1
    subject.write_text(SUBJECT.replace("(Scaled)", f"(Scaled, {declared})").replace("(2 * y,)", "(3 * y,)"))
    passed_over = run(*CHECK, cwd=subject.parent)
    assert passed_over.returncode == 0, passed_over.stdout
    assert f"its subject is now declared differently{told}" in passed_over.stderr


def stored_in(folder: Path) -> Path:
    (stored,) = folder.glob(".adjointlab/*.json")
    return stored


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"seed": ', '"seed": -1', "seed: at least 0, not -1"),
        ('"schedule": ', '"schedule": -1', "schedule: at least 0, not -1"),
        ('"ranks": ', '"ranks": 5000', "ranks: from 1 to 1024, not 5000"),
        (
            '"check": "adjoint"',
            '"check": "sequential"',
            "the check sequential does not apply to Scaled, as it is declared now",
        ),
    ],
)
def test_an_edited_case_that_cannot_be_is_refused_in_one_line(
    subject: Path, old: str, new: str, told: str
) -> None:
    stored = stored_in(subject.parent)
    text = stored.read_text()
    assert old in text
    stored.write_text(text.replace(old, new, 1))
    ended = run("adjointlab", "replay", str(stored), "--subject", "scaled.py", cwd=subject.parent)
    assert ended.returncode == 2
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_replay_says_where_its_subject_is_rather_than_what_is_installed(subject: Path) -> None:
    stored = stored_in(subject.parent)
    ended = run("adjointlab", "replay", str(stored), cwd=subject.parent)
    assert ended.returncode == 2
    assert (
        "Scaled, declared in scaled:cases; it is not installed; name it with --subject scaled:cases"
        in ended.stderr
    )
    assert "Broadcast" not in ended.stderr
    other = run("adjointlab", "replay", str(stored), "--subject", "Move", cwd=subject.parent)
    assert "--subject Move is another" in other.stderr


def test_a_replay_of_the_script_of_a_failure_names_the_file_beside_it(subject: Path) -> None:
    folder = subject.parent
    script = next(folder.glob(".adjointlab/*.py")).relative_to(folder)
    refused = run("adjointlab", "replay", script, "--subject", "scaled.py", cwd=folder)
    assert (refused.returncode, refused.stderr) == (
        2,
        f"adjointlab: {script} is the script of a failure, which python runs; replay takes {script.with_suffix('.json')}\n",
    )


def test_a_replay_says_if_the_subject_that_it_is_given_is_another_one_of_the_same_name(subject: Path) -> None:
    folder = subject.parent
    file = next(folder.glob(".adjointlab/*.json")).relative_to(folder)

    own = run("adjointlab", "replay", file, "--subject", "scaled.py", cwd=folder)
    assert own.returncode == 1
    assert "The case was stored" not in own.stdout

    for content, code in ((SUBJECT, 1), (SUBJECT.replace("self.factor * x", "2 * x"), 0)):
        (folder / "other.v2.py").write_text(content)
        other = run("adjointlab", "replay", file, "--subject", "other.v2.py:cases", cwd=folder)
        assert other.returncode == code
        assert other.stdout.endswith(
            "\n  The case was stored for the subject at scaled:cases, and was run here with the one at other.v2.py:cases.\n"
        )
        assert "If nothing was changed" not in other.stdout
