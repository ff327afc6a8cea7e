"""A case as data: what each type of parameter is written as, what is refused, and what the draws of a case are made from."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.checks.context import INPUT_VALUES, InputSetting
from adjointlab.core.space import LocalType
from adjointlab.engine import case as module
from adjointlab.engine.case import Case, _memory_orders, cases
from adjointlab.engine.case_data import from_data, to_data
from adjointlab.engine.discovery import found_as
from adjointlab.engine.search_result import Budget
from adjointlab.session import run_check
from adjointlab.worlds.schedule import schedules_from
from adjointlab.worlds.simulated.world import SimulatedWorld
from tests.drawing import first_examples
from tests.samples import RingShift

pytestmark = pytest.mark.mpi_skip

PARTITION = al.Partition((2,), (1, 0))
LAYOUT = al.Layout((4,), PARTITION)
TENSOR = al.Tensor(LAYOUT, "float32", name="w")
PARTITION_DATA = {"$type": "partition", "shape": [2], "ranks": [1, 0]}
LAYOUT_DATA = {
    "$type": "layout",
    "shape": [4],
    "partition": PARTITION_DATA,
    "windows": [[[0, 2], [2, 4]]],
    "axes": [0],
}
TENSOR_DATA = {
    "$type": "tensor",
    "layout": LAYOUT_DATA,
    "dtype": "float32",
    "types": [{"$type": "local type", "value": TENSOR.types[0].value}],
    "name": "w",
}


def number(text: str) -> dict[str, str]:
    return {"$type": "float", "value": text}


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (-2.5, -2.5),
        ("text", "text"),
        ("\ud7ff\ue000é\0", "\ud7ff\ue000é\0"),
        ("\ud800é", {"$type": "text", "escaped": "\\ud800\\xe9"}),
        ("\udfff", {"$type": "text", "escaped": "\\udfff"}),
        (math.inf, number("inf")),
        (-math.inf, number("-inf")),
        (complex(1.5, -math.inf), {"$type": "complex", "real": 1.5, "imag": number("-inf")}),
        (LocalType("partial"), {"$type": "local type", "value": "partial"}),
        ((1, (2,)), [1, [2]]),
        ([1, (2, [])], {"$type": "list", "entries": [1, [2, {"$type": "list", "entries": []}]]}),
        ({"a": {"b": [1]}}, {"a": {"b": {"$type": "list", "entries": [1]}}}),
        (PARTITION, PARTITION_DATA),
        (LAYOUT, LAYOUT_DATA),
        (TENSOR, TENSOR_DATA),
        (al.Space(TENSOR), {"$type": "space", "tensors": [TENSOR_DATA]}),
    ],
)  # fmt: skip
def test_each_type_of_parameter_has_a_form_in_json_and_comes_back_from_it(value: Any, data: Any) -> None:
    assert to_data(value) == data
    assert type(to_data(value)) is type(data)
    again = from_data(data)
    assert (again, type(again)) == (value, type(value))


def test_numbers_that_are_none_keep_their_sign() -> None:
    for text in ("nan", "-nan"):
        value = from_data(number(text))
        assert math.isnan(value)
        assert math.copysign(1, value) == (1 if text == "nan" else -1)
        assert to_data(value) == number(text)


@pytest.mark.parametrize("name", ["Shard", "Replicate", "Partial", "_StridedShard"])
def test_placements_of_dtensors_are_written_with_their_arguments(name: str) -> None:
    pytest.importorskip("torch")
    from torch.distributed.tensor import placement_types

    arguments: dict[str, Any] = {
        "Shard": {"dim": 1},
        "Replicate": {},
        "Partial": {"reduce_op": "max"},
        "_StridedShard": {"dim": 1, "split_factor": 2},
    }[name]
    value = getattr(placement_types, name)(**arguments)
    data = {"$type": "placement", "kind": name, **arguments}
    assert to_data(value) == data
    again = from_data(data)  # type: ignore[arg-type]
    assert (again, type(again)) == (value, type(value))


class Shard:
    """Not torch's."""


class Mode(StrEnum):
    PLAIN = "plain"


class Order(IntEnum):
    FIRST = 1


class Stencil(NamedTuple):
    left: int
    right: int


class Word(str):
    """A text with more to it."""


class Count(int):
    """A number with more to it."""


