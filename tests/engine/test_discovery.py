"""Subjects are found where the user says, and what is wrong is said clearly."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from adjointlab.engine.discovery import NotFound, find, find_and_note, find_subject, found_as, installed

SAMPLES = Path(__file__).parents[1] / "samples.py"

PACKAGE = """
import adjointlab as al

class Copy(al.LinearOperator):
    def __init__(self, comm, layout):
        self.comm, self.domain, self.codomain = comm, al.Space(layout), al.Space(layout)
    def forward(self, x): return x.copy()
    def adjoint(self, y): return y.copy()

class Orphan(Copy):
    pass

@al.subject(Copy)
def copies(draw, ranks):
    return dict(layout=draw(al.strategies.layouts(ranks)))

def helper(): pass
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An installed package that declares subjects."""
    name = f"lab_plugin_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(PACKAGE)
    information = tmp_path / f"{name}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[adjointlab.subjects]\nit = {name}\n")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_an_installed_subject_is_found_without_being_named(plugin: str) -> None:
    entry = next(entry for entry in installed() if entry.reference == f"{plugin}:copies")
    assert entry.subject.name == "Copy"
    assert entry.is_installed
    assert find([]) == installed()


def test_an_installed_subject_is_found_by_its_name_its_module_its_operator_and_itself(plugin: str) -> None:
    subject = find_subject(f"{plugin}:copies")
    for reference in ("Copy", plugin, f"{plugin}:Copy"):
        assert subject in [entry.subject for entry in find([reference])], reference
    assert found_as(subject) == find([f"{plugin}:copies"])[0]


def test_a_broken_entry_point_is_named(plugin: str, tmp_path: Path) -> None:
    (tmp_path / f"{plugin}.py").write_text("raise OSError('the disk is away')")
    with pytest.raises(NotFound, match=rf"it = {plugin} of {plugin} .*the disk is away"):
        installed()


def test_a_file_holds_subjects_one_or_all() -> None:
    assert find_subject(f"{SAMPLES}:right").name == "RingShift"
    assert {entry.subject.name for entry in find([str(SAMPLES)])} >= {"RingShift", "WrongShift", "Hanging"}


def test_a_subject_named_twice_is_found_once() -> None:
    assert len(find([f"{SAMPLES}:right", str(SAMPLES), f"{SAMPLES}:right"])) == len(find([str(SAMPLES)]))


def test_a_strategy_that_a_decorator_wraps_is_found_where_it_was_written() -> None:
    """``al.subject.parallel`` and ``al.subject.dtensor`` wrap strategies themselves."""
    subject = find_subject(f"{SAMPLES}:wrong")
    written = subject.draws

    @wraps(written)
    def drawn(draw: Any, ranks: int) -> Any:
        return written(draw, ranks)

    assert found_as(replace(subject, draws=drawn)).reference == found_as(subject).reference


def test_a_reference_found_is_a_reference_that_finds() -> None:
    entry = found_as(find_subject(f"{SAMPLES}:wrong"))
    assert not entry.is_installed
    assert find_subject(entry.reference) is entry.subject


def test_a_file_in_a_package_may_import_its_siblings(tmp_path: Path) -> None:
    package = tmp_path / f"lab_package_{tmp_path.name.replace('-', '_')}"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "operators.py").write_text(PACKAGE)
    (package / "subjects.py").write_text("from .operators import copies\n")
    assert find_subject(f"{package / 'subjects.py'}:copies").name == "Copy"


def test_a_file_whose_name_is_no_modules_is_executed_once(tmp_path: Path) -> None:
    file = tmp_path / "my-cases.py"
    file.write_text(PACKAGE)
    found = find([str(file), f"{file}:copies"])
    assert [entry.subject.name for entry in found] == ["Copy"]


def test_a_file_whose_name_is_not_in_utf_8_has_subjects_too(tmp_path: Path) -> None:
    file = tmp_path / "cases\udce9.py"
    try:
        file.write_text(PACKAGE)
    except OSError:
        pytest.skip("the file system has no such names")
    assert find_subject(f"{file}:copies").name == "Copy"


def test_a_class_of_tests_stands_for_its_subject(tmp_path: Path) -> None:
    file = tmp_path / f"tested_{tmp_path.name.replace('-', '_')}.py"
    file.write_text(f"{PACKAGE}\nTestCopy = al.coherence_tests(copies)\nclass Other: pass\n")
    for reference in (f"{file}:TestCopy", f"{file}::TestCopy"):
        (found,) = find([reference])
        assert (found.subject.name, found.reference) == ("Copy", f"{file}:copies")
    with pytest.raises(NotFound, match="Other is a class, not a subject"):
        find([f"{file}:Other"])
    with pytest.raises(
        NotFound,
        match="there is no module or installed subject adjoint; adjoint is a check: say --check adjoint",
    ):
        find([str(file), "adjoint"])


def test_two_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    names = []
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        file = tmp_path / folder / "same_name.py"
        file.write_text(PACKAGE.replace("class Copy", f"class {folder}").replace("(Copy)", f"({folder})"))
        names.append(find_subject(f"{file}:copies").name)
    assert names == ["first", "second"]
    assert not hasattr(sys.modules["same_name"], "second")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("no_such_module_at_all:x", "no module or installed subject no_such_module_at_all"),
        ("NoSuchSubject", "package.module:name"),
        ("no/such/file.py:x", "no Python file"),
        ("not a name", "not the name of a subject"),
        (f"{SAMPLES}:absent", "has no absent; its subjects are: right, wrong"),
        (f"{SAMPLES}:not_a_subject", "is a int, not a subject; declare one"),
        (f"{SAMPLES}:equal_blocks", "is a function, not a subject; declare one"),
        ("adjointlab.core.partition:Partition", "is a class, not a subject; declare one"),
        ("adjointlab.core.partition", "has no subjects; declare one"),
    ],
)
def test_what_is_no_subject_is_refused_with_what_to_do(reference: str, message: str) -> None:
    with pytest.raises(NotFound) as refused:
        find([reference])
    assert message in str(refused.value)


def test_an_operator_without_a_subject_is_told_how_to_get_one(tmp_path: Path) -> None:
    file = tmp_path / "orphanage.py"
    file.write_text(PACKAGE)
    with pytest.raises(NotFound, match=r"@adjointlab.subject.operator\(Orphan\)"):
        find([f"{file}:Orphan"])


@pytest.mark.parametrize(
    "text",
    [
        "math.no_such_function",
        "(\n    lambda: math.no_such_function)()",
        "(lambda: math.no_such_function\n)()",
    ],
)
def test_a_module_that_fails_to_import_says_why_and_in_which_innermost_line(
    tmp_path: Path, text: str
) -> None:
    file = tmp_path / "breaks_on_import.py"
    file.write_text(f"import math\n{text}\n")
    line = 2 + text.split("math")[0].count("\n")
    with pytest.raises(NotFound, match=rf"cannot be imported: AttributeError.*breaks_on_import.py:{line}\)"):
        find([str(file)])
    assert "breaks_on_import" not in sys.modules


@pytest.mark.parametrize(
    "text", ["import argparse\nargparse.ArgumentParser().parse_args()", "import json\njson.loads('{')"]
)
def test_a_module_that_fails_in_a_library_is_cited_by_its_own_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["adjointlab", "check"])
    file = tmp_path / "fails_in_a_library.py"
    file.write_text(text)
    with pytest.raises(NotFound, match=r"fails_in_a_library\.py:2\)$"):
        find([str(file)])


def test_a_module_that_takes_itself_out_and_fails_says_why(tmp_path: Path) -> None:
    file = tmp_path / "takes_itself_out.py"
    file.write_text("import sys\ndel sys.modules[__name__]\nraise OSError('the reason')\n")
    with pytest.raises(NotFound, match="OSError: the reason"):
        find([str(file)])


@pytest.mark.parametrize("missing", ["a_missing_module", "zz_missing_module"])
def test_a_module_that_imports_a_missing_one_is_not_missing_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    (tmp_path / "imports_a_missing_one.py").write_text(f"import {missing}\n")
    monkeypatch.chdir(tmp_path)
    why = rf"imports_a_missing_one cannot be imported: ModuleNotFoundError: No module named '{missing}'"
    with pytest.raises(NotFound, match=why):
        find(["imports_a_missing_one"])
    for name in (missing, f"{missing}.inner"):
        with pytest.raises(NotFound, match=f"there is no module or installed subject {name}"):
            find([name])


NAMELESS = """
import adjointlab as al
from tests.samples import RingShift, equal_blocks, right

