"""The page of results: complete, self-contained, with every text of users escaped."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import adjointlab as al
from adjointlab.check_result import CheckResult
from adjointlab.checks.evidence import Evidence, Wait
from adjointlab.checks.verdict import unjudged
from adjointlab.cli.result_files import target
from adjointlab.cli.startup import UsageError
from adjointlab.engine.discovery import found_as
from adjointlab.engine.search_result import SearchResult
from adjointlab.report.html_explanation import html_explanation
from adjointlab.report.html_report import environment, html_report
from tests import samples
from tests.pictures.drawings import HOSTILE, LAYOUTS, failure
from tests.running import SAMPLES, run

pytestmark = pytest.mark.mpi_skip


class Elements(HTMLParser):
    """The elements of a page with their attributes, and its texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def hostile_result() -> CheckResult:
    """A hang with a hostile name, message and line of code."""
    evidence = Evidence(waits=(Wait(0, HOSTILE, HOSTILE, (1,)), Wait(1, HOSTILE, HOSTILE, (0,))))
    verdict = unjudged(HOSTILE, (HOSTILE, HOSTILE), evidence=evidence)
    return CheckResult(found_as(samples.wrong), SearchResult(HOSTILE, "adjoint", "simulated", verdict))


@pytest.fixture
def wrong(world: al.SimulatedWorld, tmp_path: Path) -> CheckResult:
    return failure(samples.wrong, "adjoint", tmp_path, world)


def test_text_of_users_is_never_markup() -> None:
    page = html_report([hostile_result()], environment(name=HOSTILE), [HOSTILE])
    elements = Elements(page)
    assert len(elements.named("script")) == 1
    assert not any(name.startswith("on") for _, attributes in elements.elements for name in attributes)
    assert "\x1b" not in page
    assert sum("<script>" in text for text in elements.texts) >= 5
    assert Elements(html_explanation([(HOSTILE, HOSTILE, LAYOUTS["cut"].drawing())])).named("script") == [{}]


def test_a_page_needs_nothing_but_itself(wrong: CheckResult) -> None:
    elements = Elements(html_report([wrong, hostile_result()], environment()))
    links = [
        value
        for _, attributes in elements.elements
        for name, value in attributes.items()
        if name in ("src", "href", "srcset", "action", "xlink:href")
    ]
    assert links
    assert all(str(link).startswith("data:") for link in links)
    assert not elements.named("link")
    assert "url(" not in "".join(elements.texts)
    assert any("default-src 'none'" in str(each.get("content")) for each in elements.named("meta"))


def test_the_reproducer_can_be_downloaded_as_it_was_written(wrong: CheckResult) -> None:
    assert wrong.written is not None
    assert wrong.written.script is not None
    found = {
        str(link["download"]): base64.b64decode(str(link["href"]).partition("base64,")[2]).decode()
        for link in Elements(html_report([wrong], {})).named("a")
    }
    files = [wrong.written.json, wrong.written.script]
    assert found == {path.name: path.read_text(encoding="utf-8") for path in files}


def test_each_result_is_an_entry_and_failures_are_open_and_come_first(
    wrong: CheckResult, world: al.SimulatedWorld, tmp_path: Path
) -> None:
    right = failure(samples.right, "adjoint", tmp_path, world)
    known = replace(wrong, known="list:1: known")
    unexpected = replace(right, known="list:2: mended?")
    entries = Elements(html_report([right, known, wrong, unexpected], {})).named("details")
    assert [(entry["data-kind"], "open" in entry) for entry in entries] == [
        ("incoherent", True),
        ("unexpected", True),
        ("coherent", False),
        ("expected", False),
    ]


def test_the_commands_write_pages(tmp_path: Path) -> None:
    check = [
        "adjointlab",
        "check",
        f"{SAMPLES}:wrong",
        "--check=adjoint",
        "--cases=5",
        "--seed=1",
        "--ranks=2",
    ]
    result = run(*check, "--html=report.html", cwd=tmp_path)
    assert result.returncode == 1, result.stderr
    assert "must be forward's ×1" in result.stdout
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "WrongShift" in page
    assert "2 simulated ranks" in page
    with pytest.raises(UsageError, match="--html: the folder of"):
        target("--html", str(tmp_path / "nowhere" / "report.html"))
    explained = run("adjointlab", "explain", f"{SAMPLES}:right", "--html=explained.html", cwd=tmp_path)
    assert explained.returncode == 0, explained.stderr
    assert "<svg" in (tmp_path / "explained.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("workers", [0, 2])
def test_pytest_writes_a_page_also_with_workers(tmp_path: Path, workers: int) -> None:
    pytest.importorskip("xdist")
    (tmp_path / "test_both.py").write_text(
        "from adjointlab import coherence_tests\nfrom adjointlab.engine.discovery import find_subject\n"
        f"TestRight = coherence_tests(find_subject({str(SAMPLES)!r} + ':right'), checks=['adjoint'])\n"
        f"TestWrong = coherence_tests(find_subject({str(SAMPLES)!r} + ':wrong'), checks=['adjoint'])\n",
        encoding="utf-8",
    )
    options = ["-p", "no:cacheprovider", "-p", "no:randomly", *(["-n", str(workers)] if workers else [])]
    github = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    result = run(
        "pytest",
        *options,
        "--adjointlab-cases=3",
        "--adjointlab-html=page.html",
        cwd=tmp_path,
        CI="true",
        **github,
    )
    assert result.returncode == 1, result.stdout
    (annotation,) = (line for line in result.stdout.splitlines() if line.startswith("::error file="))
    assert "title=WrongShift adjoint::" in annotation
    summary = (tmp_path / "summary.md").read_text()
    assert "| WrongShift | adjoint | adjoint is not the" in summary
    assert summary.count("2 of 2 checks judged, 1 coherent, 1 incoherent: ") == 1
    # In CI pytest cuts nothing from its short summary.
    assert result.stdout.count("must be forward's") == 1
    assert "must be forward's ×1" in result.stdout
    kinds = re.findall(r'data-kind="(\w+)" data-text', (tmp_path / "page.html").read_text(encoding="utf-8"))
    assert kinds == ["incoherent", "coherent"]


def test_a_session_whose_page_cannot_be_written_is_not_green(tmp_path: Path) -> None:
    (tmp_path / "test_right.py").write_text(
        "from adjointlab import coherence_tests\nfrom adjointlab.engine.discovery import find_subject\n"
        f"TestRight = coherence_tests(find_subject({str(SAMPLES)!r} + ':right'), checks=['adjoint'])\n",
        encoding="utf-8",
    )
    options = ("-p", "no:cacheprovider", "--adjointlab-cases=2", "--adjointlab-html=/dev/full")
    github = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    result = run("pytest", *options, cwd=tmp_path, **github)
    assert "1 passed" in result.stdout
    assert result.returncode == 3
    assert (
        "::error title=adjointlab::--adjointlab-html: the results cannot be written to /dev/full"
        in result.stdout
    )
    summary = (tmp_path / "summary.md").read_text()
    assert "--adjointlab-html: the results cannot be written" in summary
    assert "1 of 1 check judged, 1 coherent: " in summary


def test_the_environment_names_versions() -> None:
    found = environment(ranks="4")
    assert {"ranks", "Python", "numpy", "adjointlab"} <= set(found)
    assert json.dumps(found)


def test_many_failures_are_a_list(wrong: CheckResult) -> None:
    entries = Elements(html_report([wrong] * 7, {})).named("details")
    assert len(entries) == 7
    assert not any("open" in entry for entry in entries)
