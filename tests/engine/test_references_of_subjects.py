"""References lead to the subjects of entry points, modules and files; what leads to none is answered with a whole sentence."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import adjointlab as al
from adjointlab.engine import discovery, user_modules
from adjointlab.engine.discovery import (
    GROUP,
    Found,
    NotFound,
    find,
    find_and_note,
    find_subject,
    found_as,
    installed,
)
from adjointlab.engine.subject import Subject
from adjointlab.spelling import did_you_mean
from adjointlab.worlds.watchdog import Overdue
from tests.samples import RingShift, WrongShift

pytestmark = pytest.mark.mpi_skip

FORMS = "give package.module:name, path/to/file.py:name, a module or file alone for all its subjects, or an installed name"


def declared(name: str, module: str, operator: Any = RingShift) -> Subject:
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return {}

    cases.__module__ = module
    subject = al.subject.operator(operator, name=name)(cases)
    assert isinstance(subject, Subject)
    return subject


def layer(name: str, module: str) -> Subject:
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return {}

    cases.__module__ = module
    subject: Any = al.subject.layer(lambda comm: None, lambda: None, name=name)(cases)
    return subject  # type: ignore[no-any-return]


Add = Callable[..., ModuleType]


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch) -> Add:
    """Adds a module with such variables."""

    def added(name: str, **variables: Any) -> ModuleType:
        module = ModuleType(name)
        vars(module).update(variables)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return added


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is installed, and what is imported is forgotten."""
    installs(monkeypatch)
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith(("lab_", "lab-", "_adjointlab_file_")):
            del sys.modules[name]


def installs(monkeypatch: pytest.MonkeyPatch, **entries: str) -> None:
    def entry_points(*, group: str) -> list[EntryPoint]:
        assert group == GROUP == "adjointlab.subjects"
        return [EntryPoint(name, value, group) for name, value in entries.items()]

    monkeypatch.setattr(discovery, "entry_points", entry_points)


def refused(*references: str) -> str:
    with pytest.raises(NotFound) as error:
        find(references)
    return str(error.value)


# Entry points


def test_installed_subjects_are_those_of_all_entry_points_operators_first(
    monkeypatch: pytest.MonkeyPatch, add: Add
) -> None:
    one, two, last = (declared(name, "lab_b") for name in ("One", "Two", "Last"))
    first = layer("First", "lab_a")
    add("lab_a", first=first, one=one, number=3)
    add("lab_b", one=one, two=two)
    add("lab_c", last=last)
    installs(monkeypatch, z="lab_a", y="lab_c:last", x="lab_b")
    expected = [
        Found(one, "lab_b:one", True),
        Found(two, "lab_b:two", True),
        Found(last, "lab_c:last", True),
        Found(first, "lab_a:first", True),
    ]
    assert installed() == find([]) == expected
    assert find(["Two"]) == [expected[1]]
    assert find(["lab_b"]) == expected[:2]
    add("lab_d", other=one)
    assert find(["lab_d", "lab_b"]) == expected[:2]
    assert find(["lab_d"]) == [Found(one, "lab_d:other", False)]
    assert refused("lab_b", "lab_x") == f"there is no module or installed subject lab_x; {FORMS}"
    assert refused("First2") == "there is no module or installed subject First2; did you mean First?"


def test_without_installed_subjects_a_name_is_asked_for(monkeypatch: pytest.MonkeyPatch, add: Add) -> None:
    add("lab_a")
    for entries in ({}, {"a": "lab_a"}):
        installs(monkeypatch, **entries)
        assert refused() == (
            "no subjects are installed (no entry points in the group adjointlab.subjects); name one: "
            "adjointlab check package.module:name, or path/to/file.py:name"
        )


