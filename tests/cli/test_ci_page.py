"""The workflows of docs/ci.md are well-formed, their commands run, and what these write is as the pages say."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
import yaml

from adjointlab.checks.hints import FaultKind
from adjointlab.cli.main import main
from adjointlab.configuration import configured
from tests.cli.conftest import Ended
from tests.running import ROOT, SAMPLES, run

pytestmark = pytest.mark.mpi_skip

PAGE = (ROOT / "docs" / "ci.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SCHEMA = json.loads((ROOT / "docs" / "verdicts.schema.json").read_text())
VALUES = {"${{ matrix.shard }}": "2", "$CI_NODE_INDEX": "2", "$CI_NODE_TOTAL": "2"}


def commands() -> Iterator[str]:
    """The commands of the page that need no launcher, with the variables of the CI services filled in."""
    for _, text in BLOCKS:
        for command in re.findall(r"^(?: *- (?:run: )?|srun )(adjointlab check .*)$", text, re.MULTILINE):
            for name, value in VALUES.items():
                command = command.replace(name, value)
            yield command


def test_the_page_has_a_command_for_each_service():
    assert len(list(commands())) == 3


@pytest.mark.parametrize("text", [text for language, text in BLOCKS if language == "yaml"])
def test_a_workflow_is_yaml_and_names_what_it_uploads(text: str):
    workflow = yaml.safe_load(text)
    assert ".adjointlab" in json.dumps(workflow)


def test_the_table_is_accepted(tmp_path: Path):
    (table,) = (text for language, text in BLOCKS if language == "toml")
    (tmp_path / "pyproject.toml").write_text(table)
    assert configured(tmp_path) == {"cases": 200, "ranks": 6, "xfails": tmp_path / "known_failures.txt"}


@pytest.mark.parametrize("command", list(commands()))
def test_a_command_runs_and_writes_its_files(here: Callable[..., Ended], tmp_path: Path, command: str):
    (tmp_path / "operators.py").write_text(SAMPLES.read_text())
    arguments = [f"{word}:right" if word == "operators.py" else word for word in shlex.split(command)[1:]]
    result = here(*arguments, "--cases", "5")
    assert result.returncode == 0, result.stderr
    if "--json" in arguments:
        jsonschema.validate(json.loads((tmp_path / "verdicts.json").read_text()), SCHEMA)
    if "--junit" in arguments:
        suite = ElementTree.parse(tmp_path / "verdicts.xml").getroot()
        assert [case.get("name") for case in suite] == [
            "RingShift matrix",
            "RingShift declared",
            "RingShift reentrancy",
        ]


@pytest.fixture
def written(here: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The files of a run with every kind of result."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(ROOT))
    (tmp_path / "xfails.txt").write_text("Raising adjoint  # not done\nRingShift adjoint  # fixed since\n")
    subjects = [f"{SAMPLES}:{name}" for name in ("right", "wrong", "raising", "hanging")]
    files = (
        "--json",
        "verdicts.json",
        "--junit",
        "verdicts.xml",
        "--xfails",
        "xfails.txt",
        "--html",
        "report.html",
    )
    result = here("check", *subjects, "--check", "adjoint", "--cases", "9", "--seed", "1", *files)
    assert result.returncode == 1
    return result


def test_every_kind_of_result_fits_the_schema(written: Ended):
    data = json.loads(Path("verdicts.json").read_text())
    jsonschema.validate(data, SCHEMA)
    assert {entry["verdict"] for entry in data["reports"]} == set(
        SCHEMA["$defs"]["report"]["properties"]["verdict"]["enum"]
    )
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data | {"more": 1}, SCHEMA)


def test_the_kind_of_fault_is_in_the_json_and_in_the_message_of_junit(written: Ended):
    entries = {entry["subject"]: entry for entry in json.loads(Path("verdicts.json").read_text())["reports"]}
    hints = entries["WrongShift"]["hints"]
    # One element is lost, whatever the case; what else is told depends on the case.
    assert hints[0]["kind"] in (FaultKind.MISSING, FaultKind.ZERO_RANK, FaultKind.SUM_DROPPED)
    assert entries["RingShift"]["hints"] == []
    suite = ElementTree.parse("verdicts.xml").getroot()
    messages = {case.get("name"): case[1].get("message") for case in suite if len(case) > 1}
    headline = entries["WrongShift"]["headline"]
    assert messages["WrongShift adjoint"] == "; ".join([headline, *(hint["text"] for hint in hints)])
    page = Path("report.html").read_text()
    assert all(escape(hint["text"]) in page for hint in hints)


def test_the_schema_knows_every_kind_of_hint():
    assert SCHEMA["$defs"]["hint"]["properties"]["kind"]["enum"] == [kind.value for kind in FaultKind]


def test_junit_tells_failures_errors_and_known_failures_apart(written: Ended):
    suite = ElementTree.parse("verdicts.xml").getroot()
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4",
        "failures": "2",
        "errors": "1",
        "skipped": "1",
    }
    kinds = {case.get("name"): [child.tag for child in case][1:] for case in suite}
    assert kinds == {
        "RingShift adjoint": ["failure"],
        "WrongShift adjoint": ["failure"],
        "Raising adjoint": ["skipped"],
        "Hanging adjoint": ["error"],
    }
    (wrong,) = (case for case in suite if case.get("name") == "WrongShift adjoint")
    assert "adjoint  gives that entry weight 0" in str(wrong[1].text)


def test_github_shows_a_failure_at_its_operator_and_sums_up(written: Ended):
    lines = [line for line in written.stderr.splitlines() if line.startswith("::error ")]
    assert len(lines) == 3  # all but the known failure
    (wrong,) = (line for line in lines if "title=WrongShift adjoint::" in line)
    number = SAMPLES.read_text().splitlines().index("class WrongShift(RingShift):") + 1
    assert f"samples.py,line={number}," in wrong
    assert "%0A" in wrong
    (hanging,) = (line for line in lines if "title=Hanging adjoint::" in line)
    number = next(n for n, line in enumerate(SAMPLES.read_text().splitlines(), 1) if "comm.Recv(" in line)
    assert f"samples.py,line={number}," in hanging
    table = Path("summary.md").read_text()
    assert "| WrongShift | adjoint | adjoint is not the transpose of forward | `adjointlab replay" in table
    assert "Raising" not in table


def test_an_unexpected_pass_says_what_it_is_in_every_output(written: Ended):
    reason = (
        "is coherent, although it is listed as a known failure; remove the line: fixed since (xfails.txt:2)"
    )
    suite = ElementTree.parse("verdicts.xml").getroot()
    assert next(each.get("message") for each in suite.iter("failure")) == reason
    assert f"| RingShift | adjoint | {reason} |" in Path("summary.md").read_text()
    assert f"RingShift (adjoint): {reason}" in written.stdout


def test_annotations_name_a_file_from_the_top_of_the_repository(written: Ended):
    assert Path.cwd() != ROOT
    assert "::error file=tests/samples.py,line=" in written.stderr


def test_a_fault_that_several_checks_see_is_one_annotation(
    here: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    checks = ("--check", "adjoint", "--check", "matrix")
    result = here("check", f"{SAMPLES}:wrong", *checks, "--cases", "20", "--seed", "1", "--json", "v.json")
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("::error "))
    assert "title=WrongShift adjoint%2C matrix::" in line
    for entry in json.loads(Path("v.json").read_text())["reports"]:
        # The failing case is counted: it is what the verdict rests on.
        assert entry["counts"]["judged"] == entry["cases"]
        assert entry["counts"]["most_ranks"] >= 2


def test_a_refused_command_leaves_no_green_file_of_an_earlier_run_and_is_told_to_github(
    here: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    names = ("v.json", "v.xml", "v.html")
    for name in names:
        (tmp_path / name).write_text("of an earlier run")
    files = ("--json", "v.json", "--junit", "v.xml", "--html", "v.html")
    for arguments in (["nofile.py"], [f"{SAMPLES}:right", "--shard", "3/2"], ["--casses"]):
        result = here("check", *arguments, *files)
        assert result.returncode == 2
        (line,) = (line for line in result.stderr.splitlines() if line.startswith("::error "))
        assert arguments[-1] in line
        assert arguments[-1] in Path("summary.md").read_text()
        data = json.loads(Path("v.json").read_text())
        jsonschema.validate(data, SCHEMA)
        assert (data["complete"], data["exit_code"]) == (False, 2)
        (error,) = ElementTree.parse("v.xml").getroot().iter("error")
        assert arguments[-1] in str(error.get("message"))
        assert arguments[-1] in Path("v.html").read_text()


DYING = """
import os, signal, time
import adjointlab as al

