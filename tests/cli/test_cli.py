"""The command line: what it prints, where, and with which code it ends."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from adjointlab.cli.main import main
from tests.cli.conftest import Ended
from tests.running import ROOT, SAMPLES, run, run_python

# One process starts the others.
pytestmark = pytest.mark.mpi_skip


def cli(*arguments: str | Path, cwd: Path, ranks: int = 0) -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    return run("adjointlab", *arguments, cwd=cwd, ranks=ranks)


def test_a_right_operator_is_coherent(here: Callable[..., Ended], tmp_path: Path) -> None:
    result = here("check", f"{SAMPLES}:right", "--cases", "5", "--ranks", "3", "--check", "adjoint")
    assert result.returncode == 0, result.stderr
    assert "RingShift" in result.stdout
    assert "1 coherent: 5 cases" in result.stdout
    assert not (tmp_path / ".adjointlab").exists()


def test_a_wrong_adjoint_is_found_stored_and_replayed_until_it_is_corrected(tmp_path: Path) -> None:
    operators = tmp_path / "operators.py"
    operators.write_text(SAMPLES.read_text())
    reference = "operators.py:wrong"
    found = cli("check", reference, "--check", "adjoint", "--json", "verdicts.json", "--quiet", cwd=tmp_path)
    assert found.returncode == 1, found.stderr
    assert "WrongShift: adjoint is not the transpose of forward" in found.stdout
    assert re.search("found after .* (shrunk to|on) 2 ranks", found.stdout)
    assert "adjoint  gives that entry weight 0" in found.stdout

    verdicts = json.loads((tmp_path / "verdicts.json").read_text())
    assert verdicts["exit_code"] == 1
    (entry,) = verdicts["reports"]
    assert entry["replay"] in found.stdout
    assert entry["replay"] == f"adjointlab replay {entry['reproducer']} --subject {reference}"

    command = entry["replay"].split()[1:]
    again = cli(*command, cwd=tmp_path)
    assert again.returncode == 1
    assert "replayed on 2 ranks" in again.stdout

    operators.write_text(SAMPLES.read_text().replace("result[-1:] = 0", "pass"))
    corrected = cli(*command, cwd=tmp_path)
    assert corrected.returncode == 0, corrected.stderr
    assert "coherent" in corrected.stdout


def test_a_replay_offers_no_script_that_is_not_there(here: Callable[..., Ended], tmp_path: Path) -> None:
    here("check", f"{SAMPLES}:wrong", "--check", "adjoint", "--quiet")
    (script,) = (tmp_path / ".adjointlab").glob("*.py")
    replay = ("replay", str(script.with_suffix(".json")), "--subject", f"{SAMPLES}:wrong")
    assert script.name in here(*replay).stdout
    script.unlink()
    assert script.name not in here(*replay).stdout


def test_control_characters_of_a_stored_headline_never_reach_the_terminal(
    here: Callable[..., Ended], tmp_path: Path
) -> None:
    here("check", f"{SAMPLES}:wrong", "--check", "adjoint", "--quiet")
    (stored,) = (tmp_path / ".adjointlab").glob("*.json")
    content = json.loads(stored.read_text()) | {"headline": "\x1b]0;title\x07\u202e", "kind": "another"}
    stored.write_text(json.dumps(content))
    result = here("replay", str(stored), "--subject", f"{SAMPLES}:wrong")
    assert "was another failure when it was stored: \\x1b]0;title\\x07\\u202e" in result.stdout
    assert result.stdout.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("name", "headline"),
    [("raising", "raised RuntimeError"), ("hanging", "deadlock"), ("undrawable", "raised ZeroDivisionError")],
)
def test_what_cannot_be_judged_ends_with_3(here: Callable[..., Ended], name: str, headline: str) -> None:
    result = here("check", f"{SAMPLES}:{name}", "--check", "adjoint", "--cases", "20", "--json", "-")
    assert result.returncode == 3, result.stderr
    (entry,) = json.loads(result.stdout)["reports"]
    assert entry["verdict"] == "could not be judged"
    assert headline in entry["headline"]
    if entry["reproducer"]:
        replayed = here("replay", entry["reproducer"], "--subject", f"{SAMPLES}:{name}")
        assert replayed.returncode == 3


def test_usage_errors_end_with_2_and_say_what_to_do(here: Callable[..., Ended], tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"schema": 1}')
    for arguments, message in (
        (("check", "nowhere.py:x"), "nowhere.py:x: there is no Python file of that name"),
        (("check", f"{SAMPLES}:right", "--check", "nonsense"), "--check: 'nonsense' is not one of adjoint"),
        (
            ("check", f"{SAMPLES}:right", "--check", "sequential"),
            "none of the subjects has the check sequential",
        ),
        (("check", "--nonsense"), "--nonsense"),
        (("replay", "nowhere.json"), "No such file"),
        (("replay", str(bad)), "bad.json"),
    ):
        result = here(*arguments)
        assert (result.returncode, result.stdout) == (2, ""), arguments
        assert message in result.stderr
        assert "Traceback" not in result.stderr


def test_list_and_explain_tell_of_a_subject(here: Callable[..., Ended]) -> None:
    listed = here("list", f"{SAMPLES}:right")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "RingShift" in listed.stdout
    assert "purity" in listed.stdout
    explained = here("explain", f"{SAMPLES}:right")
    assert explained.returncode == 0, explained.stderr
    assert "RingShift" in explained.stdout
    assert "over 2" in explained.stdout


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom adjointlab.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'hypothesis', 'numpy', 'torch', 'mpi4py', 'msgspec'} & set(sys.modules)\nassert not heavy, heavy"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("module", "environment"), [("typer", {}), ("numpy", {"ADJOINTLAB_SUPERVISED": "."})]
)
def test_ctrl_c_while_the_command_line_is_imported_ends_with_130_and_without_a_stack(
    tmp_path: Path, module: str, environment: dict[str, str]
) -> None:
    code = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from adjointlab.__main__ import main\n"
        "main()"
    )
    ended = run_python("-c", code, "check", f"{SAMPLES}:right", cwd=tmp_path, **environment)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")


def test_neither_mpi_nor_torch_nor_asyncio_is_imported_where_nothing_needs_it(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom adjointlab.cli.main import main\n"
        f"try: main(['check', {str(SAMPLES)!r} + ':right', '--cases', '2', '--check', 'adjoint', '--quiet'])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert not {'asyncio', 'mpi4py', 'torch'} & set(sys.modules)"
    )
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_ctrl_c_ends_with_130_tells_what_is_known_and_leaves_no_half_written_file(tmp_path: Path) -> None:
    # The wrong one takes no time, the right one takes for ever.
    subjects = [f"{SAMPLES}:wrong", f"{SAMPLES}:right"]
    command = ["check", *subjects, "--check", "adjoint", "--cases", "1000000", "--json", "verdicts.json"]
    with subprocess.Popen(
        [sys.executable, "-m", "adjointlab", *command],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell may have told its children to ignore the signal.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        # Once the first check is done and saved, the command is in the second one. Before, it may be importing modules.
        saved, limit = tmp_path / "verdicts.json", time.monotonic() + 60
        while not (saved.exists() and json.loads(saved.read_text())["reports"]) and time.monotonic() < limit:
            time.sleep(0.05)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        try:
            printed, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert printed.count("WrongShift: adjoint is not the transpose of forward") == 1
    assert re.search(r"WrongShift +adjoint +incoherent", printed)
    assert "1 of 2 are done." in printed
    verdicts = json.loads((tmp_path / "verdicts.json").read_text())
    assert (verdicts["complete"], verdicts["exit_code"]) == (False, 130)
    assert [entry["verdict"] for entry in verdicts["reports"]] == ["incoherent"]
    left = {path.name for path in tmp_path.iterdir()} - {".hypothesis"}
    assert left == {".adjointlab", "verdicts.json"}
    assert not (tmp_path / ".adjointlab" / "running.json").exists()


ALONE = """
import adjointlab as al