def test_an_entry_point_that_is_no_module_and_no_subject_is_named(
    monkeypatch: pytest.MonkeyPatch, add: Add
) -> None:
    add("lab_a", number=3)
    installs(monkeypatch, it="lab_a:number")
    assert refused() == "the entry point it = lab_a:number is an int, not a module with subjects or a subject"
    installs(monkeypatch, it="lab_nowhere")
    assert refused() == (
        "the entry point it = lab_nowhere of ? cannot be loaded: "
        "ModuleNotFoundError: No module named 'lab_nowhere'"
    )


def test_why_a_module_has_few_subjects_is_told_once_of_each_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, add: Add
) -> None:
    one, two = declared("One", "lab_a"), declared("Two", "lab_b")
    add("lab_a", one=one, UNAVAILABLE="no CuPy here", more=[two])
    add("lab_b", two=two, UNAVAILABLE="no torch here")
    installs(monkeypatch, a="lab_a", b="lab_b")
    nameless = "lab_a: 1 subject (Two) in `more`: not checked; bind each to a name of its own in the module"
    assert find_and_note(["lab_a", "lab_a:one", "lab_a"]) == (
        [Found(one, "lab_a:one", True)],
        [nameless, "no CuPy here"],
    )
    assert find_and_note([])[1] == [nameless, "no CuPy here", "no torch here"]
    assert find_and_note(["lab_a:one", "Two"])[1] == []
    assert refused("lab_a:three") == "lab_a has no three; no CuPy here"
    assert refused("Thirteen") == (
        f"there is no module or installed subject Thirteen; no CuPy here; no torch here; {FORMS}"
    )


def test_one_subject_is_asked_for_and_several_are_told(add: Add) -> None:
    one, two = declared("One", "lab_a"), declared("Two", "lab_a")
    add("lab_a", one=one, two=two)
    assert find_subject("lab_a:two") is two
    with pytest.raises(NotFound) as error:
        find_subject("lab_a")
    assert str(error.value) == "lab_a names 2 subjects: lab_a:one, lab_a:two"


def test_a_subject_at_hand_has_the_name_of_an_entry_point_of_its_package(
    monkeypatch: pytest.MonkeyPatch, add: Add
) -> None:
    inner, collected, top = (
        declared(f"S{n}", m) for n, m in enumerate(("lab_p.inner", "lab_p.own", "lab_t"))
    )
    add("lab_p")
    add("lab_p.inner", inner=inner)
    add("lab_p.own", collected=collected)
    add("lab_p.all", collected=collected)
    add("lab_t", top=top)
    # Those of other packages are not even imported.
    installs(monkeypatch, a="lab_missing", b="lab_other.missing", y="lab_q.missing", c="lab_p.all", d="lab_t")
    assert found_as(collected) == Found(collected, "lab_p.all:collected", True)
    assert found_as(inner) == Found(inner, "lab_p.inner:inner", False)
    assert found_as(top) == Found(top, "lab_t:top", True)


def test_a_subject_of_a_file_has_its_path_from_here_and_one_without_a_name_the_file_of_its_strategy(
    monkeypatch: pytest.MonkeyPatch, add: Add, tmp_path: Path
) -> None:
    subject = declared("S", "lab_f")
    add("lab_f", subject=subject, __file__=str(tmp_path / "inner" / "f.py"))
    assert found_as(subject).reference == f"{tmp_path / 'inner' / 'f.py'}:subject"
    monkeypatch.chdir(tmp_path)
    assert found_as(subject).reference == f"{Path('inner', 'f.py')}:subject"
    nameless = declared("S", "lab_f")
    monkeypatch.chdir(Path(__file__).parent)
    assert found_as(nameless) == Found(nameless, f"{Path(__file__).name}:cases", False)


# Names in a module


def of_class(**variables: Any) -> type:
    return type("Holder", (), variables)


def copy(comm: Any, x: Any) -> Any: ...
def copied(comm: Any, y: Any) -> Any: ...


class Unused(RingShift):
    """An operator that no subject checks."""


