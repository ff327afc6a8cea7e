"""Reproducers come back as the cases they were, are refused when they are not what they should be, and stand alone."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import Status, Verdict, incoherent
from adjointlab.engine.case import Case
from adjointlab.engine.case_data import from_data, to_data
from adjointlab.engine.discovery import find_subject, found_as
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget, SearchResult
from adjointlab.replaying import replay_corpus
from adjointlab.store.corpus import stored
from adjointlab.store.reproducer import (
    BadReproducer,
    Written,
    _refuse_unknown,
    _safe,
    read,
    same_subject,
    write,
    write_case,
)
from adjointlab.worlds.simulated.world import SimulatedWorld
from tests.fuzzing import many
from tests.samples import wrong


class Doubles(al.LinearOperator):
    """Its adjoint is twice what it should be."""

    def __init__(self, comm: Any, layout: al.Layout) -> None:
        self.comm = comm
        self.domain = self.codomain = al.Space(layout)

    def forward(self, x: Any) -> Any:
        return np.array(x)

    def adjoint(self, y: Any) -> Any:
        return 2 * y


@al.subject(Doubles)
def doubles(draw: Any, ranks: int) -> dict[str, Any]:
    return {"layout": draw(al.strategies.layouts(ranks, ndim=1))}


@pytest.fixture(scope="module")
def report() -> SearchResult:
    found = investigate(SimulatedWorld(3), doubles, "adjoint", Budget(20, seed=1))
    assert found.case is not None
    return found


@many(20)
@given(st.data())
def test_parameters_survive_the_way_to_data_and_back(data: st.DataObject) -> None:
    layout = data.draw(al.strategies.layouts(4, whole=False))
    tensor = al.Tensor(layout, "float32", name="w")
    value = {
        "layout": layout,
        "space": al.Space(tensor),
        "tuple": (1, 2.5, None, "a", True),
        "list": [1, (2, [3])],
        "c": 1j,
    }
    assert from_data(json.loads(json.dumps(to_data(value)))) == value


@many(40)
@given(
    st.recursive(
        st.floats()
        | st.complex_numbers()
        | st.text(st.characters(exclude_categories=[]))
        | st.integers()
        | st.sampled_from(
            [float("nan"), -float("nan"), np.float64("inf"), -0.0, complex("nan-infj"), "\ud800"]
        ),
        lambda inner: st.dictionaries(st.text("ab .-\n"), inner) | st.lists(inner).map(tuple),
        max_leaves=5,
    )
)
def test_numbers_and_texts_that_json_lacks_survive_too(value: object) -> None:
    case = Case("Doubles", "adjoint", 1, {"value": value}, InputSetting(), 0)
    again = msgspec.json.decode(msgspec.json.encode(case.plain()), type=Case).restored()
    assert bits(again.parameters["value"]) == bits(value)


def bits(value: Any) -> Any:
    """Equal for values that are the same to the last bit, the sign of a NaN included."""
    if isinstance(value, dict):
        return {key: bits(entry) for key, entry in value.items()}
    if isinstance(value, tuple):
        return [bits(entry) for entry in value]
    if isinstance(value, float | complex):
        parts = (value.real, value.imag) if isinstance(value, complex) else (value,)
        return [(repr(float(part)), math.copysign(1, part)) for part in parts]
    return value


@pytest.mark.parametrize("key", ["$type", "\ud800", 3])
def test_a_key_that_cannot_be_stored_is_refused(key: Any) -> None:
    with pytest.raises(TypeError, match="cannot be stored"):
        to_data({key: 1})


@pytest.mark.parametrize("check", ["/../../../X", "..", "a/b", "*", "\n", "x" * 300])
def test_a_stored_case_names_no_file_outside_its_folder(tmp_path: Path, check: str) -> None:
    folder = tmp_path / "a" / "b" / "c"
    case = Case(f"{check}/subject", check, 1, {}, InputSetting(), 0)
    path = write_case(case, "x:y", "simulated", Verdict(Status.UNJUDGED), folder)
    assert [entry for entry in tmp_path.rglob("*") if entry.is_file()] == [path]
    assert path.parent == folder


def test_text_that_no_file_can_hold_is_stored_with_escapes(tmp_path: Path) -> None:
    case = Case("Doubles", "adjoint", 1, {}, InputSetting(), 0)
    verdict = Verdict(Status.UNJUDGED, "raised \ud800", "raised", (("\ud800", "\x00\udfff"),))
    entry = read(write_case(case, "x:y", "simulated", verdict, tmp_path))
    assert (entry.headline, entry.lines) == ("raised \\ud800", (("\\ud800", "\x00\\udfff"),))


def test_what_is_no_data_is_refused() -> None:
    with pytest.raises(TypeError, match="not valid data for a case"):
        to_data({"array": np.zeros(2)})


def test_a_case_from_another_process_has_the_same_digest(report: SearchResult) -> None:
    assert report.case is not None
    # By the digest the supervisor tells the next job which case has ended the last one.
    sent = msgspec.structs.replace(report.case, values=report.case.values.encode().decode())
    assert sent.digest == report.case.digest


def test_a_reproducer_is_text_of_two_blanks_a_level_that_names_its_format(
    report: SearchResult, tmp_path: Path
) -> None:
    text = write(report, wrong, tmp_path).json.read_text()
    assert text.startswith('{\n  "schema": 1,\n  "location": ')
    assert text.endswith("\n}\n")


def test_a_stored_failure_reads_back_as_its_case(report: SearchResult, tmp_path: Path) -> None:
    written = write(report, doubles, tmp_path)
    entry = read(written.json)
    assert entry.case == report.case
    assert (entry.subject, entry.check, entry.headline) == ("Doubles", "adjoint", report.verdict.headline)
    assert stored(tmp_path, doubles, "adjoint") == [(written.json, report.case)]
    assert stored(tmp_path, doubles, "matrix") == []


@pytest.mark.parametrize(
    ("subject", "check"),
    [("Aaa", "matrix"), ("Zzz", "matrix"), ("Doubles", "adjoint"), ("Doubles", "sequential")],
)
def test_a_file_that_was_given_another_name_is_still_what_it_says_inside(
    report: SearchResult, tmp_path: Path, subject: str, check: str
) -> None:
    assert report.case is not None
    other = msgspec.structs.replace(report.case, subject=subject, check=check)
    path = write_case(other, doubles.location, "simulated", report.verdict, tmp_path)
    path.rename(tmp_path / "Doubles-matrix-1234.json")
    assert read(tmp_path / "Doubles-matrix-1234.json").check == check
    assert stored(tmp_path, doubles, "matrix") == []


def test_a_failure_of_another_subject_of_that_name_is_not_this_ones(
    report: SearchResult, tmp_path: Path
) -> None:
    assert report.case is not None
    path = write_case(report.case, "elsewhere:others", "simulated", report.verdict, tmp_path)
    assert stored(tmp_path, doubles, "adjoint") == []
    own = write_case(report.case, doubles.location, "simulated", report.verdict, tmp_path)
    assert own != path
    assert stored(tmp_path, doubles, "adjoint") == [(own, report.case)]
    assert read(path).location == "elsewhere:others"


def test_a_failure_of_a_file_of_the_same_name_in_another_folder_is_not_this_ones(
    report: SearchResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert report.case is not None
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    text = "import adjointlab as al\nfrom tests.samples import RingShift, equal_blocks\n"
    subjects = []
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same_name.py").write_text(
            f"{text}doubles = al.subject.operator(RingShift, name='Doubles')(equal_blocks)\n"
        )
        subjects.append(find_subject(f"{folder}/same_name.py:doubles"))
        write(report, subjects[-1], tmp_path)
        # The next file gets this name too, as in a process of its own.
        monkeypatch.setitem(sys.modules, folder, sys.modules.pop("same_name"))
    failures = {read(path).file: path for path in tmp_path.glob("*.json")}
    assert failures.keys() == {"one/same_name.py", "other/same_name.py"}
    other = subjects[1]
    monkeypatch.setitem(sys.modules, "same_name", sys.modules["other"])
    assert stored(tmp_path, other, "adjoint") == [(failures["other/same_name.py"], report.case)]
    (tmp_path / "one" / "same_name.py").unlink()
    assert len(stored(tmp_path, other, "adjoint")) == 2, "a file may have been moved"


def test_a_stored_failure_is_replayed_in_a_world_of_just_its_ranks(tmp_path: Path) -> None:
    failing = Case("WrongShift", "adjoint", 2, {"layout": al.Layout((4,), (2,))}, InputSetting(), 0)
    write_case(failing, wrong.location, "simulated", incoherent("wrong"), tmp_path)
    for ranks, is_replayed in ((1, False), (2, True)):
        found = replay_corpus(SimulatedWorld(ranks), found_as(wrong), "adjoint", tmp_path)
        assert (found is not None) == is_replayed


def test_writing_again_changes_nothing_and_other_files_are_left_alone(
    report: SearchResult, tmp_path: Path
) -> None:
    first = write(report, doubles, tmp_path)
    before = first.json.read_bytes()
    assert write(report, doubles, tmp_path).json == first.json
    assert first.json.read_bytes() == before
    first.json.write_text("something that the user keeps here")
    second = write(report, doubles, tmp_path)
    assert second.json != first.json
    assert first.json.read_text() == "something that the user keeps here"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: "[]",
        lambda content: content[:-20],
        lambda content: content.replace('"schema": 1', '"schema": 99'),
        lambda content: content.replace('"schema": 1,', ""),
        lambda content: content.replace('"ranks": 1', '"ranks": "one"'),
        lambda content: content.replace('"adjoint"', '"__import__"'),
        lambda content: content.replace('"layout"', '"os.system"'),
        lambda content: content.replace('"schema"', '"extra": 1, "schema"'),
        lambda content: "[" * 100_000,
    ],
)
def test_a_bad_file_is_refused_with_a_reason(report: SearchResult, tmp_path: Path, spoil: Any) -> None:
    path = write(report, doubles, tmp_path).json
    path.write_text(spoil(path.read_text()))
    with pytest.raises(BadReproducer):
        read(path)


def test_a_file_of_another_format_is_said_to_be_of_another_version(
    report: SearchResult, tmp_path: Path
) -> None:
    path = write(report, doubles, tmp_path).json
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 2'))
    with pytest.raises(
        BadReproducer, match="its `schema` is 2, and this version of adjointlab reads 1: another version"
    ):
        read(path)


OLD = """{"schema": 1, "location": "samples:doubles", "world": "mpi", "kind": "deadlock", "headline": "deadlock",
"lines": [["rank 0", "waits"]], "case": {"subject": "Doubles", "check": "adjoint", "ranks": 2, "parameters": {"layout":
{"$type": "layout", "shape": [3], "partition": {"$type": "partition", "shape": [2], "ranks": [0, 1]},
"windows": [[[0, 2], [2, 3]]], "axes": [0]}}, "setting": {"seed": 5, "library": "numpy", "primal_order": "row-major",
"dual_order": "reversed"}, "schedule": 7}}"""


def test_a_file_of_an_earlier_version_reads_and_writes_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(OLD)
    entry = read(path)

    assert (entry.subject, entry.world, entry.lines) == ("Doubles", "mpi", (("rank 0", "waits"),))
    assert entry.case.parameters == {"layout": al.Layout((3,), al.Partition((2,)))}
    verdict = Verdict(Status.UNJUDGED, entry.headline, entry.kind, entry.lines)
    again = write_case(entry.case, entry.location, entry.world, verdict, tmp_path)
    assert json.loads(again.read_text()) == json.loads(OLD)
    # Names are made from cases, so a corpus would grow if equal cases had other names than before.
    assert again.name == "Doubles-adjoint-0be3.json"


@pytest.mark.parametrize("field", ["file", "case"])
def test_a_field_that_this_version_does_not_know_is_refused(tmp_path: Path, field: str) -> None:
    content = json.loads(OLD)
    part = content["case"] if field == "case" else content
    part["more"] = 1
    (tmp_path / "new.json").write_text(json.dumps(content))
    with pytest.raises(BadReproducer, match="unknown field `more`"):
        read(tmp_path / "new.json")


@pytest.mark.parametrize(
    "place", [("setting",), ("parameters", "layout"), ("parameters", "layout", "partition")]
)
def test_unknown_fields_inside_a_case_are_refused_too(tmp_path: Path, place: tuple[str, ...]) -> None:
    content = json.loads(OLD)
    part = content["case"]
    for name in place:
        part = part[name]
    part["more"] = 1
    (tmp_path / "new.json").write_text(json.dumps(content))
    with pytest.raises(BadReproducer, match="unknown field `more`"):
        read(tmp_path / "new.json")


def test_a_missing_file_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(BadReproducer, match=r"nothing\.json"):
        read(tmp_path / "nothing.json")


def test_the_script_stands_alone_and_shows_the_failure(report: SearchResult, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    written = write(report, doubles, tmp_path)
    assert report.case is not None
    assert report.case.ranks == 1
    result = subprocess.run(
        [sys.executable, str(written.script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert "<Fx, y>" in result.stdout, result.stderr
    assert result.returncode == 1


@pytest.mark.parametrize(
    ("given", "known", "field"),
    [
        ({"a": 1}, {"a": 1}, None),
        ({"a": 1}, {}, "a"),
        ({"a": 0, "b": "", "c": []}, {}, None),  # defaults are left out
        ({"a": {"b": 1}}, {"a": {}}, "b"),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, None),
        ([{"a": 1}, {"b": 1}], [{"a": 1}, {}], "b"),
        ({"a": [[{"b": 1}]]}, {"a": [[{}]]}, "b"),
        ([{"a": 1}], {"a": 1}, None),
        ({"a": 1}, [1], None),
        ([1, {"a": 1}], [1], None),
    ],
)
def test_fields_that_a_case_does_not_have_are_found_at_any_depth(
    given: Any, known: Any, field: str | None
) -> None:
    if field is None:
        _refuse_unknown(given, known)
    else:
        with pytest.raises(ValueError, match=f"^unknown field `{field}`$"):
            _refuse_unknown(given, known)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("rings:shift", "rings:shift", True),
        ("tests.rings:shift", "rings:shift", True),
        ("rings:shift", "tests.rings:shift", True),
        ("rings:shift", "strings:shift", False),
        ("strings:shift", "rings:shift", False),
        ("rings:shift", "rings:shift2", False),
    ],
)
def test_locations_mean_one_subject_if_one_is_the_end_of_the_other(one: str, other: str, same: bool) -> None:
    assert same_subject(one, other) is same


@pytest.mark.parametrize(
    ("name", "safe"),
    [("Ring_1.2", "Ring_1.2"), ("a/b*?[c]", "a_b___c_"), ("é ü", "é_ü"), ("x" * 70, "x" * 60)],
)
def test_a_part_of_a_file_name_has_no_folders_and_no_patterns(name: str, safe: str) -> None:
    assert _safe(name) == safe


def test_a_name_of_long_characters_fits_into_a_file_name(report: SearchResult, tmp_path: Path) -> None:
    assert report.case is not None
    case = msgspec.structs.replace(report.case, subject="\U00020000" * 80)
    assert write_case(case, "m:n", "simulated", report.verdict, tmp_path).exists()


def test_a_script_that_its_user_has_changed_is_kept_and_any_other_is_written_anew(
    report: SearchResult, tmp_path: Path
) -> None:
    script = write(report, doubles, tmp_path).script
    assert script is not None
    first = script.read_bytes()
    changed = first.replace(b"import sys", b"import sys  # looked at here", 1)
    script.write_bytes(changed)
    assert write(report, doubles, tmp_path).script == script
    assert script.read_bytes() == changed

    script.unlink()
    write(report, doubles, tmp_path)
    assert script.read_bytes() == first
    write(replace(report, verdict=replace(report.verdict, headline="another headline")), doubles, tmp_path)
    assert script.read_bytes() != first


@pytest.mark.parametrize("entry", ["/" + "x" * 300, "\0"])
def test_a_folder_that_cannot_be_looked_at_loses_no_failure(
    report: SearchResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, entry])
    assert write(report, doubles, tmp_path).script is not None


def test_a_failure_whose_script_cannot_be_written_is_stored_without_it(
    report: SearchResult, tmp_path: Path
) -> None:
    written = write(report, doubles, tmp_path)
    assert written.script is not None
    written.script.unlink()
    written.script.mkdir()
    written.json.unlink()
    assert write(report, doubles, tmp_path) == Written(written.json, None)
    assert written.json.is_file()


def test_a_failure_whose_script_cannot_be_made_is_stored_without_it(
    report: SearchResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> str:
        raise PermissionError("no")

    monkeypatch.setattr("adjointlab.store.reproducer.script", failing)
    written = write(report, doubles, tmp_path)
    assert written.script is None
    assert read(written.json).case == report.case


def test_a_stored_failure_that_cannot_be_judged_is_named_and_ends_no_command(
    report: SearchResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(*_: object) -> None:
        raise ValueError("a fault of the lab")

    path = write(report, doubles, tmp_path).json
    monkeypatch.setattr("adjointlab.replaying._replayed", raising)
    result = replay_corpus(SimulatedWorld(3), found_as(doubles), "adjoint", tmp_path)
    assert result is not None
    assert result.status is Status.UNJUDGED
    assert (
        result.result.verdict.headline == f"raised ValueError: a fault of the lab, while {path} was replayed"
    )
