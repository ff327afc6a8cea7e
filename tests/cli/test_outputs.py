"""Outputs go where they are pointed, replace nothing but files, and no verdict is lost over one that cannot be written."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from adjointlab.cli.loading import loading_shown
from adjointlab.cli.output import Output, write_json
from adjointlab.cli.result_files import ResultFiles, RunResults, folder_of_failures
from adjointlab.cli.startup import UsageError
from adjointlab.engine.discovery import NotFound, find_subject
from adjointlab.store.files import open_file, overwrite
from tests.running import ROOT, SAMPLES

pytestmark = pytest.mark.mpi_skip

OPTIONS = f"{SAMPLES}:wrong --check adjoint --cases 20 --seed 1 --ranks 2"


def shell(command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Bash, in which `$adjointlab` is the program, and `$check` the command on an operator that is incoherent: exit code 1."""
    setup = f"adjointlab='{sys.executable} -m adjointlab'\ncheck=\"$adjointlab check {OPTIONS}\"\n"
    return subprocess.run(
        ["bash", "-c", setup + command],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        timeout=120,
        check=False,
    )


def test_a_link_stays_and_its_target_is_written(tmp_path: Path):
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("before")
    target.chmod(0o640)
    link.symlink_to("target.json")
    write_json(str(link), {"a": 1})

    assert link.is_symlink()
    assert json.loads(target.read_text()) == {"a": 1}
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    dangling = tmp_path / "dangling"
    dangling.symlink_to("made.json")
    write_json(str(dangling), {"a": 2})
    assert json.loads((tmp_path / "made.json").read_text()) == {"a": 2}


def test_a_fifo_stays_and_its_reader_gets_everything(tmp_path: Path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(fifo.read_text()))
    reader.start()
    write_json(str(fifo), {"a": 1})
    reader.join(10)

    assert json.loads(got[0]) == {"a": 1}
    assert stat.S_ISFIFO(fifo.stat().st_mode)


@pytest.mark.parametrize(("minor", "full"), [(3, False), (7, True)], ids=["null", "full disk"])
def test_a_device_stays_and_a_full_disk_is_said(tmp_path: Path, minor: int, full: bool):
    node = tmp_path / "node"
    try:
        os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
        node.open("wb").close()
    except OSError as error:
        pytest.skip(f"no device can be made here: {error}")
    problem = write_json(str(node), {"a": 1})

    assert stat.S_ISCHR(node.stat().st_mode)
    assert problem == (f"the results cannot be written to {node}: No space left on device" if full else "")


def test_a_file_in_a_folder_without_permission_is_written_over(tmp_path: Path):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    file = tmp_path / "file"
    file.write_text("before, and longer")
    tmp_path.chmod(0o555)
    overwrite(file, b"after")
    assert file.read_bytes() == b"after"


def test_a_file_that_cannot_be_written_costs_no_verdict(tmp_path: Path):
    with socket.socket(socket.AF_UNIX) as unwritable:
        unwritable.bind(os.path.relpath(tmp_path / "socket"))
        result = shell("$check --json socket", tmp_path)

    assert (result.returncode, b"WrongShift: adjoint" in result.stdout) == (1, True)
    assert b"the results cannot be written to" in result.stderr
    assert b"Traceback" not in result.stderr


def test_a_folder_is_refused_before_anything_runs(tmp_path: Path):
    result = shell("$check --json .", tmp_path)
    assert (result.returncode, result.stdout) == (2, b"")
    assert b"--json: . is a folder" in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        "$check --json /dev/stdout",
        "$check --json /dev/stdout > out; code=$?; cat out; exit $code",
        "$check --json /dev/stdout | cat; exit ${PIPESTATUS[0]}",
        "$check --json >(cat >made) >/dev/null; code=$?; sleep .5; cat made; exit $code",
        "$check --json -",
    ],
)
def test_standard_output_and_process_substitution_get_the_results_alone(tmp_path: Path, command: str):
    result = shell(command, tmp_path)

    assert json.loads(result.stdout)["complete"], result.stderr
    assert result.returncode == 1


