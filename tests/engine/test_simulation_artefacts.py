"""Failures that simulation alone may cause say so, and others do not."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.verdict import unjudged
from adjointlab.engine.discovery import find_subject
from adjointlab.engine.modules_of_subjects import modules_of
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.simulation_artefacts import with_lines_on_exceptions
from adjointlab.replaying import replay
from adjointlab.worlds.module_state import ModuleState
from tests.running import run

pytestmark = pytest.mark.mpi_skip

OPERATOR = """
from functools import lru_cache
import numpy as np
from hypothesis import strategies as st
import adjointlab as al

@lru_cache
def buffer(n):
    return np.zeros(n)

@lru_cache
def sizes(n):
    return tuple(range(1, n))

class Sum(al.LinearOperator):
    def __init__(self, comm, n):
        self.comm = comm
        self.domain = self.codomain = al.Space(al.Layout((n,), al.Partition((comm.Get_size(),)), axes=(None,)))

    def total(self, x):
        total = np.zeros_like(x)
        self.comm.Allreduce(np.ascontiguousarray(x), total)
        return total

    def forward(self, x):
        return self.total(BUFFER)

    def adjoint(self, y):
        return ADJOINT

@al.subject.operator(Sum)
def sums(draw, ranks):
    return {"n": draw(st.sampled_from(sizes(4)))}