def made(name):
    return al.subject.operator(RingShift, name=name)(equal_blocks_of)

def equal_blocks_of(draw, ranks):
    return equal_blocks(draw, ranks)

named = made("Named")
also_named = named
in_list = [named, right, made("A"), (made("B"),)]
in_mapping = {"key": {"inner": made("C")}}

class Group:
    member = made("D")

made("E")
made("F")
"""

CALLED_ALIKE = """
import adjointlab as al
from tests.samples import RingShift, equal_blocks

for name in ("A", "B"):
    @al.subject.operator(RingShift, name=name)
    def shifts(draw, ranks):
        return equal_blocks(draw, ranks)
"""


def test_subjects_without_a_name_of_their_own_are_counted_where_they_are(tmp_path: Path) -> None:
    file = tmp_path / f"nameless_{tmp_path.name.replace('-', '_')}.py"
    file.write_text(NAMELESS)
    found, notes = find_and_note([str(file)])
    assert sorted(entry.subject.name for entry in found) == ["Named", "RingShift"]
    assert len(notes) == 1
    for part in (
        "2 subjects (A, B) in `in_list`",
        "1 subject (C) in `in_mapping`",
        "1 subject (D) in `Group`",
        "2 subjects (E, F) to which no name refers any more",
    ):
        assert part in notes[0]
    assert find_and_note([f"{file}:named"])[1] == []
    assert find_and_note([str(SAMPLES)])[1] == []


@pytest.mark.parametrize("reference", ["{}", "{}:shifts", "{}:RingShift"])
def test_a_file_in_which_two_subjects_have_one_name_is_refused(reference: str, tmp_path: Path) -> None:
    file = tmp_path / f"called_alike_{tmp_path.name.replace('-', '_')}.py"
    file.write_text(CALLED_ALIKE)
    with pytest.raises(NotFound, match=r"two subjects are called shifts \(A, B\), and only the last one"):
        find([reference.format(file)])


@pytest.mark.parametrize(
    "keeping",
    [
        "kept = [shifts]",
        "TestA = al.coherence_tests(shifts)",
        "class Tests: TestA = al.coherence_tests(shifts)",
        "kept = iter([shifts])",
    ],
)
def test_a_subject_that_is_kept_may_lose_its_name(keeping: str, tmp_path: Path) -> None:
    file = tmp_path / f"kept_{tmp_path.name.replace('-', '_')}.py"
    file.write_text(f"{CALLED_ALIKE}    if name == 'A':\n        {keeping}\n")
    assert [entry.subject.name for entry in find([str(file)])] == ["B"]


def test_a_file_that_has_the_name_of_a_known_module_is_called_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys, "path", [*sys.path]
    )  # else processes that start later would take this file for Python's
    file = tmp_path / "json.py"
    file.write_text(NAMELESS)
    assert [note.partition(": ")[0] for note in find_and_note([str(file)])[1]] == [str(file)]


def test_a_file_whose_only_subject_is_made_in_a_function_and_not_returned_says_so(tmp_path: Path) -> None:
    file = tmp_path / f"unreturned_{tmp_path.name.replace('-', '_')}.py"
    declaration = CALLED_ALIKE.partition("for name in")[2].partition("\n")[2]
    file.write_text(
        f"import adjointlab as al\nfrom tests.samples import RingShift\ndef made(name):\n{declaration}\nmine = made('A')\n"
    )
    with pytest.raises(NotFound, match=r"1 subject \(A\) to which no name refers any more: not checked"):
        find([str(file)])


def test_a_file_whose_subjects_have_no_names_says_so(tmp_path: Path) -> None:
    file = tmp_path / f"listed_{tmp_path.name.replace('-', '_')}.py"
    file.write_text("from tests.samples import right\nsubjects = [right]\ndel right\n")
    with pytest.raises(NotFound, match=r"1 subject \(RingShift\) in `subjects`: not checked; bind each"):
        find([str(file)])


FORMS = """
import adjointlab as al
import torch

class Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, comm, by): return x
    @staticmethod
    def backward(ctx, gradient): return gradient, None, None

class Column(torch.nn.Module):
    def __init__(self, comm, inputs, outputs, bias=True): super().__init__()

class Late(torch.nn.Module):
    def __init__(self, inputs, command): super().__init__()

class Sharded(torch.nn.Module):
    def __init__(self, inputs): super().__init__()

def exchange(comm, x, cut, width): return x
def exchange_adjoint(comm, y, cut, width): return y
def sum_over(comm, x): return x
def spaces(draw, ranks): return {}
"""


def advice_on(name: str, text: str, folder: Path) -> str:
    """The declaration that is proposed for what has that name in a file of this text, or for the file."""
    file = folder / "forms.py"
    file.write_text(text)
    with pytest.raises(NotFound) as refused:
        find([f"{file}:{name}" if name else str(file)])
    return str(refused.value).partition("declare one beside it:")[2]


@pytest.mark.parametrize(
    ("name", "form", "arguments"),
    [
        (
            "exchange",
            "pair(forward=exchange, adjoint=exchange_adjoint)",
            "codomain=space, cut=..., width=...)",
        ),
        ("sum_over", "pair(forward=sum_over, adjoint=sum_over_adjoint)", "codomain=space)"),
        ("Shift", "autograd(Shift)", "codomain=space, by=...)"),
        ("Column", "layer(Column, sequential=MySequential)", "parameter_space=..., inputs=..., outputs=...)"),
        (
            "Late",
            "layer(Late, sequential=MySequential, process_group=True)",
            "parameter_space=..., inputs=..., command=...)",
        ),
        (
            "Sharded",
            "layer(Sharded, sequential=MySequential, process_group=True)",
            "parameter_space=..., inputs=...)",
        ),
        ("spaces", "operator(MyOperator)", "(layout="),
        ("", "layer(Sharded, sequential=MySequential, process_group=True)", ", inputs=...)"),
    ],
)
def test_what_is_no_subject_is_told_of_the_form_that_fits_it(
    tmp_path: Path, name: str, form: str, arguments: str
) -> None:
    pytest.importorskip("torch")
    advice = advice_on(name, FORMS, tmp_path)
    assert f"    @adjointlab.subject.{form}" in advice
    assert arguments in advice
    compile(textwrap.dedent(advice), "advice", "exec")


@pytest.mark.parametrize(
    ("name", "form", "arguments"),
    [
        (
            "exchange",
            "pair(forward=exchange, adjoint=exchange_adjoint, process_group=True)",
            "codomain=space, cut=..., width=...)",
        ),
        ("Shift", "autograd(Shift, process_group=True)", "codomain=space, by=...)"),
        ("spaces", "autograd(function, process_group=True)", "codomain=space)"),
    ],
)
def test_functions_that_call_torch_distributed_are_given_a_default_group_and_no_communicator(
    tmp_path: Path, name: str, form: str, arguments: str
) -> None:
    pytest.importorskip("torch")
    grouped = "import torch.distributed as dist\n" + FORMS.replace("comm, ", "").replace(", comm", "")
    advice = advice_on(name, grouped, tmp_path)
    assert f"    @adjointlab.subject.{form}" in advice
    assert arguments in advice


def test_a_module_of_functions_is_told_of_the_pair_in_it(tmp_path: Path) -> None:
    file = tmp_path / "functions.py"
    file.write_text("def ring_forward(comm, x): ...\ndef ring_adjoint(comm, y): ...\ndef helper(x): ...\n")
    with pytest.raises(NotFound, match=r"pair\(forward=ring_forward, adjoint=ring_adjoint\)"):
        find([str(file)])


CALLED = """
import adjointlab as al

def exchange(comm, x): return x
def adjoint(comm, y): return y

@al.subject.pair(exchange, adjoint, name="HaloOfRows")
def swaps(draw, ranks):
    return {}
"""


@pytest.mark.parametrize("name", ["exchange", "adjoint", "HaloOfRows", "HaloOfRow"])
def test_a_name_from_a_report_leads_to_the_one_that_commands_take(tmp_path: Path, name: str) -> None:
    file = tmp_path / "called.py"
    file.write_text(CALLED)
    with pytest.raises(NotFound, match=r"subject.* is .*called\.py:swaps$|did you mean swaps\?$"):
        find([f"{file}:{name}"])


def test_a_declaration_that_is_refused_is_cited_by_the_line_of_its_author(tmp_path: Path) -> None:
    file = tmp_path / "refused.py"
    file.write_text("from tests.samples import RingShift\nimport adjointlab as al\n\n\n"
                    "al.subject.operator(RingShift)(lambda draw, ranks, **more: {})\n")  # fmt: skip
    with pytest.raises(NotFound, match=r"takes \(draw, ranks\).*refused\.py:5\)$"):
        find([str(file)])
