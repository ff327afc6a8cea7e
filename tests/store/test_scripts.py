"""Scripts of failures run alone, do what their header says, and execute nothing that they quote."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

import pytest
from hypothesis import given
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.checks.check import Spaces
from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import MatrixEntry, Status, Verdict
from adjointlab.engine.case import Case
from adjointlab.engine.search_result import SearchResult
from adjointlab.engine.subject import Subject
from adjointlab.store.script import script
from adjointlab.store.script_text import commented, folders, literal
from tests.fuzzing import HOSTILE, many
from tests.running import run, run_python

pytestmark = pytest.mark.mpi_skip

REPLAYED = {
    "Deadlock": "deadlock",
    "Leak": "communicators are made in calls",
    "Raises": "raised RuntimeError",
    "FirstCome": "the result depends on the schedule",
    "Unlike": "the distributed result is not the sequential one",
    "Lambdas": "adjoint is not the transpose",
    "shift_of_torch": "adjoint is not the transpose",
    "linear": "outputs",
}
"""Findings of each way in whose scripts replay them, and words that they print."""

SHOWN = ("Constants", "Pair\\x1b[31m'''\\n\"../../x")
"""Subjects whose scripts show two inner products on mpi4py's communicator."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of subjects of every way in, and the failures that the lab has found and stored there."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(Path(__file__).with_name("scripted"), folder, dirs_exist_ok=True)
    options = ["--cases=2", "--seed=1", "--ranks=3", "--quiet", "--check=adjoint"]
    found = run(
        "adjointlab", "check", "subjects.py", "--check=sequential", "--json=found.json", *options, cwd=folder
    )
    assert found.returncode == 1, found.stderr
    # In another folder, or the failure that is stored already would be all that is run.
    scheduled = ["--schedules=6", "--json=scheduled.json", "--folder=scheduled"]
    run("adjointlab", "check", "subjects.py:first_come", *scheduled, *options, cwd=folder)
    purity = ["--json=leaked.json", "--folder=leaked", "--check=purity"]
    run("adjointlab", "check", "subjects.py:leak", *purity, *options[:-1], cwd=folder)
    return folder


RUNS = {"FirstCome": "scheduled.json", "Leak": "leaked.json"}
"""The results of the runs of their own that some subjects need."""


def script_of(project: Path, subject: str) -> Path:
    file = project / RUNS.get(subject, "found.json")
    reports = json.loads(file.read_text())["reports"]
    (script,) = {report["script"] for report in reports if report["subject"] == subject} - {None}
    return project / script


def ran(script: Path, tmp_path: Path, ranks: int = 0) -> subprocess.CompletedProcess[str]:
    return run_python(script, ranks=ranks, cwd=tmp_path)


def ranks_of(script: Path) -> int:
    match = re.search(r"mpiexec -n (\d+)", script.read_text())
    return 0 if match is None else int(match[1])


@pytest.mark.parametrize("subject", REPLAYED)
def test_a_script_that_replays_sees_the_failure_on_simulated_ranks(
    project: Path, tmp_path: Path, subject: str
):
    result = ran(script_of(project, subject), tmp_path)

    assert REPLAYED[subject] in result.stdout, result.stderr
    assert result.returncode == 1


@pytest.mark.starts_mpiexec
@pytest.mark.parametrize("subject", [name for name in REPLAYED if name != "FirstCome"])
def test_a_script_that_replays_sees_the_failure_under_mpi(project: Path, tmp_path: Path, subject: str):
    script = script_of(project, subject)
    result = ran(script, tmp_path, ranks_of(script))

    assert REPLAYED[subject] in result.stdout, result.stderr
    assert result.returncode == 1


@pytest.mark.starts_mpiexec
@pytest.mark.parametrize("subject", SHOWN)
def test_a_script_shows_the_products_on_the_communicator_of_mpi4py(
    project: Path, tmp_path: Path, subject: str
):
    script = script_of(project, subject)
    result = ran(script, tmp_path, ranks_of(script))

    left, right = (line.split("=")[1] for line in result.stdout.splitlines())
    assert float(left) != float(right)
    assert result.returncode == 1
    # Alone it says what it needs.
    alone = ran(script, tmp_path)
    if ranks_of(script) == 1:
        assert alone.returncode == 1
        return
    assert (alone.returncode, "this case needs: mpiexec" in alone.stdout) == (2, True), alone.stderr


@pytest.mark.parametrize("subject", SHOWN)
@pytest.mark.parametrize("error", ["ImportError('not installed')", "RuntimeError('cannot load MPI library')"])
def test_without_mpi4py_a_script_that_shows_the_products_replays_or_says_what_it_needs(
    project: Path, tmp_path: Path, subject: str, error: str
):
    """As after an installation without MPI, which `adjointlab demo` needs none of, or of mpi4py without a library of MPI."""
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text(f"raise {error}\n")
    script = script_of(project, subject)
    result = run_python(script, cwd=tmp_path, PYTHONPATH=str(tmp_path))

    assert "Traceback" not in result.stderr
    if "without_mpi" in script.read_text() and "adjointlab.cli.reproduce" in script.read_text():
        assert "adjoint is not the transpose of forward" in result.stdout, result.stderr
        # By its file, which the command line finds wherever the modules of the project lie.
        assert f"{project.name}/subjects.py:" in result.stdout
        assert result.returncode == 1
    else:
        assert (result.returncode, result.stderr) == (2, "this script needs mpi4py\n")