def test_names_lead_through_classes_and_operators_to_their_subjects(
    monkeypatch: pytest.MonkeyPatch, add: Add
) -> None:
    one, two, other = declared("One", "lab_a"), declared("Two", "lab_a"), declared("W", "lab_b", WrongShift)
    add("lab_a", one=one, two=two, Holder=of_class(inner=of_class(one=one)), Ring=RingShift, Wrong=WrongShift)
    add("lab_b", other=other)
    installs(monkeypatch, b="lab_b")
    assert find(["lab_a:Holder.inner.one"]) == [Found(one, "lab_a:Holder.inner.one", False)]
    assert find(["lab_a:Ring"]) == [Found(one, "lab_a:one", False), Found(two, "lab_a:two", False)]
    assert find(["lab_a:Wrong"]) == [Found(other, "lab_a:cases", False)]


def test_what_leads_to_no_subject_is_told_with_those_that_there_are(add: Add) -> None:
    one, other = declared("Shift", "lab_a"), declared("Shift", "lab_a")
    pair: Any = al.subject.pair(copy, copied, name="Copy")(lambda draw, ranks: {})
    add("lab_a", first=one, other=other, pair=pair, copy=copy, copied=copied, also=pair, Unused=Unused)
    add("lab_none")
    for name, told in {
        "Shift": "Shift is not a variable; the subject that reports call Shift is lab_a:first or lab_a:other",
        "Shift[other]": "Shift[other] is not a variable; the subject that reports call Shift[other] is lab_a:other",
        "Copy": "Copy is not a variable; the subject that reports call Copy is lab_a:pair or lab_a:also",
        "copy": "copy is a function, not a subject; its subject is lab_a:pair or lab_a:also",
        "copied": "copied is a function, not a subject; its subject is lab_a:pair or lab_a:also",
    }.items():
        assert refused(f"lab_a:{name}") == f"lab_a:{told}"
    known = "lab_a has no {}; its subjects are: first, other, pair, also{}"
    assert refused("lab_a:zzz") == known.format("zzz", "")
    assert refused("lab_a:firts") == known.format("firts", "; did you mean first?")
    assert refused("lab_a:Shiftt") == known.format("Shiftt", "; did you mean first?")
    assert refused("lab_a:first.other") == known.format("first.other", "; did you mean other?")
    assert refused("lab_none:x") == "lab_none has no x; its subjects are: none"
    assert refused("lab_a:Unused").startswith(
        "lab_a:Unused is an operator, and nothing says how to draw its cases; declare one"
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("number", "int"),
        ("text", "str"),
        ("module", "module"),
        ("Plain", "class"),
        ("function", "function"),
        ("instance", "Plain"),
    ],
)
def test_the_kind_of_what_is_no_subject_is_told(add: Add, name: str, kind: str) -> None:
    class Plain: ...

    add("lab_a", number=3, text="x", module=re, Plain=Plain, function=copy, instance=Plain())
    assert refused(f"lab_a:{name}").startswith(f"lab_a:{name} is a {kind}, not a subject; declare one")


def test_an_object_with_an_adjoint_is_an_operator_and_one_without_is_none(add: Add) -> None:
    class Pair:
        def adjoint(self, y: Any) -> Any: ...

    class Own(al.LinearOperator): ...

    add("lab_a", Pair=Pair, Own=Own)
    for name in ("Pair", "Own"):
        assert refused(f"lab_a:{name}").startswith(f"lab_a:{name} is an operator, and nothing says")


@pytest.mark.parametrize(
    ("holds", "is_told"),
    [
        (lambda subject: [subject], True),
        (lambda subject: (subject,), True),
        (lambda subject: {subject}, True),
        (lambda subject: frozenset([subject]), True),
        (lambda subject: {"key": subject}, True),
        (lambda subject: [[[subject]]], True),
        (lambda subject: [[[[subject]]]], False),
        (lambda subject: SimpleNamespace(subject=subject), False),
    ],
)
def test_subjects_in_three_containers_are_told_and_not_those_deeper(
    add: Add, holds: Any, is_told: bool
) -> None:
    inside, named = declared("In", "elsewhere"), declared("One", "lab_a")
    add("lab_a", named=named, held=holds(inside))
    notes = ["lab_a: 1 subject (In) in `held`: not checked; bind each to a name of its own in the module"]
    assert find_and_note(["lab_a"])[1] == (notes if is_told else [])