def forward(comm, x):
    {end}
    return x

@al.subject(forward=forward, adjoint=forward, name="Dying")
def dying(draw, ranks):
    space = al.Space(al.Layout((2,), al.Partition((ranks,)), axes=(None,)))
    return dict(domain=space, codomain=space)
"""


@pytest.mark.parametrize(
    ("end", "code", "why"),
    [
        (
            "os.kill(os.getpid(), signal.SIGTERM); [time.sleep(0.01) for _ in range(1000)]",
            143,
            "ended by SIGTERM",
        ),
        ("os._exit(0)", 3, "user code ended the process"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, "it is still running, or was killed"),
    ],
)
def test_a_run_that_is_ended_leaves_errors_for_what_was_not_judged(
    tmp_path: Path, end: str, code: int, why: str
):
    (tmp_path / "dying.py").write_text(DYING.format(end=end))
    files = ("--json", "v.json", "--junit", "v.xml", "--html", "v.html")
    summary = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    subjects = (f"{SAMPLES}:right", "dying.py", "--check", "adjoint", "--cases", "2", "--seed", "4")
    result = run("adjointlab", "check", *subjects, *files, "--jobs", "1", cwd=tmp_path, **summary)
    assert result.returncode == code
    suite = ElementTree.parse(tmp_path / "v.xml").getroot()
    assert {case.get("name"): [error.get("message") for error in case.iter("error")] for case in suite} == {
        "RingShift adjoint": [],
        "Dying adjoint": [next(each.get("message") for each in suite.iter("error"))],
    }
    assert why in str(next(suite.iter("error")).get("message"))
    data = json.loads((tmp_path / "v.json").read_text())
    assert (data["complete"], data["asked"], len(data["reports"])) == (False, 2, 1)
    assert why in (tmp_path / "v.html").read_text()
    if code > 0:
        annotation = next(line for line in result.stderr.splitlines() if line.startswith("::error "))
        for told in (
            annotation,
            (tmp_path / "summary.md").read_text(),
            (tmp_path / "v.xml").read_text(),
            str(data["notes"]),
        ):
            assert why in told
            assert (
                "Dying adjoint was at work (seed 4). To replay its case: adjointlab replay .adjointlab/Dying-"
                in told
            )
        assert "in 0.0 s" not in (tmp_path / "summary.md").read_text()
    if code == 3:
        assert "::error file=dying.py,line=6," in annotation
        assert "by os._exit(0) at dying.py:6" in str(data["notes"])
    if code == 143:
        assert "--subject dying.py:dying" in result.stderr
        assert "1 of 2 are done. Dying adjoint was at work (seed 4)." in result.stdout


@pytest.mark.parametrize("option", ["--json", "--junit", "--html"])
def test_a_result_that_cannot_be_written_is_not_green(here: Callable[..., Ended], option: str):
    arguments = ("check", f"{SAMPLES}:right", "--check", "adjoint", "--cases", "2")
    result = here(*arguments, option, "/dev/full")
    assert (result.returncode, "/dev/full: No space left on device" in result.stderr) == (3, True)
    here(*arguments, "--junit", "/dev/full", "--json", "v.json")
    assert json.loads(Path("v.json").read_text())["exit_code"] == 3


def test_github_is_told_of_a_result_that_cannot_be_written(
    here: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    result = here("check", f"{SAMPLES}:right", "--check", "adjoint", "--cases", "2", "--html", "/dev/full")
    assert "::--html: the results cannot be written to /dev/full: No space left on device" in result.stderr
    assert "--html: the results cannot be written to /dev/full" in Path("summary.md").read_text()


@pytest.mark.parametrize("files", [("v.json", "./v.json"), ("-", "-")])
def test_two_results_in_one_file_are_refused(here: Callable[..., Ended], files: tuple[str, str]):
    result = here("check", f"{SAMPLES}:right", "--json", files[0], "--junit", files[1])
    assert (result.returncode, "--json and --junit both name " in result.stderr) == (2, True)


def test_a_stored_failure_has_no_seed(here: Callable[..., Ended]):
    check = ("check", f"{SAMPLES}:wrong", "--check", "adjoint", "--cases", "20", "--seed", "1")
    here(*check)
    assert here(*check, "--json", "v.json", "--junit", "v.xml").returncode == 1
    data = json.loads(Path("v.json").read_text())
    jsonschema.validate(data, SCHEMA)
    assert [entry["seed"] for entry in data["reports"]] == [None]
    (seed,) = (each for each in ElementTree.parse("v.xml").iter("property") if each.get("name") == "seed")
    assert seed.get("value") == ""


def test_a_part_is_told_nothing_of_known_failures_in_another(here: Callable[..., Ended], tmp_path: Path):
    (tmp_path / "known.txt").write_text("RingShift adjoint\nRingShift nowhere\n".replace("nowhere", "matrix"))
    known = ("--xfails", "known.txt", "--cases", "2", "--check", "adjoint", "--check", "linearity")
    printed = here("check", f"{SAMPLES}:right", *known, "--shard", "2/2").stdout
    assert "known.txt:1" not in printed
    assert "known.txt:2: lists a failure of something that was not checked" in printed


def test_a_damaged_file_of_a_failure_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".adjointlab").mkdir()
    names = ("RingShift-adjoint-0000.json", "of-no-subject-1234.json", "l.json", "running.json")
    for name in names:
        (tmp_path / ".adjointlab" / name).write_text('{"schema": 1')
    with pytest.raises(SystemExit):
        main(["check", f"{SAMPLES}:right", "--check", "adjoint", "--cases", "2"])
    warning = capfd.readouterr().err
    assert "warning: this failure is not replayed: " in warning
    assert [warning.count(name) for name in names] == [1, 1, 1, 0]


def test_the_parts_of_a_plan_are_disjoint_and_together_the_whole(here: Callable[..., Ended]):
    def checked(*options: str) -> list[str]:
        here("check", f"{SAMPLES}:right", f"{SAMPLES}:wrong", "--cases", "2", "--json", "v.json", *options)
        return [
            entry["subject"] + entry["check"] for entry in json.loads(Path("v.json").read_text())["reports"]
        ]

    parts = [checked("--shard", f"{number}/3", "--jobs", "2") for number in (1, 2, 3)]
    assert sorted(each for part in parts for each in part) == sorted(checked())


@pytest.mark.parametrize("text", ["0/2", "3/2", "2", "a/b", "1/0", "-1/2"])
def test_a_part_that_there_is_not_is_refused(here: Callable[..., Ended], text: str):
    result = here("check", f"{SAMPLES}:right", f"--shard={text}")
    assert result.returncode == 2
    assert f"--shard: {text!r} is not K/N" in result.stderr
