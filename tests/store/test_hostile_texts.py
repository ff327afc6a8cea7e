"""Whatever is in a name or a message: every file and every line that the lab writes is what it should be."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.check_result import CheckResult
from adjointlab.checks.check import Spaces
from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import Status, Verdict
from adjointlab.cli.output import Output, write_json
from adjointlab.engine.case import Case
from adjointlab.engine.discovery import Found
from adjointlab.engine.run_case import Stage
from adjointlab.engine.search_result import SearchResult
from adjointlab.engine.subject import Subject
from adjointlab.report.failure_text import failure_text
from adjointlab.report.json_report import as_data
from adjointlab.report.summary import summary
from adjointlab.report.tables import VerdictRows
from adjointlab.store.files import encodable
from adjointlab.store.job_log import Death, Done, JobLog
from adjointlab.store.reproducer import Written, read, write, write_case
from adjointlab.store.running_case import Progress, RunningCaseFile
from adjointlab.store.running_case import read as read_running
from adjointlab.worlds.world import WorldName
from tests.fuzzing import HOSTILE, many
from tests.running import run

pytestmark = pytest.mark.mpi_skip

TEXTS = st.lists(HOSTILE, min_size=6, max_size=6)


def same(comm: Any, *tensors: Any, **arguments: Any) -> Any:
    return tensors


@al.subject.pair(same, same, name="Same")
def subject(draw: Any, ranks: int) -> dict[str, Any]:
    return {}


def failure(texts: Sequence[str]) -> SearchResult:
    """A failure in which every text that comes from outside is one of `texts`."""
    name, key, value, headline, label, line = texts
    space = al.Space(al.Tensor(al.Layout((2,), al.Partition((2,))), "float64", name=name.strip() or "x"))
    key = "key" if key.startswith("$") or encodable(key) != key else key
    case = Case(encodable(name), "adjoint", 2, {"domain": space, key: {"a": value}}, InputSetting(), 0)
    verdict = Verdict(Status.UNJUDGED, headline, headline, ((label, line),))
    return SearchResult(encodable(name), "adjoint", "mpi", verdict, 1, 0, 0.0, case, Spaces(space, space))


def result_of(texts: Sequence[str]) -> CheckResult:
    result = failure(texts)
    named = Subject(result.subject, subject.kind, subject.build, subject.draws, subject.target)
    written = Written(Path("a", encodable(texts[3]).replace("\x00", "")), None)
    return CheckResult(Found(named, texts[4], False), result, written, unwritten=texts[5], known=texts[2])


@many(40)
@given(TEXTS)
def test_the_report_is_json_with_the_texts_in_it(texts: list[str]) -> None:
    check_result = result_of(texts)
    with TemporaryDirectory() as folder:
        path = Path(folder, "report.json")
        write_json(str(path), as_data([check_result], "mpi", 2, 3, 1, complete=True))
        content = json.loads(path.read_bytes().decode("utf-8", "strict"))
    (report,) = content["reports"]
    assert report["headline"] == texts[3]
    assert report["lines"] == [[texts[4], texts[5]]]


@many(40)
@given(TEXTS)
def test_a_terminal_gets_nothing_but_printable_lines(texts: list[str]) -> None:
    check_result, printed = result_of(texts), StringIO()
    with redirect_stdout(printed):
        Output().line(failure_text(check_result))
        Output().table(VerdictRows.of([(texts[0], "adjoint")], 1).row(1, check_result))
        Output().line(summary([check_result], 1))
    assert all(char.isprintable() or char in "\n\t" for char in printed.getvalue())


@many(40)
@given(TEXTS)
def test_a_reproducer_comes_back_and_stays_in_its_folder(texts: list[str]) -> None:
    result = failure(texts)
    assert result.case is not None
    with TemporaryDirectory() as folder:
        inside = Path(folder, "a", "b")
        written = write(result, subject, inside)
        plain = write_case(result.case, texts[0], "mpi", result.verdict, inside)
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        assert {path.parent for path in files} == {inside}
        assert all(path.name.isprintable() and len(path.name.encode()) < 256 for path in files)
        for path in (written.json, plain):
            again = read(path)
            assert again.case == result.case
            assert again.headline == encodable(texts[3])


@many(40)
@given(TEXTS)
def test_a_job_log_comes_back(texts: list[str]) -> None:
    result = failure(texts)
    name, key, value, headline, label, line = map(encodable, texts)
    with TemporaryDirectory() as folder:
        log = JobLog(Path(folder))
        log.finish(Done(texts[0], result, None, texts[1]))
        log.record_death(Death(texts[2], ((texts[3], texts[4]),), {1: texts[5]}, check_id=texts[0]))
        (done,) = log.done
        (death,) = log.deaths
    assert done.result.case == result.case
    assert (done.check_id, done.unwritten) == (name, key)
    assert (done.result.verdict.headline, done.result.verdict.lines) == (headline, ((label, line),))
    assert (death.kind, death.lines, death.ranks) == (value, ((headline, label),), {1: line})


@many(40)
@given(TEXTS)
def test_a_record_of_the_running_case_comes_back(texts: list[str]) -> None:
    case = failure(texts).case
    progress = Progress(texts[1], texts[2], "adjoint", WorldName.MPI, 2, 0)
    with TemporaryDirectory() as folder:
        file = RunningCaseFile(Path(folder), progress)
        assert case is not None
        file.record(case, 3, Stage.DRAWING)
        running = read_running(Path(folder))
        file.clear()
    assert running is not None
    assert running.case == case
    assert (running.reference, running.location) == (encodable(texts[1]), encodable(texts[2]))


FAILING = """
import json
import sys
from pathlib import Path

import pytest

import adjointlab as al
from tests.samples import RingShift, equal_blocks

TEXTS = json.loads(Path("texts.json").read_text())


def failing(text):
    class Failing(RingShift):
        def forward(self, x):
            raise RuntimeError(text)

    @al.subject(Failing, name=text or "empty")
    def cases(draw, ranks):
        return equal_blocks(draw, ranks)

    return cases


for number, text in enumerate(TEXTS):
    globals()[f"TestNumber{number}"] = al.coherence_tests(failing(text), checks=["adjoint"])
"""


def test_a_junit_file_is_xml_with_every_failure(tmp_path: Path) -> None:
    texts = [f"{text} {number}" for number, text in enumerate(hostile_texts())]
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    (tmp_path / "test_all.py").write_text(FAILING)
    ended = run("pytest", "-q", "--adjointlab-cases=1", "--junitxml=out.xml", cwd=tmp_path)
    root = ElementTree.parse(tmp_path / "out.xml").getroot()
    assert (ended.returncode, len(root.findall(".//failure"))) == (1, len(texts)), ended.stdout + ended.stderr


def hostile_texts() -> list[str]:
    """The listed ones of the hostile texts."""
    return [
        "\x1b[2J",
        "\ud800",
        "\x00",
        "]]>&<x/>",
        "\u202e",
        "\r\n",
        "\ufffe\uffff",
        "x" * 3000,
        '"""',
        "[bold]",
    ]
