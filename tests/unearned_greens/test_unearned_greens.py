"""Each file beside this one is a way to get an exit code of 0 that is not earned; none of them does, in any front end.

A new front end is added to `FRONT_ENDS`, and must pass them all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from adjointlab.exit_codes import ExitCode
from tests.running import needs_mpi, run

HERE = Path(__file__).parent

EXPECTED = {
    "own_exception_of_the_same_name": (ExitCode.UNJUDGED, "raised Inapplicable"),
    "exit_in_a_strategy": (ExitCode.UNJUDGED, "SystemExit"),
    "exit_at_import": (ExitCode.USAGE, "SystemExit"),
    "exit_in_a_call": (ExitCode.UNJUDGED, "SystemExit"),
    "exit_in_a_reference": (ExitCode.UNJUDGED, "SystemExit"),
    "exit_without_cleaning_up": (ExitCode.UNJUDGED, "os._exit(0)"),
    "exit_in_a_thread": (ExitCode.UNJUDGED, "os._exit(0)"),
    "exit_hook": (ExitCode.INCOHERENT, "incoherent"),
    "skip_in_a_call": (ExitCode.UNJUDGED, "raised SkipTest"),
    "pytest_skip_in_a_call": (ExitCode.UNJUDGED, "raised Skipped"),
    "pytest_skip_in_a_strategy": (ExitCode.UNJUDGED, "Skipped"),
    "assumption_in_a_call": (ExitCode.UNJUDGED, "raised UnsatisfiedAssumption"),
    "raw_world_communicator": (ExitCode.INCOHERENT, "not the transpose"),
    "prints_that_all_is_well": (ExitCode.INCOHERENT, "incoherent"),
    "no_subject": (ExitCode.USAGE, "no subject"),
    "only_one_rank": (ExitCode.UNJUDGED, "several ranks"),
}
"""By file: the exit code that it has earned, and words that the output must hold."""


def test_every_file_of_the_corpus_is_listed() -> None:
    files = {path.stem for path in HERE.glob("*.py")} - {"common", "test_unearned_greens", "__init__"}
    assert files == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_check_does_not_end_with_an_exit_code_that_is_not_earned(name: str, tmp_path: Path) -> None:
    code, words = EXPECTED[name]
    result = run("adjointlab", "check", HERE / f"{name}.py", "--cases", "10", "--seed", "1", cwd=tmp_path)
    said = result.stdout + result.stderr
    assert (result.returncode, words in said) == (code, True), said
