"""Each file beside this one is a way to get an exit code of 0 that is not earned; none of them does, in any front end.

A new front end is added to `FRONT_ENDS`, and must pass them all.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from adjointlab.exit_codes import ExitCode
from tests.running import run

HERE = Path(__file__).parent

EXPECTED = {
    "own_exception_of_the_same_name": (ExitCode.UNJUDGED, "raised Inapplicable"),
    "exit_in_a_strategy": (ExitCode.UNJUDGED, "SystemExit"),
    "exit_at_import": (ExitCode.USAGE, "SystemExit"),
    "exit_in_a_call": (ExitCode.UNJUDGED, "SystemExit"),
    "exit_in_a_reference": (ExitCode.UNJUDGED, "SystemExit"),
    "exit_without_cleaning_up": (ExitCode.UNJUDGED, "os._exit(0)"),
    "exit_without_cleaning_up_at_import": (ExitCode.UNJUDGED, "os._exit(0)"),
    "exit_of_c": (signal.SIGVTALRM, "exit_of_c.py"),
    "exit_in_a_thread": (ExitCode.UNJUDGED, "os._exit(0)"),
    "exit_hook": (ExitCode.INCOHERENT, "not the transpose"),
    "skip_in_a_call": (ExitCode.UNJUDGED, "raised SkipTest"),
    "pytest_skip_in_a_call": (ExitCode.UNJUDGED, "raised Skipped"),
    "pytest_skip_in_a_strategy": (ExitCode.UNJUDGED, "Skipped"),
    "assumption_in_a_call": (ExitCode.UNJUDGED, "raised UnsatisfiedAssumption"),
    "raw_world_communicator": (ExitCode.INCOHERENT, "the declared gain is too small"),
    "abort_with_0": (ExitCode.UNJUDGED, "Abort(0)"),
    "abort_with_0_at_import": (ExitCode.UNJUDGED, ""),
    "torch_default_group": (ExitCode.UNJUDGED, "process group of torch.distributed"),
    "prints_that_all_is_well": (ExitCode.INCOHERENT, "incoherent"),
    "world_communicator_in_a_tuple": (ExitCode.INCOHERENT, "not the transpose"),
    "communicator_made_at_import": (ExitCode.UNJUDGED, "made before the case began"),
    "refusal_swallowed": (ExitCode.UNJUDGED, "communication past the run"),
    "message_from_forward_to_adjoint": (ExitCode.UNJUDGED, "deadlock|mismatched message"),
    "checks_own_exception": (ExitCode.UNJUDGED, "the checks' own"),
    "only_empty_tensors": (ExitCode.UNJUDGED, "no tensor of the case has an element"),
    "message_fails_at_import": (ExitCode.USAGE, "its __str__ failed"),
    "message_fails_in_a_call": (ExitCode.UNJUDGED, "its __str__ failed"),
    "message_fails_in_a_strategy": (ExitCode.USAGE, "its __str__ failed"),
    "no_subject": (ExitCode.USAGE, "no subject"),
    "only_one_rank": (ExitCode.UNJUDGED, "several ranks"),
    "only_one_rank_judged": (ExitCode.UNJUDGED, "declare it with types"),
}
"""By file: the exit code that it has earned, or the signal that ends it; and words that the output must hold, or others after `|`."""

ENDS_ITS_PROCESS = {
    "abort_with_0",
    "abort_with_0_at_import",
    "exit_at_import",
    "exit_without_cleaning_up",
    "exit_without_cleaning_up_at_import",
    "exit_in_a_thread",
    "exit_hook",
    "exit_of_c",
    "message_fails_at_import",
    "no_subject",
}
"""Files that want a session of pytest to themselves."""

OF_ALL_WORLDS = {
    "pytest_skip_in_a_call",
    "skip_in_a_call",
    "assumption_in_a_call",
    "message_fails_at_import",
    "message_fails_in_a_call",
    "message_fails_in_a_strategy",
    "own_exception_of_the_same_name",
    "exit_in_a_reference",
    "no_subject",
    "only_empty_tensors",
    "prints_that_all_is_well",
}
"""Files that get their 0, if they get one, before a world comes in, or from what both worlds share: seen in one world."""

SEEN_BY_OTHERS = {"exit_in_a_reference", "message_from_forward_to_adjoint", "only_one_rank_judged"}
"""Files of which `adjoint` does not see what is wrong. The others meet that check alone: all would take several times as long."""

SEVERAL = ("exit_in_a_strategy", "prints_that_all_is_well")


def test_every_file_of_the_corpus_is_listed() -> None:
    files = {path.stem for path in HERE.glob("*.py")} - {"common", "test_unearned_greens", "__init__"}
    assert files == set(EXPECTED)


Front = Callable[[str, Path], subprocess.CompletedProcess[str]]


def _check(name: str, folder: Path, ranks: int = 0) -> subprocess.CompletedProcess[str]:
    file = HERE / f"{name}.py"
    # What waits outside MPI's guarded calls is ended after five seconds, rather than thirty.
    options = ("--cases", "10", "--seed", "1", "--watchdog", "5")
    checks = () if name in SEEN_BY_OTHERS else ("--check", "adjoint")
    return run("adjointlab", "check", file, *options, *checks, ranks=ranks, cwd=folder)


def _pytest(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return _session([name], folder)


def _session(names: Iterable[str], folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    lines = [
        f"from tests.unearned_greens.{name} import subject as {name}\n"
        f"Test_{name} = coherence_tests({name}, checks={None if name in SEEN_BY_OTHERS else ['adjoint']})"
        for name in names
    ]
    imports = "from adjointlab.pytest.coherence_tests import coherence_tests\n"
    (folder / "test_it.py").write_text(imports + "\n".join(lines))
    return run("pytest", "-q", "--adjointlab-cases=10", "--adjointlab-seed=1", *options, cwd=folder)


FRONT_ENDS: dict[str, tuple[Front, set[str]]] = {
    "check": (_check, set(EXPECTED)),
    "check under mpiexec": (partial(_check, ranks=2), set(EXPECTED) - OF_ALL_WORLDS),
    "pytest": (_pytest, ENDS_ITS_PROCESS),
}
"""By name: the front end, and the files that it meets one by one."""


@pytest.mark.parametrize(
    ("front", "name"),
    [
        pytest.param(front, name, marks=[pytest.mark.starts_mpiexec] if "mpiexec" in front else [])
        for front, (_, names) in FRONT_ENDS.items()
        for name in EXPECTED
        if name in names
    ],
)
def test_no_front_end_ends_with_an_exit_code_that_is_not_earned(
    front: str, name: str, tmp_path: Path
) -> None:
    code, words = EXPECTED[name]
    result = FRONT_ENDS[front][0](name, tmp_path)
    said = result.stdout + result.stderr
    if front == "pytest":
        # It has exit codes of its own, of which 0 alone says that all is well.
        assert result.returncode != 0, said
    else:
        # MPICH's launcher passes the number of a signal on as an exit code, with the bits of SIGKILL too where it has ended another
        # rank by that, and Open MPI's as shells do.
        is_signal = isinstance(code, signal.Signals)
        codes = (-code, code, code | signal.SIGKILL, 128 + code) if is_signal else (code,)
        if "mpiexec" in front:
            # On a busy machine it may have ended all ranks before it sees with which code one of them has left.
            codes += (signal.SIGKILL, 128 + signal.SIGKILL)
        assert result.returncode in codes, said
        assert any(each in said for each in words.split("|")), said


def test_in_a_session_of_pytest_with_the_others_each_has_a_failure(tmp_path: Path) -> None:
    names = sorted(set(EXPECTED) - ENDS_ITS_PROCESS)
    result = _session(names, tmp_path, "--junitxml=results.xml")
    assert result.returncode != 0, result.stdout + result.stderr
    cases = ElementTree.parse(tmp_path / "results.xml").iter("testcase")
    failed = {case.get("classname", "").rpartition("Test_")[2] for case in cases if len(case)}
    assert failed == set(names)


def test_a_session_of_pytest_that_a_fixture_ends_with_0_does_not_end_with_0(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\n\n@pytest.fixture(autouse=True)\ndef leave():\n    pytest.exit('enough', returncode=0)\n"
    )
    result = _pytest("prints_that_all_is_well", tmp_path)
    assert result.returncode == ExitCode.UNJUDGED, result.stdout + result.stderr


def test_the_summary_says_how_many_checks_were_asked_for_and_how_many_judged(tmp_path: Path) -> None:
    result = run(
        "adjointlab", "check", *(HERE / f"{name}.py" for name in SEVERAL), "--cases", "5", cwd=tmp_path
    )
    assert "6 of 12 checks judged" in result.stdout, result.stdout + result.stderr
    assert "6 incoherent" not in result.stdout  # the other subject has its turn all the same