def test_a_script_for_plain_functions_does_without_the_lab(project: Path):
    text = script_of(project, SHOWN[1]).read_text()

    assert "adjointlab" not in text.replace(str(Path(__file__).parents[2]), "")
    assert "It needs mpi4py, NumPy, and what siblings imports." in text


@pytest.mark.parametrize(
    ("subject", "file", "wrong", "right"),
    [
        pytest.param(
            SHOWN[1],
            "siblings.py",
            "return shifted(comm, y",
            "return 2 * shifted(comm, y",
            marks=pytest.mark.starts_mpiexec,
        ),
        ("linear", "subjects.py", "2 if comm", "1 if comm"),
        ("Deadlock", "subjects.py", "self.comm.recv(source=ANY_SOURCE)\n\n", "2 * np.array(x)\n\n"),
    ],
    ids=["pair", "layer", "another failure"],
)
def test_the_exit_code_tells_a_failure_that_is_mended_or_another(
    project: Path, tmp_path: Path, subject: str, file: str, wrong: str, right: str
):
    script = script_of(project, subject)
    ranks = ranks_of(script) if subject in SHOWN else 0
    with replaced(project / file, wrong, right):
        assert ran(script, tmp_path, ranks).returncode == (2 if subject == "Deadlock" else 0)


@pytest.mark.parametrize("subject", ["linear", pytest.param(SHOWN[1], marks=pytest.mark.starts_mpiexec)])
def test_a_script_that_cannot_import_its_subject_is_broken(project: Path, tmp_path: Path, subject: str):
    script = script_of(project, subject)
    ranks = ranks_of(script) if subject in SHOWN else 0
    with replaced(project / "siblings.py", "STEP = 1", "raise ZeroDivisionError"):
        result = ran(script, tmp_path, ranks)
    assert (result.returncode, "ZeroDivisionError" in result.stderr) == (2, True), result.stderr


@pytest.mark.starts_mpiexec
def test_a_script_from_another_machine_looks_around_itself_and_says_what_it_lacks(
    project: Path, tmp_path: Path
):
    script = script_of(project, SHOWN[1])
    text = script.read_text()
    assert str(project) not in text
    for folder, code in ((tmp_path, 2), (project / "unpacked", 1)):
        folder.mkdir(exist_ok=True)
        copy = folder / script.name
        copy.write_text(text)
        result = ran(copy, tmp_path, ranks_of(script))
        assert result.returncode == code, result.stderr
        assert ("No module named 'siblings'; run this script where" in result.stderr) == (code == 2)
        assert "Traceback" not in result.stderr
        assert "MPI_Abort" not in result.stderr


def test_a_script_in_another_checkout_runs_the_code_of_that_checkout(project: Path, tmp_path: Path):
    """As of two branches in two working trees, one of which has the bug."""
    checkout = tmp_path / "checkout"
    shutil.copytree(project, checkout)
    with replaced(checkout / "siblings.py", "STEP = 1", "raise ZeroDivisionError"):
        result = ran(script_of(checkout, "Unlike"), tmp_path)
    assert (result.returncode, "ZeroDivisionError" in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize("under", ["adjointlab run", "two processes"])
@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_a_script_outlives_a_case_that_ends_its_process(tmp_path: Path, end: str, under: str):
    source = Path(__file__).with_name("scripted").joinpath("subjects.py").read_text()
    (tmp_path / "siblings.py").write_text("STEP = 1\nadjoint = forward = shifted = print\n")
    file = tmp_path / "subjects.py"
    file.write_text(source.replace("raise RuntimeError", f"import os; {end}; "))
    command = ("adjointlab", "check", "subjects.py:raises", "--check=adjoint", "--cases=5", "--ranks=2")
    if under == "adjointlab run":
        run("adjointlab", "run", "--", sys.executable, "-m", *command, cwd=tmp_path)
    else:
        run(
            *command, "--check=purity", "--jobs=2", cwd=tmp_path
        )  # for one check, no further process is started
    script, *_ = (tmp_path / ".adjointlab").glob("*.py")
    seen = ran(script, tmp_path)
    assert (seen.returncode, "the case has ended its process" in seen.stdout) == (1, True), seen.stderr

    file.write_text(source.replace("rank() == STEP", "rank() == -1"))
    assert ran(script, tmp_path).returncode == 0


def test_a_script_without_its_reproducer_is_broken(project: Path, tmp_path: Path):
    alone = tmp_path / "alone.py"
    shutil.copy(script_of(project, "linear"), alone)
    result = ran(alone, tmp_path)

    assert (result.returncode, "alone.json" in result.stderr) == (2, True)


@contextmanager
def replaced(file: Path, before: str, after: str) -> Iterator[None]:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after, 1))
    try:
        yield
    finally:
        file.write_text(text)