"""
KEPT = "(buffer(len(x)).__setitem__(..., x), self.comm.Barrier(), buffer(len(x)))[2]"


def lines_of(folder: Path, operator: str) -> list[str]:
    file = folder / f"{folder.name}.py"
    file.write_text(operator)
    al.SimulatedWorld(1).run(
        lambda context, _: None
    )  # from the first run on the lab sees who asks MPI.COMM_WORLD
    world, subject = al.SimulatedWorld(3), find_subject(f"{file}:sums")
    found = investigate(world, subject, "adjoint", Budget(20, seed=1))
    assert not found.verdict.is_coherent
    assert found.case is not None
    told, again = (
        [text for label, text in result.verdict.lines if label == "perhaps"]
        for result in (found, replay(world, subject, found.case))
    )
    assert again == told, "a replay tells what the search told"
    return told


def test_a_cache_that_ranks_share_is_named_where_the_case_passes_without_it(tmp_path: Path) -> None:
    (line,) = lines_of(tmp_path, OPERATOR.replace("BUFFER", KEPT).replace("ADJOINT", "self.total(y)"))
    assert line.startswith("simulated ranks share what is kept in buffer, sizes,")
    assert f"passes with rank_local=['{tmp_path.name}']" in line


@pytest.mark.parametrize("place", ["BUFFERS = {}", "class Buffers:\n    BUFFERS = {}"])
def test_what_a_module_or_a_class_keeps_is_named_where_the_case_passes_without_it(
    tmp_path: Path, place: str
) -> None:
    buffers = "Buffers.BUFFERS" if "class" in place else "BUFFERS"
    kept = KEPT.replace("buffer(len(x))", f"{buffers}.setdefault(len(x), np.zeros(len(x)))")
    sums = OPERATOR.replace("BUFFER", kept).replace("ADJOINT", "self.total(y)")
    (line,) = lines_of(tmp_path, f"{sums}\n{place}\n")
    assert line.startswith("simulated ranks share what is kept in ")
    assert buffers in line
    assert f"passes with rank_local=['{tmp_path.name}']" in line


def test_plans_that_earlier_cases_have_left_do_not_hide_that_ranks_share_them(tmp_path: Path) -> None:
    own = "PLANS.setdefault((self.comm.size, len(x)), self.comm.rank + 1)"
    sums = OPERATOR.replace("BUFFER", f"{own} * x").replace("ADJOINT", "(self.comm.rank + 1) * self.total(y)")
    (line,) = lines_of(tmp_path, f"{sums}\nPLANS = {{}}\n")
    assert "share what is kept in " in line
    assert "PLANS" in line


def test_what_is_kept_from_an_earlier_case_is_said_to_be_so_and_not_to_be_shared(tmp_path: Path) -> None:
    once = "CALLS.append(1) or (x if len(CALLS) < 60 else 2 * x)"
    sums = OPERATOR.replace("BUFFER", f"({once})").replace("ADJOINT", "self.total(y)")
    (line,) = lines_of(tmp_path, f"{sums}\nCALLS = []\n")
    assert line.startswith("earlier cases have changed sizes, CALLS: the case passes with its state from")


def test_a_cache_is_not_named_beside_a_fault_that_stays_without_it(tmp_path: Path) -> None:
    assert lines_of(tmp_path, OPERATOR.replace("BUFFER", "x").replace("ADJOINT", "2 * self.total(y)")) == []


AT_IMPORT = "from mpi4py import MPI\nRANK = MPI.COMM_WORLD.Get_rank()\n"
OF_RANKS = OPERATOR.replace("ADJOINT", "(self.comm.rank + 1) * self.total(y)")


@pytest.mark.starts_mpiexec
def test_a_rank_that_is_asked_for_at_import_is_named_where_the_case_passes_with_that_of_the_case(
    tmp_path: Path,
) -> None:
    (line,) = lines_of(tmp_path, AT_IMPORT + OF_RANKS.replace("BUFFER", "(RANK + 1) * x"))
    assert line.startswith(f"MPI.COMM_WORLD is that of this process when {tmp_path.name} is imported: ")
    assert f"the case passes with rank_local=['{tmp_path.name}']" in line


@pytest.mark.starts_mpiexec
def test_it_is_named_as_one_of_the_causes_where_the_case_fails_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests of this process may have asked in as many places as are noted.
    monkeypatch.setattr("adjointlab.worlds.comm_world._ASKED_AT_MOST", 10_000)
    operator = OF_RANKS.replace("BUFFER", "(RANK * self.comm.size + 1) * x")
    (line,) = lines_of(tmp_path, AT_IMPORT + operator)
    assert line.startswith("MPI.COMM_WORLD was asked for its size or rank outside of all cases, at ")
    assert f"{tmp_path.name}.py:2" in line


@pytest.mark.starts_mpiexec
@pytest.mark.parametrize("where", ["asked_{}", "package_{}.inner.asked"])
def test_a_rank_that_another_module_asked_for_is_named_where_the_subject_uses_its_number(
    tmp_path: Path, where: str
) -> None:
    asking = where.format(tmp_path.name)
    file = tmp_path / f"{asking.replace('.', '/')}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{AT_IMPORT}def one(): return 1\n")
    operator = OF_RANKS.replace("BUFFER", "(RANK + one()) * x")
    (line,) = lines_of(tmp_path, f"from {asking} import RANK, one\n{operator}")
    assert (
        f"when {asking} is imported: the case passes with rank_local=['{asking}', '{tmp_path.name}']" in line
    )


@pytest.mark.starts_mpiexec
@pytest.mark.parametrize("declared", ["", ", rank_local=['{subject}', '{package}.numbers']"])
def test_modules_between_the_one_that_asks_and_the_subject_are_named_each_after_what_it_imports(
    tmp_path: Path, declared: str
) -> None:
    package = tmp_path / f"between_{tmp_path.name}"
    package.mkdir()
    (package / "__init__.py").write_text("from .scales import scale, another\n")
    (package / "numbers.py").write_text(AT_IMPORT)
    (package / "scales.py").write_text(
        "from .numbers import RANK\nanother = RANK + 2\ndef scale(): return another - 1\n"
    )
    operator = OF_RANKS.replace("BUFFER", "(another - 1) * scale() / (self.comm.rank + 1) * x")
    names = [f"{package.name}.numbers", f"{package.name}.scales", package.name, tmp_path.name]
    options = declared.format(subject=tmp_path.name, package=package.name)
    (line,) = lines_of(
        tmp_path,
        f"from {package.name} import another, scale\n{operator}".replace(
            "operator(Sum", f"operator(Sum{options}"
        ),
    )
    assert f"when {names[0]} is imported: the case passes with rank_local={names} in" in line


@pytest.mark.starts_mpiexec
@pytest.mark.parametrize("declared", ["", ", rank_local=['made_{subject}']"])
def test_modules_that_have_communicators_of_others_are_named_on_one_rank_too(
    tmp_path: Path, declared: str
) -> None:
    making = f"made_{tmp_path.name}"
    (tmp_path / f"{making}.py").write_text("from mpi4py import MPI\nGRID = MPI.COMM_WORLD.Dup()\n")
    operator = OF_RANKS.replace("BUFFER", "(GRID.rank + 1) * x").replace(
        "operator(Sum", f"operator(Sum{declared.format(subject=tmp_path.name)}"
    )
    (line,) = lines_of(tmp_path, f"from {making} import GRID\n{operator}")
    assert f"the case passes with rank_local={[making, tmp_path.name]} in" in line


@pytest.mark.starts_mpiexec
@pytest.mark.parametrize(
    "taken",
    [
        "def scale(rank=RANK): return rank + 1",
        "class Scale:\n    rank = RANK\ndef scale(): return Scale.rank + 1",
        "def made(rank): return lambda: rank + 1\nscale = made(RANK)",
    ],
)
def test_of_a_module_that_runs_again_the_line_says_what_functions_and_classes_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    monkeypatch.setattr("adjointlab.worlds.comm_world._ASKED_AT_MOST", 10_000)
    operator = OF_RANKS.replace("operator(Sum", f"operator(Sum, rank_local=['{tmp_path.name}']")
    (line,) = lines_of(tmp_path, f"{AT_IMPORT}{taken}\n{operator.replace('BUFFER', 'scale() * x')}")
    assert (
        "so its code runs again on each rank, but functions and classes keep values that they stored" in line
    )
    assert line.endswith("and name modules that import its variables after it")
    assert "or name the module" not in line


@pytest.mark.starts_mpiexec
def test_a_fault_of_a_module_that_runs_again_is_not_put_down_to_the_import(tmp_path: Path) -> None:
    named = OF_RANKS.replace("operator(Sum)", f"operator(Sum, rank_local=['{tmp_path.name}'])")
    assert lines_of(tmp_path, AT_IMPORT + named.replace("BUFFER", "(RANK * self.comm.size + 1) * x")) == []


SIZE_AT_IMPORT = """
from mpi4py import MPI
SIZE = MPI.COMM_WORLD.Get_size()
""" + OPERATOR.replace("BUFFER", "x * SIZE / self.comm.size").replace("ADJOINT", "self.total(y)")


@pytest.mark.starts_mpiexec
def test_a_size_that_is_asked_for_at_import_is_named_on_fewer_real_ranks_than_it_counts(
    tmp_path: Path,
) -> None:
    (tmp_path / "sizes.py").write_text(SIZE_AT_IMPORT)
    words = ("adjointlab", "check", "sizes.py", "--check", "adjoint", "--seed", "1")
    ended = run(*words, ranks=2, cwd=tmp_path)
    assert ended.returncode == 1, ended
    told = " ".join(ended.stdout.split())
    assert (
        "MPI.COMM_WORLD was asked for its size or rank outside of all cases, at sizes.py:3: there it is that of the job"
        in told
    )
    assert "which has 2 ranks, and this case has 1;" in told
    # On as many ranks as the job has, what it asked is right, and another factor is wrong.
    source = SIZE_AT_IMPORT.replace("operator(Sum)", "operator(Sum, ranks=(2,))")
    (tmp_path / "sizes.py").write_text(source.replace("/ self.comm.size", "* 2"))
    ended = run(*words, ranks=2, cwd=tmp_path)
    assert ended.returncode == 1, ended
    assert "outside of all cases" not in ended.stdout


@pytest.mark.parametrize(
    ("prepared", "used"),
    [
        ("import threading\nKEPT = threading.local()\nKEPT.factor = 1", "KEPT.factor * self.total(x)"),
        ("import signal", "signal.signal(signal.SIGALRM, signal.SIG_DFL) and self.total(x)"),
        ("import asyncio", "asyncio.get_event_loop() and self.total(x)"),
    ],
    ids=["values of threading.local", "signal handlers", "event loops"],
)
def test_what_python_binds_to_the_main_thread_is_said_to_be_missing_on_simulated_ranks(
    tmp_path: Path, prepared: str, used: str
) -> None:
    operator = OPERATOR.replace("self.total(BUFFER)", used).replace("ADJOINT", "self.total(y)")
    (line,) = lines_of(tmp_path, f"{prepared}\n{operator}")
    assert line.startswith("simulated ranks are threads, and none of them the main one")


def test_a_launchers_variable_that_is_missing_is_said_to_be_that_of_a_process(tmp_path: Path) -> None:
    operator = OPERATOR.replace("self.total(BUFFER)", 'int(os.environ["LOCAL_RANK"]) * self.total(x)')
    (line,) = lines_of(tmp_path, f"import os\n{operator.replace('ADJOINT', 'self.total(y)')}")
    assert line.startswith("simulated ranks are threads of one process, and have no environment variables")


@pytest.mark.parametrize("method", ["allreduce", "Get_rank"])
def test_a_tensor_that_is_taken_for_the_communicator_is_told_with_the_order_of_arguments(method: str) -> None:
    def of(kind: str, attribute: str) -> tuple[tuple[str, str], ...]:
        text = f"rank 0 raised AttributeError: '{kind}' object has no attribute '{attribute}'"
        return with_lines_on_exceptions(unjudged(text, kind="raised AttributeError"), is_simulated=True).lines

    for kind in ("numpy.ndarray", "Tensor"):
        ((label, line),) = of(kind, method)
        assert label == "perhaps"
        assert line.startswith("functions are called with the communicator of the case first")
        assert of(kind, "columns") == ()
    assert of("Operator", method) == ()


@pytest.mark.parametrize(
    ("error", "is_so"),
    [
        ("TypeError: object of type 'Communicator' has no len()", True),
        ("TypeError: unsupported operand type(s) for *: 'int' and 'GuardedComm'", True),
        ("AttributeError: the simulated communicator has no 'copy'", True),
        ("AttributeError: the MPI communicator has no 'shape'", True),
        ("AttributeError: the simulated communicator has no 'split'; it has Split", False),
        ("AttributeError: the simulated communicator has no 'Isendrecv'", False),
        ("TypeError: object of type 'Operator' has no len()", False),
        ("TypeError: unhashable type: 'Communicator'", False),
    ],
)
def test_a_communicator_that_is_taken_for_a_tensor_is_told_with_the_order_of_arguments(
    error: str, is_so: bool
) -> None:
    kind = f"raised {error.partition(':')[0]}"
    lines = with_lines_on_exceptions(unjudged(f"rank 0 {kind}: {error}", kind=kind), is_simulated=True).lines
    assert [line.startswith("functions are called with the communicator") for _, line in lines] == [
        True
    ] * is_so


@pytest.mark.parametrize("made", ["Intracomm(self.comm)", "pkl5.Intracomm(self.comm)"])
def test_what_takes_communicators_of_mpi4py_alone_is_told_to_take_none_of_a_case(
    tmp_path: Path, made: str
) -> None:
    pytest.importorskip("mpi4py.MPI")
    operator = OPERATOR.replace("self.total(BUFFER)", f"{made}.allreduce(x)")
    imports = "from mpi4py.MPI import Intracomm\nfrom mpi4py.util import pkl5"
    (line,) = lines_of(tmp_path, f"{imports}\n{operator.replace('ADJOINT', 'self.total(y)')}")
    assert line.startswith(
        "the communicator of a case has the methods of mpi4py's, but compiled code does not accept it"
    )
    raised = unjudged(
        "rank 0 raised TypeError: (expected mpi4py.MPI.Comm, got GuardedComm)", kind="raised TypeError"
    )
    (said,) = with_lines_on_exceptions(raised, is_simulated=False).lines
    assert said == ("perhaps", line)
    of_threads = unjudged("rank 0 raised RuntimeError: no thread", kind="raised RuntimeError")
    assert with_lines_on_exceptions(of_threads, is_simulated=False) == of_threads


CHANGES_ITS_ARGUMENTS = """
    import adjointlab as al

    class Scaled(al.LinearOperator):
        def __init__(self, comm, layout, options, factors):
            self.comm = comm
            self.domain = self.codomain = al.Space(layout)
            self.factor = options.pop("factor") * factors.pop()[0].pop("factor")
            assert not options

        def forward(self, x):
            return self.factor * x

        adjoint = forward

    @al.subject.operator(Scaled, reference=lambda x, layout, options, factors: options.pop("factor") * 3 * x)
    def scaled(draw, ranks):
        return {"layout": draw(al.strategies.layouts(ranks)), "options": {"factor": 2}, "factors": [({"factor": 3},)]}