KEYS = "the key {} cannot be stored; keys are strings without lone surrogates that do not start with $"
TYPES = "use None, bool, int, float, complex, str, lists, dictionaries, the lab's own Partition, Layout, Tensor and Space, and placements of DTensor"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"a": 1, "$b": 2}, KEYS.format("'$b'")),
        ({3: 2}, KEYS.format("3")),
        ({"\udc80": 2}, KEYS.format("'\\udc80'")),
        ({"a": {1, 2}}, f"a set is not valid data for a case; {TYPES}"),
        (Shard(), f"a Shard is not valid data for a case; {TYPES}"),
        ((b"",), f"a bytes is not valid data for a case; {TYPES}"),
        (np.zeros(2), f"an ndarray is not valid data for a case; {TYPES}"),
        (
            [Mode.PLAIN],
            "<Mode.PLAIN: 'plain'> is a member of an enumeration; draw its name, and look it up where the operator is made",
        ),
        (
            Order.FIRST,
            "<Order.FIRST: 1> is a member of an enumeration; draw its name, and look it up where the operator is made",
        ),
        (Stencil(1, 2), "a Stencil has named entries; draw a dictionary"),
        (Word("plain"), "a Word is not a plain string, and replays would get one"),
        (Count(2), "a Count is not a plain number, and replays would get one"),
    ],
)
def test_what_cannot_be_written_is_refused(value: Any, told: str) -> None:
    with pytest.raises(TypeError) as refused:
        to_data(value)
    assert str(refused.value) == told


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"$type": "nothing", "b": 1, "a": 2}, "'nothing' with ['a', 'b'] is not data of a case: 'nothing'"),
        ({"$type": "partition", "shape": [2]}, "'partition' with ['shape'] is not data of a case: 'ranks'"),
        ({"$type": 3}, "3 with [] is not data of a case: '3'"),
        ({"$type": "float", "value": "1"}, "'float' with ['value'] is not data of a case: '1'"),
        ({"$type": "list", "entries": 3}, "'list' with ['entries'] is not data of a case: 'int' object is not iterable"),
        ({"$type": "text", "escaped": 3}, "'text' with ['escaped'] is not data of a case: 'int' object has no attribute 'encode'"),
        ({"$type": "placement", "kind": "sys"}, "'placement' with ['kind'] is not data of a case: 'sys'"),
    ],
)  # fmt: skip
def test_what_no_case_has_written_is_refused(data: Any, told: str) -> None:
    with pytest.raises(ValueError, match="is not data of a case") as refused:
        from_data(data)
    assert str(refused.value) == told
    with pytest.raises(ValueError, match="'text' with"):
        from_data({"$type": "text", "escaped": "é"})


# Cases

CASE = Case("Ring", "adjoint", 2, {"side": [3]}, InputSetting(5, "torch", "offset", "strided"), 7)


def test_a_case_refuses_what_no_run_has() -> None:
    for ranks in (0, -1, 1025):
        with pytest.raises(ValueError, match=rf"^ranks: from 1 to 1024, not {ranks}$"):
            Case("Ring", "adjoint", ranks, {}, InputSetting(), 0)
    assert Case("Ring", "adjoint", 1024, {}, InputSetting(), 0).ranks == 1024
    with pytest.raises(ValueError, match=r"^schedule: at least 0, not -1$"):
        Case("Ring", "adjoint", 1, {}, InputSetting(), -1)
    with pytest.raises(ValueError, match=r"^seed: at least 0, not -1$"):
        InputSetting(-1)
    assert Case("Ring", "adjoint", 1, {}, InputSetting(), 0, values="fractions").ranks == 1
    legal = ", ".join((*INPUT_VALUES, "fractions"))
    with pytest.raises(ValueError, match=rf"^values: 'round' is not one of {legal}$"):
        Case("Ring", "adjoint", 1, {}, InputSetting(), 0, values="round")


def test_a_case_has_a_plain_form_without_defaults_and_a_name_that_is_made_of_it() -> None:
    data = {
        "subject": "Ring",
        "check": "adjoint",
        "ranks": 2,
        "parameters": {"side": {"$type": "list", "entries": [3]}},
        "setting": {"seed": 5, "library": "torch", "primal_order": "offset", "dual_order": "strided"},
        "schedule": 7,
    }
    assert CASE.data() == data
    assert CASE.plain().restored() == CASE
    key = (
        b'{"check":"adjoint","parameters":{"side":{"$type":"list","entries":[3]}},"ranks":2,"schedule":7,'
        b'"setting":{"dual_order":"strided","library":"torch","primal_order":"offset","seed":5},"subject":"Ring"}'
    )
    assert CASE.key() == key
    assert CASE.digest == hashlib.sha256(key).hexdigest()
    elsewhere = Case("Ring", "adjoint", 2, {"side": [3]}, CASE.setting, 7, values="".join(["inte", "gers"]))
    assert elsewhere.data() == data
    full = Case("Ring", "adjoint", 2, {}, CASE.setting, 7, schedules_from(1, 2), "large", 1)
    assert {"values": "large", "same_on": 1}.items() <= full.data().items()
    assert isinstance(full.data()["schedules"], list | tuple)
    moved = CASE.moved_to("cupy")
    assert moved.setting == replace(CASE.setting, library="cupy")
    assert (moved.parameters, moved.schedule) == (CASE.parameters, 7)


def test_a_case_cannot_be_changed_and_has_no_other_fields_in_a_file() -> None:
    with pytest.raises(AttributeError):
        CASE.ranks = 3  # type: ignore[misc]
    assert msgspec.convert(CASE.data(), Case) == CASE.plain()
    with pytest.raises(msgspec.ValidationError, match="unknown field `more`"):
        msgspec.convert(CASE.data() | {"more": 1}, Case)


