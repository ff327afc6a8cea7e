"""The text of a script: which form it has, how it is run, what it needs, and the data that it states."""

from __future__ import annotations

import ast
import cmath
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.check import Spaces
from adjointlab.checks.context import InputSetting
from adjointlab.checks.memory_orders import ORDERS
from adjointlab.checks.verdict import MatrixEntry, Status, Verdict
from adjointlab.engine.case import Case
from adjointlab.engine.search_result import SearchResult
from adjointlab.engine.subject import Subject
from adjointlab.store import products_script, script_text
from adjointlab.store.script import script
from adjointlab.store.script_text import literal
from adjointlab.worlds.schedule import Schedule
from tests.store.test_arguments_of_scripts import operators, pairs

pytestmark = pytest.mark.mpi_skip

ENTRY = MatrixEntry(0, 1)
LAYOUT = al.Layout((3,), (2,))
SPACE = al.Space(LAYOUT)
HALF = al.Space(LAYOUT, dtype="float32")
BRAIN = al.Space(LAYOUT, dtype="bfloat16")
BOTH = al.Space(al.Tensor(LAYOUT, "float64", name="wide"), al.Tensor(LAYOUT, "float32", name="narrow"))
COPIES = al.Space(al.Layout((3,), (2,), axes=[None]), types=["invariant"])


def twice(comm: Any, x: Any) -> Any:
    return 2 * x


def half(comm: Any, y: Any) -> Any:
    return y / 2


@al.subject.pair(twice, half)
def two_functions(draw: Any, ranks: int) -> dict[str, Any]:
    return {}


@al.subject.pair(twice, lambda comm, y: y)
def half_of_it_importable(draw: Any, ranks: int) -> dict[str, Any]:
    return {}


def text_of(
    subject: Subject = two_functions,
    *,
    entry: MatrixEntry | None = ENTRY,
    status: Status = Status.INCOHERENT,
    setting: InputSetting = InputSetting(),  # noqa: B008 - frozen
    schedules: tuple[Schedule, ...] = (),
    world: str = "simulated",
    spaces: Spaces | None = Spaces(SPACE, SPACE),  # noqa: B008 - frozen
) -> str:
    verdict = Verdict(status, "wrong", "wrong", (), entry=entry)
    case = Case("scaled", "adjoint", 2, {}, setting, 0, schedules)
    result = SearchResult("scaled", "adjoint", world, verdict, 1, 0, 0.0, case, spaces)
    text = script(case, result, subject, Path("name.json"))
    assert text is not None
    compile(text, "name.py", "exec")
    return text


LINES = (("a", "first"), ("traceback", "not shown"), ("where", "two\nlines"), ("zone", "last"))


def test_a_script_begins_with_the_findings_but_for_the_traceback() -> None:
    verdict = Verdict(Status.UNJUDGED, "a crash", "wrong", LINES)
    result = SearchResult("Rings", "adjoint", "simulated", verdict)
    case = Case("scaled", "adjoint", 2, {}, InputSetting(), 0)
    text = script(case, result, two_functions, Path("name.json"))
    assert text is not None
    assert text.startswith(
        "#!/usr/bin/env python3\n# -*- coding: utf-8 -*-\n# Rings: a crash\n#\n# a: first\n# where: two\n# lines\n# zone: last\n#\n# It replays"
    )


@pytest.mark.parametrize("entry", [ENTRY, None])
def test_a_script_in_a_repository_is_left_alone_by_linters_and_formatters(
    tmp_path: Path, entry: MatrixEntry | None
) -> None:
    pytest.importorskip("ruff")
    file = tmp_path / "name.py"
    file.write_text(text_of(entry=entry))
    for command in (["check", "--select=ALL", "--ignore=PGH004"], ["format", "--check"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, "--isolated", file], check=True)


def run_with(text: str) -> str:
    (line,) = (line for line in text.splitlines() if line.startswith("# Run with: "))
    return line.removeprefix("# Run with: ")


@pytest.mark.parametrize("order", ORDERS)
def test_plain_basis_vectors_show_a_wrong_entry_of_row_major_arrays_alone(order: str) -> None:
    for setting in (
        InputSetting(primal_order=order),
        InputSetting(dual_order=order),
        InputSetting(primal_order=order, dual_order=order),
    ):
        assert ("pairing(x, Fy, COUNTED_X)" in text_of(setting=setting)) is (order == "row-major")


OTHERS: dict[str, dict[str, Any]] = {
    "no entry": {"entry": None},
    "no spaces": {"spaces": None},
    "no verdict on the numbers": {"status": Status.UNJUDGED},
    "schedules": {"schedules": (Schedule("random", 1),)},
    "a library that MPI does not know": {"setting": InputSetting(library="cupy")},
    "memory of a device": {"setting": InputSetting(library="torch-cuda")},
    "a type that MPI does not have": {"spaces": Spaces(BRAIN, BRAIN)},
    "such a type of results": {"spaces": Spaces(SPACE, BRAIN)},
    "a process group": {"subject": replace(two_functions, process_group=True)},
}


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_failure_is_replayed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = dict(OTHERS[name])
    subject = options.pop("subject", two_functions)
    monkeypatch.setattr(sys.modules[__name__], "two_functions", subject)
    text = text_of(subject, **options)
    assert "reproduce(__file__, '" in text
    assert "pairing(" not in text
    assert "# It replays name.json, which has to lie beside it, and needs adjointlab.\n" in text