"""


@pytest.mark.parametrize("check", ["adjoint", "sequential", "purity", "reentrancy"])
def test_an_operator_may_change_the_arguments_it_is_made_of(tmp_path: Path, check: str) -> None:
    file = tmp_path / f"{tmp_path.name}.py"
    file.write_text(textwrap.dedent(CHANGES_ITS_ARGUMENTS))
    found: Any = find_subject(f"{file}:scaled")
    verdict = investigate(al.SimulatedWorld(3), found, check, Budget(20, seed=1)).verdict
    assert verdict.is_coherent, verdict


def test_modules_of_numpy_are_not_said_to_be_shared() -> None:
    subject = al.subject.pair(np.fft.fft, np.linalg.norm)(lambda draw, ranks: {})
    names = [name for name, _ in modules_of(subject)]
    assert __name__ in names
    assert not any(name.startswith("numpy") for name in names)


class Deprecated:
    """Stands for a name that is deprecated, and warns of every use, as `torch.distributed.reduce_op` does."""

    def __getattribute__(self, name: str) -> Any:
        pytest.fail(f"{name} was asked for")


def test_objects_among_the_variables_of_a_module_are_not_asked_for_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("of_objects")
    vars(module).update(
        OLD=Deprecated(), Kind=type("Kind", (), {"__module__": "of_objects", "old": Deprecated()})
    )
    monkeypatch.setitem(sys.modules, "of_objects", module)
    state = ModuleState(["of_objects"])
    assert state.kept() == []
    with state.put_back():
        state.seed(1)
