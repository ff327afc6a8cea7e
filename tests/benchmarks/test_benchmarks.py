"""The scripts of the benchmarks run, and figures are written on an idle machine only."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks.timing import SMOKE

WITHOUT_MPI = [script for script in benchmarks.SCRIPTS if not script.ranks]


@pytest.mark.parametrize("script", WITHOUT_MPI, ids=lambda script: script.title)
def test_a_script_runs_with_its_least_sizes(
    script: benchmarks.Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if lacking := benchmarks.missing(script):
        pytest.skip(f"needs {lacking}")
    ((_, command),) = script.commands(smoke=True).items()
    monkeypatch.setenv(SMOKE, "1")
    monkeypatch.setattr(sys, "argv", command[1:])
    monkeypatch.syspath_prepend(str(benchmarks.FOLDER))

    code: object = 0
    try:
        runpy.run_path(command[1], run_name="__main__")
    except SystemExit as ended:
        code = ended.code or 0

    assert code == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("script", benchmarks.SCRIPTS, ids=lambda script: script.name)
@pytest.mark.parametrize("word", ["--help", "--nope"])
def test_a_script_prints_its_description_and_refuses_other_words(
    script: benchmarks.Script, word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if lacking := benchmarks.missing(script):
        pytest.skip(f"needs {lacking}")
    file = benchmarks.FOLDER / f"{script.name}.py"
    monkeypatch.setattr(sys, "argv", [str(file), word])
    monkeypatch.syspath_prepend(str(benchmarks.FOLDER))

    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(file), run_name="__main__")

    printed = capsys.readouterr()
    assert ended.value.code == (0 if word == "--help" else 2)
    assert "usage: " in (printed.out if word == "--help" else printed.err)


def test_every_script_is_run() -> None:
    scripts = {
        path.stem for path in benchmarks.FOLDER.glob("*.py") if "__main__" in path.read_text(encoding="utf-8")
    }
    assert scripts - {"__main__"} == {script.name for script in benchmarks.SCRIPTS}


def test_figures_are_not_written_where_the_machine_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(
        benchmarks, "run", lambda title, command, smoke: (ran.append(title), (0, "figures", busy))[1]
    )
    arguments = ["--only", "harness", "--write", str(tmp_path)]

    monkeypatch.setattr(benchmarks, "busy_before", lambda: "others")
    assert benchmarks.main(arguments) == 2
    assert ran == []
    monkeypatch.setattr(benchmarks, "busy_before", lambda: "")
    busy = "others, meanwhile"
    assert benchmarks.main(arguments) == 2
    assert list(tmp_path.iterdir()) == []
    assert "harness: others, meanwhile" in capsys.readouterr().err
    busy = ""
    assert benchmarks.main(arguments) == 0
    (written,) = tmp_path.iterdir()
    assert written.read_text().endswith("figures")
    assert "load" in written.read_text()


def test_time_of_the_benchmark_itself_is_not_that_of_others() -> None:
    begin = benchmarks.Moment(0.0, 100.0, 5.0)
    cores = benchmarks.os.cpu_count() or 1

    assert begin.share_of_others(benchmarks.Moment(10.0, 110.0, 15.0)) == 0
    share = begin.share_of_others(benchmarks.Moment(10.0, 110.0 + cores * 5, 15.0))
    assert share == pytest.approx(0.5)
    assert benchmarks.reason(share)
    assert not benchmarks.reason(0.0)
    assert begin.share_of_others(benchmarks.Moment(10.0, None, 15.0)) is None