@pytest.mark.parametrize("redirection", ["| true; exit ${PIPESTATUS[0]}", ">&-"], ids=["pipe", "closed"])
def test_a_closed_standard_output_ends_quietly_with_the_code_of_the_verdicts(
    tmp_path: Path, redirection: str
):
    result = shell(f"$check {redirection}", tmp_path)
    assert (result.returncode, result.stderr) == (1, b"")


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_code_that_prints_where_nobody_reads_is_judged_as_it_is(tmp_path: Path, jobs: str):
    called = "    def shifted(self, x: Any, step: int) -> Any:\n"
    source = SAMPLES.read_text()
    assert source.count(called) == 1
    (tmp_path / "talkative.py").write_text(
        source.replace(called, f"{called}        print('called', flush=True)\n")
    )
    check = f"check talkative.py:right --check adjoint --check purity --cases 20 --jobs {jobs}"
    result = shell(f"$adjointlab {check} | true; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.parametrize("prefix", ["", "run -- $adjointlab "], ids=["alone", "supervised"])
@pytest.mark.parametrize("redirection", ["2>&-", ">&- 2>&-", "<&-"])
def test_standard_streams_that_are_closed_change_no_exit_code(tmp_path: Path, prefix: str, redirection: str):
    for subject, code in (("right", 0), ("wrong", 1)):
        command = f"$adjointlab {prefix}check {SAMPLES}:{subject} --check adjoint --cases 5 {redirection}"
        assert shell(command, tmp_path).returncode == code


def test_a_supervised_job_whose_output_is_lost_on_a_full_disk_is_no_success(tmp_path: Path):
    for subject, code in (("right", 3), ("wrong", 1)):
        check = f"$adjointlab check {SAMPLES}:{subject} --check adjoint --cases 5"
        result = shell(f"$adjointlab run -- {check} >/dev/full", tmp_path)
        assert result.returncode == code
        assert result.stderr.splitlines() == [b"adjointlab run: standard output: No space left on device"]


@pytest.mark.parametrize("option", ["--json", "--junit", "--html"])
def test_results_for_a_closed_standard_output_are_refused_before_anything_is_run(tmp_path: Path, option: str):
    result = shell(f"$check {option} - >&-", tmp_path)
    message = f"adjointlab: {option}: standard output is closed; name a file\n"
    assert (result.returncode, result.stderr.decode()) == (2, message)


@pytest.mark.parametrize("command", ["", "check", "explain"])
def test_help_that_nobody_reads_ends_quietly_and_on_a_full_disk_in_one_line(tmp_path: Path, command: str):
    read = shell(f"$adjointlab {command} --help | true; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert (read.returncode, read.stderr) == (0, b"")
    full = shell(f"$adjointlab {command} --help >/dev/full", tmp_path)
    assert full.returncode == 3
    assert full.stderr.splitlines() == [b"adjointlab: standard output: No space left on device"]


def test_a_full_standard_output_is_one_line_of_standard_error(tmp_path: Path):
    result = shell("$check >/dev/full", tmp_path)
    assert result.returncode == 1
    assert result.stderr.splitlines() == [b"adjointlab: standard output: No space left on device"]


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_any_encoding_of_the_terminal_shows_the_verdict(tmp_path: Path, encoding: str):
    source = SAMPLES.read_text().replace(
        "the second rank has had enough", "\\ud800\\u2192\\xe9\\x1b[31m\\u202e[/]"
    )
    (tmp_path / "hostile.py").write_text(
        source.replace("class Raising", "class Ünicode").replace("(Raising)", "(Ünicode)")
    )
    command = f"{sys.executable} -m adjointlab check hostile.py:raising --check adjoint --cases 20 --ranks 2 --json out.json"
    result = shell(command, tmp_path, PYTHONIOENCODING=encoding)

    shown = result.stdout.decode(encoding)
    assert result.returncode == 3, result.stderr
    assert "could not be judged" in shown
    assert "\\ud800" in shown
    assert "\\x1b[31m\\u202e[/]" in shown
    assert ("→" if encoding == "utf-8" else "->") in shown
    assert ("Ünicode" if encoding != "ascii" else "\\xdcnicode") in shown
    assert "\ud800" in json.loads((tmp_path / "out.json").read_text())["reports"][0]["headline"]
    replayed = shell(
        f"{command.partition(' check')[0]} replay .adjointlab/*adjoint*.json --subject hostile.py:raising",
        tmp_path,
    )
    assert b"\x1b" not in replayed.stdout + replayed.stderr
    assert replayed.returncode == 3


def test_an_operator_that_changes_the_folder_moves_no_file(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    moving = SAMPLES.read_text().replace(
        "    def forward(self, x: Any) -> Any:\n        return self.shifted",
        f"    def forward(self, x: Any) -> Any:\n        import os; os.chdir({str(tmp_path / 'elsewhere')!r})\n"
        "        return self.shifted",
        1,
    )
    (tmp_path / "moving.py").write_text(moving)
    shell(
        f"umask 027; {sys.executable} -m adjointlab check moving.py:wrong --check adjoint --json out.json",
        tmp_path,
    )

    assert not list((tmp_path / "elsewhere").iterdir())
    (stored,) = (tmp_path / ".adjointlab").glob("*.json")
    assert (tmp_path / "out.json").exists()
    for file in (stored, stored.with_suffix(".py")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_no_link_fifo_or_folder_is_opened_as_a_file_of_the_lab(tmp_path: Path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    os.close(open_file(tmp_path / "file", os.O_RDWR))
    for name in ("link", "fifo", "folder"):
        with pytest.raises(OSError, match=r".+"):
            open_file(tmp_path / name, os.O_RDONLY)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("target")], ids=["fifo", "link"])
@pytest.mark.parametrize("name", ["running.json", "WrongShift-adjoint-0000.json"])
def test_a_fifo_or_link_among_the_failures_neither_hangs_nor_leads_elsewhere(tmp_path: Path, name: str, make):
    target, folder = tmp_path / "target", tmp_path / ".adjointlab"
    target.touch()
    folder.mkdir()
    make(folder / name)
    result = shell("$check", tmp_path)

    assert result.returncode == 1, result.stderr
    assert not target.read_bytes()
    assert (folder / name).is_fifo() or (folder / name).is_symlink()


def test_a_report_that_is_lost_on_a_full_disk_is_no_success(tmp_path: Path):
    coherent = f"{sys.executable} -m adjointlab check {OPTIONS.replace(':wrong', ':right')}"
    result = shell(f"{coherent} --json verdicts.json >/dev/full", tmp_path)
    assert result.returncode == 3
    assert json.loads((tmp_path / "verdicts.json").read_text())["exit_code"] == 3


def test_printing_to_a_stream_without_encoding_raises_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdout", None)
    Output().line("→ \ud800")


@pytest.mark.parametrize(
    ("variables", "is_one"),
    [
        ({}, True),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, False),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "COLUMNS": "80"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "COLUMNS": "80", "TERM": "dumb"}, False),
    ],
)
def test_a_terminal_without_columns_that_a_launcher_gives_its_ranks_is_taken_for_a_file(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], is_one: bool
):
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    reading, writing = os.openpty()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        out = Output()
        assert (out.is_terminal, out.console.is_terminal, out.console.width == 160) == (
            is_one,
            is_one,
            not is_one,
        )
        monkeypatch.setenv("FORCE_COLOR", "1")
        assert out.console.is_terminal