SCHEDULES = (Schedule("random", 1),)


@pytest.mark.parametrize(
    ("world", "schedules", "process_group", "command"),
    [
        ("simulated", (), False, "python name.py (on simulated ranks), or mpiexec -n 2 python name.py"),
        (
            "simulated",
            (),
            True,
            "python name.py (on simulated ranks), mpiexec -n 2 python name.py, or torchrun --nproc-per-node 2 name.py",
        ),
        ("mpi", (), False, "mpiexec -n 2 python name.py; without mpiexec, on simulated ranks"),
        ("mpi", (), True, "mpiexec -n 2 python name.py; without mpiexec, on simulated ranks"),
        ("torch", (), False, "torchrun --nproc-per-node 2 name.py; without torchrun, on simulated ranks"),
        ("torch", (), True, "torchrun --nproc-per-node 2 name.py; without torchrun, on simulated ranks"),
        *(
            (world, SCHEDULES, False, "python name.py (on simulated ranks, which alone have schedules)")
            for world in ("simulated", "mpi", "torch")
        ),
    ],
)
def test_a_script_that_replays_is_run_where_the_failure_was_seen_or_on_simulated_ranks(
    world: str, schedules: Any, process_group: bool, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = replace(two_functions, process_group=process_group)
    monkeypatch.setattr(sys.modules[__name__], "two_functions", subject)
    assert run_with(text_of(subject, world=world, schedules=schedules, entry=None)) == command


def test_functions_that_cannot_all_be_imported_are_replayed() -> None:
    assert "reproduce(__file__" in text_of(half_of_it_importable)


def test_a_script_calls_each_function_of_a_pair_and_says_what_it_needs() -> None:
    text = text_of()
    assert run_with(text) == "mpiexec -n 2 python name.py"
    assert f"    forward = import_module({__name__!r}).twice\n" in text
    assert f"    adjoint = import_module({__name__!r}).half\n" in text
    assert f"# It needs mpi4py, NumPy, adjointlab, and what {__name__} imports.\n" in text
    assert f"for name in ({__name__!r}, ):\n" in text
    assert "    if comm.Get_size() != 2:\n" in text
    assert ".Scaled(comm, **arguments)\n" in text_of(operators)
    assert text_of(pairs).count(".scaled\n") == 2


@pytest.mark.parametrize(
    ("weight", "printed", "differ"),
    [
        (None, None, ""),
        (2.0, "2.0", ", from each other or from what the specification says"),
        (complex(2, 0), "2.0", ", from each other or from what the specification says"),
        (complex(2, -1), "(2-1j)", ", from each other or from what the specification says"),
    ],
)
def test_the_entry_of_the_specification_is_expected_where_there_is_one(
    weight: Any, printed: str | None, differ: str
) -> None:
    text = text_of(entry=MatrixEntry(0, 1, weight))
    assert f"# Exit codes: 1 while they differ{differ}, 0 once they agree, 2 if it cannot run.\n" in text
    if printed is None:
        assert "expected" not in text
        assert "same = same" not in text
    else:
        assert f'        print("expected  =", {printed})\n' in text
        assert f"    same = same and left == {printed}\n" in text


@pytest.mark.parametrize(("domain", "precision"), [(SPACE, 53), (HALF, 24), (BOTH, 24)])
def test_products_may_differ_by_four_roundings_of_the_least_precise_tensor(
    domain: al.Space, precision: int
) -> None:
    text = text_of(spaces=Spaces(domain, SPACE))
    (line,) = (line for line in text.splitlines() if "same = abs(left - right) <= " in line)
    assert float(line.split("<= ")[1].split(" * ")[0]) == 4 * 2.0**-precision


def stated(text: str, name: str) -> Any:
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return ast.literal_eval(node.value)
    raise AssertionError(name)


@pytest.mark.parametrize(("column", "row"), [(0, 2), (2, 1), (1, 0)])
def test_the_two_basis_vectors_are_stated_rank_by_rank(column: int, row: int) -> None:
    text = text_of(entry=MatrixEntry(column, row), spaces=Spaces(SPACE, HALF))
    for name, index, dtype in (("X", column, "float64"), ("Y", row, "float32")):
        whole = [float(index == at) for at in range(3)]
        assert stated(text, name) == [[(tuple(whole[:2]), dtype, (2,))], [(tuple(whole[2:]), dtype, (1,))]]


def test_of_invariant_copies_the_first_counts() -> None:
    text = text_of(spaces=Spaces(COPIES, BOTH))
    assert stated(text, "COUNTED_X") == [[0]]
    assert stated(text, "COUNTED_Y") == [[0, 1], [0, 1]]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (True, "True"),
        (-3, "-3"),
        ("é", "'\\xe9'"),
        (0.5, "0.5"),
        (math.inf, "float('inf')"),
        (-math.inf, "float('-inf')"),
        (math.nan, "float('nan')"),
        (np.float64(0.5), "0.5"),
        (complex(1, -math.inf), "complex(1.0, float('-inf'))"),
        ((), "()"),
        ((1,), "(1, )"),
        ([1, (2, "a")], "(1, (2, 'a', ), )"),
        ({"a": 1, 2: [None]}, "{'a': 1, 2: (None, )}"),
        ({}, "{}"),
        (object(), None),
        ([1, object()], None),
        ({"a": object()}, None),
        ({(1, object()): 1}, None),
        (al.Partition((2,)), None),
        (Status.COHERENT, None),
        (type("Number", (int,), {})(3), None),
        (type("Before", (int,), {"__module__": "a"})(3), None),
        (type("After", (str,), {"__module__": "z"})("a"), None),
    ],
)
def test_a_literal_is_made_of_plain_data_alone(value: object, text: str | None) -> None:
    assert literal(value) == text
    if text is not None and isinstance(value, complex):
        assert cmath.isinf(value)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of a given name and file."""

    def made(name: str, file: Path | None, **attributes: object) -> ModuleType:
        new = ModuleType(name)
        if file is not None:
            new.__file__ = str(file)
        vars(new).update(attributes)
        monkeypatch.setitem(sys.modules, name, new)
        return new

    return made


@pytest.mark.parametrize(
    ("name", "file", "found", "folder"),
    [
        ("shift", "shift.py", "shift", "."),
        ("Shift", "Shift.py", "Shift", "."),
        ("rings.shift", "rings/shift.py", "rings.shift", "."),
        ("a.rings.shift", "a/rings/shift.py", "a.rings.shift", "."),
        ("b.a.rings.shift", "b/a/rings/shift.py", "b.a.rings.shift", "."),
        ("rings", "rings/__init__.py", "rings", "."),
        ("a.rings", "a/rings/__init__.py", "a.rings", "."),
        ("other", "rings/shift.py", None, "rings"),
        ("test-shift", "test-shift.py", None, "."),  # which no command line takes for a module
        ("rings.shift", "shift.py", None, "."),
        ("ring", "rings/__init__.py", None, "rings"),
    ],
)
def test_a_function_is_found_by_the_name_of_its_module_where_its_file_has_that_name(
    name: str, file: str, found: str | None, folder: str, module: Any, tmp_path: Path
) -> None:
    path = tmp_path.resolve() / file
    module(name, path)
    given = script_text.in_module(name, "f")
    assert given is not None
    if found is None:
        assert given == (str(path), "f", str(tmp_path.resolve() / folder))
    else:
        assert given == (found, "f", str(tmp_path.resolve() / folder))


def test_what_has_no_file_or_no_printable_name_is_not_found(module: Any, tmp_path: Path) -> None:
    module("nowhere", None)
    module("somewhere", tmp_path / "somewhere.py")
    assert script_text.in_module("nowhere", "f") is None
    assert script_text.in_module("not imported", "f") is None
    assert script_text.in_module("somewhere", "f\x1b") is None


@pytest.mark.parametrize(
    ("attributes", "uses"),
    [
        ({}, False),
        ({"lab": al}, True),
        ({"np": np, "lab": al.MPI}, True),
        ({"Space": al.Space}, True),
        ({"f": type("f", (), {"__module__": "adjointlab"})}, True),
        ({"f": type("f", (), {"__module__": "adjoint"})}, False),
        ({"f": type("f", (), {"__module__": "adjointlabs.core"})}, False),
        ({"f": type("f", (), {"__module__": "zebra"})}, False),
        ({"f": type("f", (), {"__module__": "aardvark"})}, False),
        ({"f": type("f", (), {"__module__": "my.adjointlab"})}, False),
        ({"np": np, "number": 3}, False),
    ],
)
def test_a_module_uses_the_lab_if_something_in_it_comes_from_there(
    attributes: dict[str, object], uses: bool, module: Any
) -> None:
    new = ModuleType("any")
    vars(new).clear()
    vars(new).update(attributes)
    assert products_script._uses_lab(new) is uses


def test_folders_on_the_path_come_first_last_and_without_those_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    one, two, three = (str(folder.resolve()) for folder in folders)
    monkeypatch.setattr(sys, "path", ["", one, str(tmp_path / "gone"), script_text._INSTALLED[0], two, one])
    names = [
        script_text.Name("m", "f", three),
        script_text.Name("m", "g", two),
        script_text.Name("m", "h", three),
    ]
    assert ast.literal_eval(script_text.folders(names, Path("/elsewhere/corpus/name.json"))) == (
        one,
        two,
        three,
    )
