"""The pytest plugin: what it collects, what a failure says, and that ranks under mpiexec end as one."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import pytest

import adjointlab as al
from adjointlab.engine.discovery import find_subject
from adjointlab.engine.subject import SubjectError
from adjointlab.pytest.profile import read_profile, unwritable
from tests.running import ROOT, SAMPLES, run

# One process starts the others.
pytestmark = pytest.mark.mpi_skip

COHERENCE = f"""
from adjointlab import coherence_tests
from adjointlab.engine.discovery import find_subject

TestRight = coherence_tests(find_subject({str(SAMPLES)!r} + ":right"), checks=["adjoint", "purity"])
TestWrong = coherence_tests(find_subject({str(SAMPLES)!r} + ":wrong"), checks=["adjoint"])
"""

ALONE = """
import adjointlab as al
from tests.engine.test_counts import Local

@al.subject.operator(Local, name="Alone")
def alone(draw, ranks):
    return {"layout": al.Layout((2 * ranks,), al.Partition((ranks,)))}

TestAlone = coherence_tests(alone, checks=["adjoint"])
"""

INLINE = """
import adjointlab as al
from tests.samples import WrongShift, equal_blocks

def declared():
    return al.subject(WrongShift)(lambda draw, ranks: equal_blocks(draw, ranks))

class TestGroup:
    TestWrong = al.coherence_tests(declared(), checks=["adjoint"])
"""

RANK = "import os\nrank = int(os.environ.get('PMI_RANK', os.environ.get('OMPI_COMM_WORLD_RANK', 0)))\n"


def launch(
    *arguments: str, cwd: Path, ranks: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """``pytest`` in a folder of its own, with the plugin whether it is installed or not."""
    named = (
        []
        if "adjointlab" in {entry.name for entry in entry_points(group="pytest11")}
        else ["-p", "adjointlab.pytest.plugin"]
    )
    plugins = ["-p", "no:randomly", "-p", "no:cacheprovider", *named]
    return run("pytest", *plugins, "--adjointlab-cases=10", *arguments, cwd=cwd, ranks=ranks, **environment)


@pytest.mark.parametrize(
    ("option", "file", "reason"),
    [
        ("html", "/proc/page.html", "/proc/page.html cannot be written: no file can be made in /proc"),
        ("html", "nowhere/page.html", "nowhere/page.html does not exist"),
        ("html", "test_it.py", "test_it.py would be overwritten"),
        ("folder", "/proc/failures", "no file can be made in /proc"),
    ],
)
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="there is no /proc")
def test_an_output_that_cannot_be_written_is_refused_before_any_test(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, option: str, file: str, reason: str
) -> None:
    monkeypatch.setattr(pytestconfig.option, f"adjointlab_{option}", file)
    monkeypatch.delattr(pytestconfig, "workerinput", raising=False)  # a worker of pytest-xdist writes nothing
    problem = unwritable(pytestconfig, read_profile(pytestconfig, 1))
    assert problem.startswith(f"--adjointlab-{option}: ")
    assert reason in problem


def test_a_class_has_a_test_for_each_check_that_applies() -> None:
    collected = al.coherence_tests(find_subject(f"{SAMPLES}:right"))
    names = [name for name in vars(collected) if name.startswith("test_")]
    assert names == [
        "test_adjoint",
        "test_matrix",
        "test_linearity",
        "test_declared",
        "test_purity",
        "test_reentrancy",
    ]


def test_only_subjects_are_accepted() -> None:
    with pytest.raises(SubjectError, match=r"declare one with @adjointlab\.subject"):
        al.coherence_tests(lambda draw, ranks: {})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'nonsense' is not one of adjoint"):
        al.coherence_tests(find_subject(f"{SAMPLES}:right"), checks=["nonsense"])
    with pytest.raises(
        ValueError, match="gradients does not apply to RingShift; those that do are adjoint, matrix"
    ):
        al.coherence_tests(find_subject(f"{SAMPLES}:right"), checks=["gradients"])
    for none in ("adjoint", []):
        with pytest.raises(ValueError, match="is not a list of names"):
            al.coherence_tests(find_subject(f"{SAMPLES}:right"), checks=none)


def test_a_failure_is_the_text_alone_and_is_replayed_first_the_next_time(tmp_path: Path) -> None:
    (tmp_path / "test_shift.py").write_text(COHERENCE + ALONE)
    first = launch("-v", "--adjointlab-seed=1", cwd=tmp_path)
    assert first.returncode == 1, first.stdout + first.stderr
    assert "simulated, 10 cases for each test, --adjointlab-seed=1" in first.stdout
    assert "test_shift.py::TestRight::test_adjoint" in first.stdout
    assert "3 passed" in first.stdout
    assert "\nAlone: no rank communicated with another in any case" in first.stdout
    assert "WrongShift: adjoint is not the transpose of forward        (found after" in first.stdout
    assert "adjoint  gives that entry weight 0" in first.stdout
    assert "Traceback" not in first.stdout
    assert "coherence_tests.py" not in first.stdout
    assert len(list((tmp_path / ".adjointlab").glob("WrongShift-adjoint-*.json"))) == 1

    second = launch("-k", "Wrong", cwd=tmp_path)
    assert second.returncode == 1
    assert "(replayed on 2 ranks)" in second.stdout


NAMES = """
Wrong = TestWrong
del TestWrong