@pytest.mark.parametrize("kind", ["xterm", "dumb"])
def test_a_dumb_terminal_is_given_no_line_that_is_erased(monkeypatch: pytest.MonkeyPatch, kind: str):
    monkeypatch.setenv("TERM", kind)
    reading, writing = os.openpty()
    with os.fdopen(reading, "rb", buffering=0) as shown, os.fdopen(writing, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with loading_shown(is_shown=True):
            pass
        Output(to_stderr=True).line("the end")
        text = shown.read(1000)
    assert (b"loading" in text, b"\x1b" in text) == ((True, True) if kind == "xterm" else (False, False))


def test_an_interrupt_while_the_engine_is_imported_leaves_no_file_of_an_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "verdicts.json"
    path.write_text("of an earlier run")
    write, calls = ResultFiles.write, []

    def interrupted_at_first(self: ResultFiles, run: RunResults) -> list[str]:
        calls.append(run)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return write(self, run)

    monkeypatch.setattr(ResultFiles, "write", interrupted_at_first)
    with pytest.raises(KeyboardInterrupt), ResultFiles(json=str(path)).until_loaded(2):
        pass
    written = json.loads(path.read_text())
    assert (written["complete"], written["exit_code"]) == (False, 130)


PRINTING = """
import os, subprocess
import adjointlab as al

print("at import")

class Doubled(al.LinearOperator):
    gain = 2

    def __init__(self, comm):
        self.comm = comm
        self.domain, self.codomain = al.Space(al.Layout((2,), (1,))), al.Space(al.Layout((2,), (1,)), name="y")

    def forward(self, x):
        print("in a call")
        os.write(1, b"by descriptor")
        return 2 * x

    def adjoint(self, y):
        return 2 * y

@al.subject.operator(Doubled)
def doubled(draw, ranks):
    return {}
"""


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_standard_output_has_nothing_but_the_json_that_is_asked_for_there(tmp_path: Path, jobs: str):
    (tmp_path / "printing.py").write_text(PRINTING)
    command = f"{sys.executable} -m adjointlab check printing.py --cases 3 --ranks 1 --json - --jobs {jobs}"
    ended = shell(command, tmp_path)
    assert ended.returncode == 0
    assert json.loads(ended.stdout)["complete"] is True
    for printed in (b"at import", b"in a call", b"by descriptor", b"checks judged"):
        assert printed in ended.stderr


def test_what_code_prints_goes_to_standard_output_where_no_json_does(tmp_path: Path):
    (tmp_path / "printing.py").write_text(PRINTING)
    ended = shell(
        f"{sys.executable} -m adjointlab check printing.py --cases 3 --ranks 1 --json v.json", tmp_path
    )
    assert b"at import" in ended.stdout
    assert b"by descriptor" in ended.stdout


def test_no_report_is_written_over_a_python_file(tmp_path: Path):
    (tmp_path / "printing.py").write_text(PRINTING)
    for option in ("--json", "--junit", "--html"):
        ended = shell(f"{sys.executable} -m adjointlab check {option} printing.py", tmp_path)
        assert ended.returncode == 2
        assert f"{option}: printing.py would be overwritten".encode() in ended.stderr
    assert (tmp_path / "printing.py").read_text() == PRINTING


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="there is no /proc")
def test_a_file_that_cannot_be_made_is_refused_before_anything_runs():
    for option in ("json", "junit", "html"):
        given = {"json": None, "junit": None, "html": None, option: "/proc/new"}
        with pytest.raises(UsageError, match=rf"--{option}: /proc/new cannot be written"):
            ResultFiles.checked(**given)