def doubled(comm, x):
    return 2 * x


@al.subject.pair(doubled, doubled, name="Alone")
def alone(draw, ranks):
    space = al.Space(al.Layout((ranks,), al.Partition((ranks,))))
    return dict(domain=space, codomain=space)
"""


@pytest.mark.starts_mpiexec
def test_under_mpiexec_rank_0_alone_prints_and_all_ranks_end_alike(tmp_path: Path) -> None:
    options = ["--check", "adjoint", "--cases", "20"]
    (tmp_path / "alone.py").write_text(ALONE)
    result = cli("check", f"{SAMPLES}:wrong", "Copy", "alone.py", *options, cwd=tmp_path, ranks=2)
    assert result.returncode == 1, result.stderr
    # Of the lab's own subjects, such as Copy, it is known.
    assert "\nAlone: no rank communicated with another in any case" in result.stdout
    # The lab itself asks COMM_WORLD for its size, to compare it with the launcher's; that is no hint at user code.
    assert "take itself for the only rank (as code does that" in result.stdout
    assert result.stdout.count("WrongShift: adjoint is not the transpose of forward") == 1
    assert result.stdout.count("2 ranks under MPI") == 1
    assert "replay   mpiexec -n 2 adjointlab replay" in result.stdout


@pytest.mark.starts_mpiexec
def test_a_module_that_fails_on_one_rank_is_a_usage_error_on_all(tmp_path: Path) -> None:
    (tmp_path / "uneven.py").write_text(
        "from mpi4py import MPI\nif MPI.COMM_WORLD.rank == 1: raise ImportError('not here')\n"
        + SAMPLES.read_text().replace("from __future__ import annotations", "")
    )
    result = cli("check", "uneven.py:right", cwd=tmp_path, ranks=2)
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stderr.count("on rank 1: uneven.py cannot be imported: ImportError: not here") == 1


def test_who_calls_the_command_line_has_its_signals_back_afterwards(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The thread that ends a program which does not heed Ctrl-C would end its caller at the next one."""
    with pytest.raises(SystemExit):
        main(["--help"])
    assert capsys.readouterr().out
    outer = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(outer)
    assert outer == -1


def test_the_help_says_in_a_whole_line_what_each_command_does(capsys: pytest.CaptureFixture[str]) -> None:
    """click cuts off a first sentence that is longer than the line."""
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.partition("Commands:")[2].splitlines()
    commands = [line for line in lines if line.strip()]
    assert len(commands) >= 8
    assert [line for line in commands if not line.endswith(".") or line.endswith("...")] == []