Shared = coherence_tests(find_subject({samples!r} + ":right"), checks=["adjoint"])

class TestMore(Shared):
    pass
"""


def test_a_subject_that_no_variable_refers_to_is_replayed_by_the_name_of_its_tests(tmp_path: Path) -> None:
    (tmp_path / "test_subjects.py").write_text(INLINE)
    failed = launch(cwd=tmp_path).stdout
    assert "--subject test_subjects.py:TestGroup.TestWrong\n" in failed
    (stored,) = tmp_path.glob(".adjointlab/*-adjoint-*.json")
    replayed = run(
        "adjointlab", "replay", stored, "--subject", "test_subjects.py:TestGroup.TestWrong", cwd=tmp_path
    )
    assert replayed.returncode == 1, replayed.stderr


def test_a_picture_is_in_ascii_where_the_terminal_has_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "test_subjects.py").write_text(COHERENCE)
    pictures = {
        encoding: launch("-k", "Wrong", cwd=tmp_path, PYTHONIOENCODING=encoding).stdout
        for encoding in ("utf-8", "ascii")
    }
    assert "●" in pictures["utf-8"]
    assert "\\u25" not in pictures["ascii"]
    assert "rank 0" in pictures["ascii"].partition("(domain)")[2]


def test_coherence_tests_that_are_not_collected_for_their_name_are_told(tmp_path: Path) -> None:
    (tmp_path / "test_shift.py").write_text(COHERENCE + NAMES.format(samples=str(SAMPLES)))
    told = launch(cwd=tmp_path)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "3 passed, 1 warning" in told.stdout
    warning = "Wrong is not collected: give what coherence_tests returns a name that begins with Test"
    assert told.stdout.count("PytestCollectionWarning") == 1
    assert warning in told.stdout
    strict = launch("-W", "error::pytest.PytestCollectionWarning", cwd=tmp_path)
    assert strict.returncode
    assert warning in strict.stdout


def test_a_file_in_which_two_subjects_have_one_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_twice.py").write_text(f"from adjointlab import coherence_tests\n{ALONE}{ALONE}")
    refused = launch(cwd=tmp_path)
    assert refused.returncode == 2
    assert "two subjects are called alone" in refused.stdout


def test_options_come_from_the_configuration_file_too_and_bad_ones_are_refused(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nadjointlab_seed = 77\nadjointlab_world = nowhere\n")
    refused = launch(cwd=tmp_path)
    assert refused.returncode == 4
    assert "'nowhere' is not one of auto, simulated, mpi" in refused.stderr
    accepted = launch("--adjointlab-world=simulated", cwd=tmp_path)
    assert accepted.returncode == 0, accepted.stderr
    assert "--adjointlab-seed=77" in accepted.stdout


def test_the_plugin_imports_next_to_nothing() -> None:
    heavy = {"numpy", "hypothesis", "mpi4py", "torch", "rich", "typer"}
    code = f"import pytest, sys; before = set(sys.modules); import adjointlab.pytest.plugin; print({heavy!r} & set(sys.modules) - before)"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"


@pytest.mark.starts_mpiexec
def test_under_mpiexec_there_is_one_report_one_file_and_one_exit_code(tmp_path: Path) -> None:
    # An ordinary failure on rank 1 only, and a test of pytest-mpi's beside them.
    (tmp_path / "test_shift.py").write_text(
        COHERENCE + RANK + "import pytest\n"
        "def test_ordinary():\n    assert rank == 0, 'not on this rank'\n"
        "@pytest.mark.mpi\ndef test_marked():\n"
        "    from mpi4py import MPI\n    assert MPI.COMM_WORLD.allreduce(1) == 2\n"
    )
    with_mpi = ["--with-mpi"] if find_spec("pytest_mpi") else []
    result = launch("--junitxml=report.xml", *with_mpi, cwd=tmp_path, ranks=2)
    assert result.returncode == 1, result.stdout + result.stderr
    assert result.stdout.count("test session starts") == 1
    assert result.stdout.count("\nWrongShift: adjoint is not the transpose of forward        (") == 1
    assert "test_ordinary [rank 1]" in result.stdout
    assert "not on this rank" in result.stdout
    assert "2 failed, 4 passed" in result.stdout
    cases = ElementTree.parse(tmp_path / "report.xml").getroot().iter("testcase")
    failed = {case.get("name") for case in cases if case.find("failure") is not None}
    assert failed == {"test_adjoint", "test_ordinary [rank 1]"}


@pytest.mark.starts_mpiexec
@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "if rank == 1: raise OSError('only here')\ndef test(): pass\n",
            "rank 1: error collecting test_uneven.py",
        ),
        (
            "if rank == 1:\n    def test_more(): pass\ndef test(): pass\n",
            "but on rank 1: test_uneven.py::test_more",
        ),
    ],
)
def test_ranks_that_collect_different_tests_run_none(source: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "test_uneven.py").write_text(RANK + source)
    result = launch(cwd=tmp_path, ranks=2)
    assert result.returncode == 4, result.stdout + result.stderr
    assert result.stderr.count("the ranks have not collected the same tests, so none is run") == 1
    assert message in result.stderr


@pytest.mark.starts_mpiexec
def test_ranks_in_another_order_are_told_of_it(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        RANK + "def pytest_collection_modifyitems(items):\n    if rank == 1: items.reverse()\n"
    )
    (tmp_path / "test_shift.py").write_text(COHERENCE)
    result = launch(cwd=tmp_path, ranks=2)
    assert result.returncode == 4, result.stdout + result.stderr
    assert "They are the same tests in another order" in result.stderr
    assert "-p no:randomly" in result.stderr


@pytest.mark.starts_mpiexec
def test_a_coherence_test_that_one_rank_skips_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    (tmp_path / "test_shift.py").write_text(
        COHERENCE
        + RANK
        + "import pytest\nTestRight.test_adjoint = pytest.mark.skipif(rank == 1, reason='no')(TestRight.test_adjoint)\n"
    )
    result = launch(cwd=tmp_path, ranks=2)
    assert result.returncode == 2, result.stdout + result.stderr
    assert "the ranks are not about to run the same coherence test" in result.stdout
    assert "rank 1: test_shift.py::TestRight::test_purity" in result.stdout


@pytest.mark.starts_mpiexec
def test_a_conftest_that_fails_on_one_rank_ends_all(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(RANK + "if rank == 1: raise OSError('only here')\n")
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): pass\n")
    result = launch(cwd=tmp_path, ranks=2)
    assert result.returncode == 4, result.stdout + result.stderr
    assert result.stderr.count("OSError: only here") == 1


REFILLED = """
import os, pathlib, pytest
remove = os.rmdir
def refilling(path, **options):
    # As a rank does that takes the folder for one that it is to remove itself.
    if "garbage-" in str(path):
        raise OSError(39, "Directory not empty", str(path))
    remove(path, **options)