# Draws


def test_memory_orders_are_paired_the_plain_one_first_and_transposed_ones_twice() -> None:
    row, column, offset = "row-major", "column-major", "offset"
    turned = [(row, column), (column, row), (column, column), (column, offset), (offset, column)]
    others = [
        (row, column),
        (row, offset),
        (column, row),
        (column, column),
        (column, offset),
        (offset, row),
        (offset, column),
        (offset, offset),
    ]
    assert _memory_orders((row, column, offset)) == ((row, row), *turned, *others)
    assert _memory_orders((offset,)) == ((offset, offset),)


ONLY = ("row-major", "column-major")


@pytest.mark.parametrize("check", ["gradients", "training"])
@pytest.mark.parametrize(("least", "most", "counts"), [
    (1, 1, (1,)),
    (1, 6, (1, 2, 2, 3, 3, 4, 4, 5, 6)),
    (2, 2, (2, 2)),
    (4, 5, (4, 4, 5)),
    (5, 5, (5,)),
])  # fmt: skip
@pytest.mark.parametrize("schedules", [1, 2, 3])
def test_a_case_is_drawn_from_the_choices_that_subject_and_check_leave(
    check: str,
    least: int,
    most: int,
    counts: tuple[int, ...],
    schedules: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(module, "choices", lambda entries: asked.append(entries) or st.just(entries[-1]))
    monkeypatch.setattr(module, "integers", lambda *bounds: asked.append(bounds) or st.just(bounds[1]))
    monkeypatch.setattr("adjointlab.core.arrays.installed", {"numpy", "torch", "torch-cuda"}.__contains__)
    subject = al.subject.layer(RingShift, RingShift, orders=ONLY, arrays=("torch", "torch-cuda", "numpy"))(
        lambda draw, ranks: {"on": ranks}
    )
    (case,) = first_examples(cases(subject, check, (least, most), schedules, "cpu"), 1)
    pairs = (
        ("row-major", "row-major"),
        *[("row-major", "column-major"), ("column-major", "row-major"), ("column-major", "column-major")] * 2,
    )
    varied = check in ("gradients", "training")
    # Half of the values are small integers.
    values = [("integers",) * 7 + INPUT_VALUES[1:]] if varied else []
    plan = [counts, ("torch", "numpy"), pairs, (0, 2**31 - 1), (0, 2**16 - 1), *values]
    assert [tuple(each) for each in asked[-len(plan) :]] == plan
    assert case == Case(
        "RingShift",
        check,
        counts[-1],
        {"on": counts[-1]},
        InputSetting(2**31 - 1, "numpy", "column-major", "column-major"),
        2**16 - 1,
        schedules_from(2**16 - 1, schedules) if schedules > 1 else (),
        INPUT_VALUES[-1] if varied else "integers",
    )


def test_scalars_of_numpy_are_written_as_those_of_python() -> None:
    scalars = [np.int64(3), np.bool_(True), np.float32(0.5), np.complex64(1j)]
    written = from_data(to_data(scalars))
    assert written == [3, True, 0.5, 1j]
    assert [type(each) for each in written] == [int, bool, float, complex]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (np.zeros(2), "an ndarray is not valid data"),
        (st.integers(0, 3), "is a `draw(...)` around it missing?"),
    ],
)
def test_a_strategy_that_draws_what_no_file_holds_is_refused_before_any_case_runs(
    value: Any, told: str
) -> None:
    @al.subject.pair(lambda comm, x, wide: x, lambda comm, y, wide: y)
    def drawn(draw: Any, ranks: int) -> dict[str, Any]:
        space = al.Space(al.Layout((4,), (ranks,)))
        return {"domain": space, "codomain": space, "wide": value}

    result = run_check(SimulatedWorld(1), found_as(drawn), "adjoint", Budget(3, seed=1), Path("."))
    assert result.is_misdeclared
    assert "'wide' in the strategy's dictionary" in result.result.verdict.headline
    assert told in result.result.verdict.headline


@pytest.mark.parametrize(
    ("ranks", "seed", "memory", "orders"),
    [
        (2, 239, "numpy", ("row-major", "column-major")),
        (2, 240, "numpy", ("row-major", "column-major on even ranks")),
        (1, 240, "numpy", ("row-major", "column-major")),
        (2, 480, "numpy", ("row-major", "column-major")),
        (2, 240, "torch", ("row-major", "column-major")),
    ],
)
def test_a_bit_of_the_seed_tells_whether_all_ranks_have_a_memory_order(
    ranks: int, seed: int, memory: str, orders: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "choices", lambda entries: st.just(entries[min(1, len(entries) - 1)]))
    monkeypatch.setattr(module, "integers", lambda *bounds: st.just(seed))
    subject = al.subject(RingShift, orders=ONLY, arrays=(memory,))(lambda draw, ranks: {})
    (case,) = first_examples(cases(subject, "adjoint", (ranks, ranks)), 1)
    assert (case.setting.primal_order, case.setting.dual_order) == orders