def test_subjects_without_a_name_are_told_once_and_not_those_of_other_modules(add: Add) -> None:
    one, two, three = (declared(name, "lab_a") for name in ("One", "Two", "Two"))
    own, other = of_class(two=two), of_class(three=three)
    own.__module__, other.__module__ = "lab_a", "lab_b"
    add("lab_a", one=one, first=[one, two, three, two], again=[two], Own=own, Other=other)
    told = "lab_a: 2 subjects (Two) in `first`: not checked; bind each to a name of its own in the module"
    assert find_and_note(["lab_a"])[1] == [told]
    add("lab_a", one=one, Own=own, Other=other)
    assert find_and_note(["lab_a"])[1] == [
        "lab_a: 1 subject (Two) in `Own`: not checked; bind each to a name of its own in the module"
    ]
    add("lab_a", held=[one])
    assert refused("lab_a") == (
        "lab_a has no subjects; "
        "lab_a: 1 subject (One) in `held`: not checked; bind each to a name of its own in the module"
    )


def test_subjects_of_strategies_of_other_modules_are_not_told(tmp_path: Path) -> None:
    for name in ("lab_b", "lab_y"):
        (tmp_path / f"{name}.py").write_text("def cases(draw, ranks):\n    return {}\n")
    file = tmp_path / "lab_m.py"
    dropped = "import lab_b, lab_y\nfor other in (lab_b, lab_y):\n    al.subject(RingShift)(other.cases)\n"
    file.write_text(SUBJECT.format(name="Shift") + dropped)
    assert find_and_note([str(file)])[1] == []


# Modules and files

SUBJECT = """
import adjointlab as al
from tests.samples import RingShift

@al.subject.operator(RingShift, name="{name}")
def shifts(draw, ranks):
    return {{}}
"""


def written(path: Path, name: str = "Shift", before: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(before + SUBJECT.format(name=name))
    return path


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("not a name", f"not a name is not the name of a subject; {FORMS}"),
        ("lab_a.2b:x", f"lab_a.2b:x is not the name of a subject; {FORMS}"),
        ("lab_a::x::y", f"lab_a::x::y is not the name of a subject; {FORMS}"),
        ("lab_a:2x", f"lab_a:2x is not the name of a subject; {FORMS}"),
        ("lab_a:x[", f"lab_a:x[ is not the name of a subject; {FORMS}"),
        ("lab_a:", f"lab_a: is not the name of a subject; {FORMS}"),
        ("lab_missing:x", f"there is no module or installed subject lab_missing; {FORMS}"),
        ("no/file.py:x", f"no/file.py:x: there is no Python file of that name; {FORMS}"),
        ("file.py", f"file.py: there is no Python file of that name; {FORMS}"),
        ("a/file.txt", f"a/file.txt: there is no Python file of that name; {FORMS}"),
        ("a/file.md", f"a/file.md: there is no Python file of that name; {FORMS}"),
        ("a/folder.py", f"a/folder.py: it is a folder; give a Python file; {FORMS}"),
    ],
)
def test_a_reference_that_is_no_name_and_no_file_is_told_of_the_forms(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reference: str, told: str
) -> None:
    (tmp_path / "a" / "folder.py").mkdir(parents=True)
    for name in ("file.txt", "file.md"):
        (tmp_path / "a" / name).write_text("")
    monkeypatch.chdir(tmp_path)
    assert refused(reference) == told


def test_a_colon_that_no_name_follows_belongs_to_the_path(tmp_path: Path) -> None:
    file = written(tmp_path / "at:1.5" / "lab_colon.py")
    assert [entry.reference for entry in find([str(file)])] == [f"{file}:shifts"]
    assert [entry.reference for entry in find([f"{file}:shifts"])] == [f"{file}:shifts"]