def test_a_file_that_may_be_written_needs_no_folder_that_may(tmp_path: Path):
    file = tmp_path / "verdicts.json"
    file.touch()
    tmp_path.chmod(0o555)
    assert ResultFiles.checked(json=str(file), junit=None, html=None).json == str(file)


def test_a_name_that_is_too_long_is_refused_before_anything_runs(tmp_path: Path):
    name = str(tmp_path / ("x" * 300))
    with pytest.raises(UsageError, match=r"--json: .* cannot be written: .*: File name too long"):
        ResultFiles.checked(json=name, junit=None, html=None)
    with pytest.raises(UsageError, match=r"--folder: .*: File name too long"):
        folder_of_failures(Path(name))
    with pytest.raises(NotFound, match="there is no Python file of that name"):
        find_subject(f"{name}.py:shifts")
    assert ResultFiles.named_in(["check", "--json", f"{name}/v.json"]) == ResultFiles()


def test_a_file_that_cannot_be_written_once_a_command_begins_is_a_usage_error(tmp_path: Path):
    files = ResultFiles(json=str(tmp_path / "gone" / "v.json"), junit=str(tmp_path / "v.xml"))
    with pytest.raises(UsageError, match="--json: the results cannot be written"), files.until_loaded(2):
        pytest.fail("it has begun")


def test_a_file_that_is_named_twice_is_not_written(tmp_path: Path):
    (tmp_path / "a.txt").write_text("before")
    ended = shell("$check --json a.txt --junit a.txt", tmp_path)
    assert ended.returncode == 2
    assert (tmp_path / "a.txt").read_text() == "before"


LOST = (
    PRINTING
    + """
other = al.subject.operator(Doubled, name="other")(lambda draw, ranks: {})
del doubled
"""
)


def test_what_may_be_meant_to_be_checked_and_is_not_is_told_quietly_too(tmp_path: Path):
    (tmp_path / "lost.py").write_text(LOST)
    ended = shell(f"{sys.executable} -m adjointlab check lost.py --cases 3 --ranks 2 --quiet", tmp_path)
    assert ended.returncode == 0
    assert b"1 subject (Doubled) to which no name refers any more: not checked" in ended.stderr
    assert b"other: no rank communicated with another in any case" in ended.stderr
    assert b"judged" not in ended.stdout + ended.stderr