@many(60)
@given(st.lists(HOSTILE, max_size=4))
def test_text_from_outside_is_nothing_but_comments(texts: list[str]):
    text = commented(*texts)

    # As bytes, because that is how Python looks for the name of an encoding.
    assert ast.parse(f"#!\n# -*- coding: utf-8 -*-\n{text}\n".encode()).body == []
    assert all(char.isprintable() for char in text.replace("\n", ""))


def kept(comm: Any, *tensors: Any, **arguments: Any) -> Any:
    return tensors


@al.subject.pair(kept, kept, name="Kept")
def pair(draw: Any, ranks: int) -> dict[str, Any]:
    return {}


@al.subject.autograd(kept)
def autograd(draw: Any, ranks: int) -> dict[str, Any]:
    return {}


def failure(texts: Sequence[str], entry: MatrixEntry | None) -> SearchResult:
    """A failure in which every text that comes from outside is one of `texts`."""
    name, key, value, headline, label, line = texts
    space = al.Space(al.Tensor(al.Layout((2,), al.Partition((2,))), "float64", name=name or "x"))
    parameters = {"domain": space, "codomain": space, key: {key: value}}
    verdict = Verdict(Status.INCOHERENT, headline, headline, ((label, line),), entry=entry)
    case = Case(name, "adjoint", 2, parameters, InputSetting(), 0)
    return SearchResult(name, "adjoint", "mpi", verdict, 1, 0, 0.0, case, Spaces(space, space))


@pytest.mark.parametrize("subject", [pair, autograd], ids=["shown", "replayed"])
@many(40)
@given(st.lists(HOSTILE, min_size=6, max_size=6))
def test_hostile_text_leaves_the_code_of_a_script_as_it_is(subject: Subject, texts: list[str]):
    entry = MatrixEntry(0, 1)
    scripts = [script_text(failure(each, entry), subject) for each in (texts, ["a", "b", "c", "d", "e", "f"])]

    hostile, harmless = (ast.parse(text.encode()) for text in scripts)
    # But for the one assignment of arguments, which are a literal.
    (arguments,) = (node for node in ast.walk(hostile) if is_arguments(node)) if subject is pair else (None,)
    if arguments is not None:
        ast.literal_eval(arguments.value)
    assert shape(hostile) == shape(harmless)


@pytest.mark.parametrize("subject", [pair, autograd], ids=["shown", "replayed"])
def test_all_lines_of_a_verdict_are_comments_but_the_traceback(subject: Subject):
    labels = ["Ahead", "because", "traceback", "where", "⟨Fx, y⟩"]
    result = failure(["a", "b", "c", "wrong", "d", "e"], MatrixEntry(0, 1))
    lines = tuple((label, f"of {label}") for label in labels)
    text = script_text(replace(result, verdict=replace(result.verdict, lines=lines)), subject)
    told = [line for line in text.splitlines() if line.endswith(tuple(f": of {label}" for label in labels))]
    assert told == [f"# {label}: of {label}" for label in labels if label != "traceback"]


def script_text(result: SearchResult, subject: Subject) -> str:
    assert result.case is not None
    text = script(result.case, result, subject, Path("name.json"))
    assert text is not None
    return text


def is_arguments(node: ast.AST) -> TypeGuard[ast.Assign]:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "arguments"


def shape(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        if is_arguments(node):
            node.value = ast.Constant(0)
    return ast.dump(tree)


@many(60)
@given(
    st.recursive(
        HOSTILE | st.floats() | st.complex_numbers() | st.integers() | st.booleans() | st.none(),
        lambda inner: st.dictionaries(HOSTILE, inner, max_size=3) | st.lists(inner, max_size=3).map(tuple),
        max_leaves=8,
    )
)
def test_a_literal_is_one_line_of_ascii_that_makes_its_value(value: object):
    text = literal(value)

    assert text is not None
    assert text.isascii()
    assert text.isprintable()
    # Every call in it makes a number.
    calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    assert {call.id for call in calls if isinstance(call, ast.Name)} <= {"float", "complex"}
    assert all(isinstance(call, ast.Name) for call in calls)
    assert repr(eval(text)) == repr(value)  # noqa: S307 - only literals are left


def test_the_folder_of_commands_is_not_put_on_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Python puts it first where a command such as `adjointlab` is run, and no subject lies there."""
    commands = sysconfig.get_path("scripts")
    monkeypatch.setattr(sys, "path", [commands, str(tmp_path)])
    assert ast.literal_eval(folders([], tmp_path / "corpus" / "deeper" / "name.json")) == (
        str(tmp_path.resolve()),
    )
