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
from adjointlab.configuration import configured
from tests.cli.conftest import Ended
from tests.running import ROOT, SAMPLES

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
    table = Path("summary.md").read_text()
    assert "| WrongShift | adjoint | adjoint is not the transpose of forward | `adjointlab replay" in table
    assert "Raising" not in table


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