@pytest.fixture(autouse=True, scope="session")
def old_folder(tmp_path_factory):
    (tmp_path_factory.getbasetemp().parent / "garbage-old").mkdir(exist_ok=True)
    os.rmdir = refilling
"""


@pytest.mark.starts_mpiexec
def test_ranks_that_remove_the_same_old_folders_pass_with_warnings_as_errors(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(REFILLED)
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (tmp_path / "temporary").mkdir()
    result = launch(cwd=tmp_path, ranks=2, PYTEST_DEBUG_TEMPROOT=str(tmp_path / "temporary"))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.starts_mpiexec
@pytest.mark.skipif(find_spec("xdist") is None, reason="needs pytest-xdist")
def test_a_list_of_known_failures_that_cannot_be_read_is_refused_before_xdist_starts_workers(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_subjects.py").write_text(COHERENCE)
    (tmp_path / "known.txt").write_text("Right adjunct\n")
    for workers in ((), ("-n", "1")):
        ended = launch(*workers, "--adjointlab-xfails=known.txt", cwd=tmp_path)
        assert ended.returncode == pytest.ExitCode.USAGE_ERROR
        assert ended.stderr.startswith("ERROR: --adjointlab-xfails: ")
        assert "known.txt:1: check: 'adjunct' is not one of adjoint" in ended.stderr
        assert "INTERNALERROR" not in ended.stdout


@pytest.mark.skipif(find_spec("xdist") is None, reason="needs pytest-xdist")
def test_xdist_under_mpiexec_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): pass\n")
    result = launch("-n", "2", cwd=tmp_path, ranks=2)
    assert result.returncode == 4, result.stdout + result.stderr
    assert result.stderr.count("leave out either -n or the launcher") == 1


@pytest.mark.parametrize("ranks", [0, pytest.param(2, marks=pytest.mark.starts_mpiexec)])
def test_a_device_that_is_not_there_is_a_usage_error_that_says_what_was_found(
    tmp_path: Path, ranks: int
) -> None:
    (broken := tmp_path / "broken").mkdir()
    for library in ("cupy", "torch"):
        (broken / f"{library}.py").write_text(f"raise ImportError('{library} is broken')")
    path = os.pathsep.join([str(broken), str(ROOT)])
    result = launch("--adjointlab-device=cuda", cwd=tmp_path, ranks=ranks, PYTHONPATH=path)
    assert result.returncode == pytest.ExitCode.USAGE_ERROR, result.stdout + result.stderr
    told = result.stdout + result.stderr
    assert told.count("--adjointlab-device: cuda is asked for, but no CUDA device was found") == max(1, ranks)
    assert "CuPy: ImportError: cupy is broken; torch: ImportError: torch is broken" in told