def test_modules_of_the_working_directory_and_siblings_of_a_file_are_importable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    written(here / "lab_here.py")
    written(tmp_path / "there" / "lab_there.py", before="import lab_sibling\n")
    (tmp_path / "there" / "lab_sibling.py").write_text("")
    monkeypatch.chdir(here)
    before = list(sys.path)
    assert [entry.reference for entry in find(["lab_here"])] == ["lab_here:shifts"]
    find(["lab_here"])
    there = tmp_path / "there"
    assert [entry.reference for entry in find([f"{there}/lab_there.py"])] == [f"{there}/lab_there.py:shifts"]
    assert sys.path == [str(there), str(here), *before]


def test_a_file_is_run_once_and_one_whose_name_is_taken_or_none_gets_its_own(tmp_path: Path) -> None:
    file = written(tmp_path / "lab_once.py")
    for package in ("lab_dotted", "lab.v3"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    assert find_subject(f"{file}:shifts") is find_subject(f"{file}:shifts")
    assert find_subject(f"{file}:shifts").draws.__module__ == "lab_once"
    names = {
        find_subject(f"{written(tmp_path / name)}:shifts").draws.__module__
        for name in (
            "lab:coloned.py",
            "lab.v2.py",
            "lab_dotted/part.v2.py",
            "lab.v3/part.py",
            "other/lab_once.py",
            "a/lab_once.py",
        )
    }
    assert len(names) == 6
    assert all(re.fullmatch(r"_adjointlab_file_[0-9a-f]{12}", name) for name in names)
    assert names <= sys.modules.keys()


def test_a_file_with_a_dash_or_a_blank_has_the_name_that_pytest_gives_it(tmp_path: Path) -> None:
    """So a failure that one of them has stored is replayed by the other."""
    (tmp_path / "lab_dashed").mkdir()
    (tmp_path / "lab_dashed" / "__init__.py").write_text("number = 3")
    files = {
        written(tmp_path / "lab-dashed of mine.py"): "lab-dashed of mine",
        written(tmp_path / "lab_dashed" / "2-part.py", before="from . import number\n"): "lab_dashed.2-part",
    }
    for file, name in files.items():
        found = find_subject(f"{file}:shifts")
        assert found.location == f"{name}:shifts"
        assert import_module(name).shifts is found


def test_a_file_with_a_name_of_its_own_has_the_same_one_in_another_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As where a failure that a job of CI has stored is replayed on a laptop."""
    found = []
    for checkout in ("one", "two"):
        written(tmp_path / checkout / "lab.v2.py")
        monkeypatch.chdir(tmp_path / checkout)
        found.append(find_subject("lab.v2.py:shifts"))
        monkeypatch.delitem(sys.modules, found[-1].draws.__module__)
    assert found[0].location == found[1].location
    # Both in one process do not take each other's name.
    again = [find_subject(f"{tmp_path / checkout / 'lab.v2.py'}:shifts") for checkout in ("two", "one")]
    assert again[0].location == found[1].location != again[1].location


def test_a_subject_that_no_variable_refers_to_is_named_by_its_tests(tmp_path: Path) -> None:
    """As where a function declares the subjects of several classes of tests."""
    file = tmp_path / "lab_inline.py"
    inline = """
del shifts

def declared(name):
    return al.subject.operator(RingShift, name=name)(lambda draw, ranks: {})

class TestGroup:
    TestOne = al.coherence_tests(declared("One"))
class TestTwo(al.coherence_tests(declared("Two"))):
    pass
"""
    file.write_text(SUBJECT.format(name="Shift") + inline)
    for tests, name in (("TestGroup.TestOne", "One"), ("TestTwo", "Two")):
        subject = find_subject(f"{file}:{tests}")
        assert subject.name == name
        assert found_as(subject, (file, tests)) == Found(subject, f"{file}:{tests}", False)
    bound = find_subject(f"{written(tmp_path / 'lab_bound.py')}:shifts")
    assert found_as(bound, (file, "TestBound")) == found_as(bound)


def test_a_file_of_a_package_whose_name_another_one_has_leaves_that_as_it_is(tmp_path: Path) -> None:
    here, there = (tmp_path / each / "lab_package" for each in ("here", "there"))
    files = [written(each / "part.py") for each in (here, there)]
    for each in (here, there):
        (each / "__init__.py").touch()
    first = find_subject(f"{files[0]}:shifts")
    module = sys.modules["lab_package.part"]
    # The package is known from the other place, and its part is not.
    del sys.modules["lab_package.part"]
    assert find_subject(f"{files[1]}:shifts").draws.__module__.startswith("_adjointlab_file_")
    found = sys.modules["lab_package.part"]
    assert found.__file__ == module.__file__
    assert first.draws.__module__ == "lab_package.part"


def test_a_file_of_a_package_is_the_module_of_that_package(tmp_path: Path) -> None:
    inner = tmp_path / "lab_outer" / "inner"
    file = written(inner / "part.py", before="from . import sibling\nfrom .. import above\n")
    for beside in (inner / "__init__.py", inner.parent / "__init__.py", inner / "sibling.py"):
        beside.write_text("")
    (inner.parent / "above.py").write_text("")
    assert find_subject(f"{file}:shifts").draws.__module__ == "lab_outer.inner.part"
    # Another package of the name was imported before: the file is a module of its own.
    other = tmp_path / "second" / "lab_outer" / "inner"
    written(other / "part.py", name="Other")
    written(other / "more.py", name="More")
    for beside in (other / "__init__.py", other.parent / "__init__.py"):
        beside.write_text("")
    (inner / "more.py").write_text("")
    for name, expected in (("part", "Other"), ("more", "More")):
        subject = find_subject(f"{other / name}.py:shifts")
        assert subject.name == expected


# Imports that fail


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("\n\nraise SystemExit(3)", "SystemExit: 3 (lab_fails.py:3)"),
        ("import pytest\npytest.skip('no', allow_module_level=True)", "Skipped: no"),
        ("def broken(:", "SyntaxError: invalid syntax (lab_fails.py:1)"),
        ("import cupy_missing", "ModuleNotFoundError: No module named 'cupy_missing' (lab_fails.py:1)"),
    ],
)
def test_what_user_code_raises_when_it_is_imported_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, why: str
) -> None:
    (tmp_path / "lab_fails.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    for reference, name in (("lab_fails", "lab_fails"), ("lab_fails.py", "lab_fails.py")):
        assert refused(reference).startswith(f"{name} cannot be imported: {why}")
        assert "lab_fails" not in sys.modules


@pytest.mark.parametrize("error", [KeyboardInterrupt, Overdue, NotFound])
def test_what_ends_a_run_is_no_failure_of_an_import(error: type[BaseException]) -> None:
    with pytest.raises(error), user_modules._importing("a problem"):
        raise error("text")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ModuleNotFoundError("no", name="cupy"), "; pip install 'adjointlab[gpu]'"),
        (ModuleNotFoundError("no", name="jax"), "; pip install 'adjointlab[jax]'"),
        (ModuleNotFoundError("no", name="mpi4py"), "; pip install 'adjointlab[mpi]'"),
        (ModuleNotFoundError("no", name="spmd_types"), "; pip install 'adjointlab[spmd]'"),
        (ModuleNotFoundError("no", name="torch"), "; pip install 'adjointlab[torch]'"),
        (ModuleNotFoundError("no", name="else"), ""),
        (ModuleNotFoundError("no"), ""),
        (ImportError("no", name="torch"), ""),
        (ValueError("no"), ""),
    ],
)
def test_a_missing_library_of_an_extra_is_told_with_the_extra(error: BaseException, told: str) -> None:
    with pytest.raises(NotFound) as refusal, user_modules._importing("a problem"):
        raise error
    text = str(refusal.value)
    assert text.startswith(f"a problem: {type(error).__name__}: no (")
    assert text.endswith(f"){told}")
    assert refusal.value.__cause__ is error


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("src/lab_ns/part.py", "; src has it: install the project, or set PYTHONPATH=src"),
        ("src/lab_ns.py", "; src has it: install the project, or set PYTHONPATH=src"),
        ("lab_ns/__init__.py", "; the current folder has it: install the project, or set PYTHONPATH=."),
        ("other/lab_ns.py", ""),
    ],
)
def test_a_module_of_the_project_that_is_not_on_the_path_is_told_with_its_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str, told: str
) -> None:
    """As in a project whose folder `src` pytest alone puts on the path."""
    for name, text in ((file, ""), ("tests/lab_test.py", "import lab_ns")):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert refused("tests/lab_test.py") == (
        f"tests/lab_test.py cannot be imported: ModuleNotFoundError: No module named 'lab_ns' (tests/lab_test.py:1){told}"
    )
    with pytest.raises(NotFound, match=r"no \(.*\)$"), user_modules._importing("a problem"):
        raise ModuleNotFoundError("no", name="lab_ns.part")  # of a package that is on the path


@pytest.mark.parametrize("has_init", [True, False])
def test_a_folder_is_told_to_be_named_by_its_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_init: bool
) -> None:
    written(tmp_path / "lab_tests" / "test_one.py")
    if has_init:
        (tmp_path / "lab_tests" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    told = "lab_tests has no subjects; it is a folder: name the files that have some, such as lab_tests/*.py"
    assert refused("lab_tests") == told
    sys.modules["lab_tests"].Own = type("Own", (), {"__module__": "lab_tests"})  # type: ignore[attr-defined]
    assert refused("lab_tests").startswith("lab_tests has no subjects; declare one")


def test_a_relative_import_in_a_folder_that_is_no_package_is_told_to_need_the_name_of_the_module(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lab_space").mkdir()
    (tmp_path / "lab_space" / "lab_part.py").write_text("from .other import shifts")
    monkeypatch.chdir(tmp_path)
    assert refused("lab_space/lab_part.py").endswith(
        "; name it as a module, package.module:name: in a folder without __init__.py a file is not part of a package"
    )
    written(tmp_path / "lab_space" / "other.py")
    assert find_subject("lab_space.lab_part:shifts").name == "Shift"


def test_a_failure_is_cited_by_the_innermost_line_outside_of_the_lab_or_else_of_the_lab(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def problem(call: Callable[[], object]) -> str:
        try:
            call()
        except Exception as error:
            return user_modules._brief(error)
        raise AssertionError

    monkeypatch.chdir(Path(__file__).parent)

    def refuses() -> object:
        return al.Partition((0,))

    line = refuses.__code__.co_firstlineno + 1
    text = "ValueError: shape: every side of a partition is at least 1, not (0,)"
    assert problem(refuses) == f"{text} ({Path(__file__).name}:{line})"
    lab = str(Path(discovery.__file__).parents[1])
    monkeypatch.setattr(user_modules, "_LAB", "/")
    assert re.fullmatch(re.escape(f"{text} ({lab}/core/partition.py:") + r"\d+\)", problem(refuses))
    assert f" ({lab}/spelling.py:" in problem(lambda: did_you_mean(3, ()))  # type: ignore[arg-type]
    assert user_modules._brief(ValueError("never raised")) == "ValueError: never raised"
    assert user_modules._brief(SyntaxError("by hand")) == "SyntaxError: by hand"


def test_paths_are_told_from_here_if_there_is_a_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def gone() -> Path:
        raise FileNotFoundError

    file = tmp_path / "inner" / "file.py"
    monkeypatch.chdir(tmp_path)
    assert user_modules.shown_path(str(file)) == str(Path("inner", "file.py"))
    assert user_modules.shown_path("file.py") == "file.py"
    assert user_modules.shown_path(__file__) == __file__
    monkeypatch.setattr(Path, "cwd", gone)
    assert user_modules.shown_path(str(file)) == str(file)
