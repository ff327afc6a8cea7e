"""Parameters say cuts as layouts, boundaries and shapes; each is cut evenly, or unevenly, and all else stays as it is."""

from __future__ import annotations

from typing import Any

import pytest

import adjointlab as al
from adjointlab.checks.context import InputSetting
from adjointlab.core.layout import balanced_cut
from adjointlab.engine.case import Case
from adjointlab.engine.even_cuts import Cuts, _changed, _ends, _even_side, _Uneven, has_uneven_cuts, with_cuts

pytestmark = pytest.mark.mpi_skip

GRID = al.Partition((3, 1))
ENDS = (0, 1, 1, 2)
LAYOUT = al.Layout.cut((2, 5), GRID, [ENDS, None])
ROWS = _Uneven((2, 5), {0: 6})
COLUMNS = _Uneven((5, 2), {1: 6})


def case_of(parameters: dict[str, Any]) -> Case:
    return Case("s", "adjoint", 3, parameters, InputSetting(), 0)


@pytest.mark.parametrize(
    ("shape", "windows", "is_uneven"),
    [
        ((4, 5), [[(0, 2), (2, 4)], [(0, 5)]], False),
        ((3, 5), [[(0, 2), (2, 3)], [(0, 5)]], True),
        ((4, 5), [[(0, 0), (0, 4)], [(0, 5)]], True),
        ((4, 5), [[(0, 3), (1, 4)], [(1, 9)]], False),  # halos and padding, of one length
        ((4, 5), [[(0, 3), (2, 4)], [(0, 5)]], True),
        ((5, 3), [[(0, 5)], [(0, 2), (2, 3)]], True),
    ],
)
def test_cuts_are_uneven_where_the_parts_of_a_dimension_differ_in_length(
    shape: tuple[int, ...], windows: Any, is_uneven: bool
) -> None:
    layout = al.Layout(shape, tuple(map(len, windows)), windows)
    even = al.Tensor(al.Layout((2,), (2,)), name="even")
    assert has_uneven_cuts([al.Space(even), al.Space(even, al.Tensor(layout))]) is is_uneven


@pytest.mark.parametrize(
    ("side", "parts", "even", "longer"),
    [
        (1, {2}, 4, 6),
        (4, {2}, 4, 6),
        (5, {2}, 6, 8),
        (9, {2}, 10, 12),
        (2, {2, 3}, 6, 12),
        (7, {2, 3}, 12, 18),
        (1, {2, 4}, 8, 12),
    ],
)
def test_the_even_side_is_the_least_that_all_numbers_of_parts_divide(
    side: int, parts: set[int], even: int, longer: int
) -> None:
    assert _even_side(side, parts, longer=False) == even
    assert _even_side(side, parts, longer=True) == longer


@pytest.mark.parametrize(
    ("ends", "even", "moved", "with_empty"),
    [
        ((0, 1, 1, 2), (0, 2, 4, 6), (0, 1, 4, 6), (0, 3, 3, 6)),
        ((0, 0, 0, 2), (0, 2, 4, 6), (0, 1, 4, 6), (0, 0, 0, 6)),
        ((0, 1, 2, 2), (0, 2, 4, 6), (0, 1, 4, 6), (0, 3, 6, 6)),
        ((0, 1, 2), (0, 3, 6), (0, 2, 6), (0, 3, 6)),
        ((0, 2), (0, 6), (0, 6), (0, 6)),
        ((0, 0, 0), (0, 3, 6), (0, 2, 6), (0, 0, 0)),
    ],
)
def test_boundaries_are_those_of_as_many_parts(
    ends: tuple[int, ...], even: tuple[int, ...], moved: tuple[int, ...], with_empty: tuple[int, ...]
) -> None:
    assert [_ends(ends, 6, cuts) for cuts in Cuts] == [even, even, moved, with_empty]


EVEN = (0, 2, 4, 6)
CUT_EVENLY = al.Layout.cut((6, 5), GRID, [EVEN, None])
HALOS = [[(0, 2), (0, 2), (1, 2)], [(0, 5)]]


@pytest.mark.parametrize(
    ("value", "changed"),
    [
        (LAYOUT, CUT_EVENLY),
        (al.Layout((2, 5), GRID, HALOS), al.Layout((6, 5), GRID, HALOS)),
        (al.Layout((2, 4), GRID), al.Layout((2, 4), GRID)),
        (al.Layout((5, 2), (1, 3)), al.Layout((5, 2), (1, 3))),
        (al.Tensor(LAYOUT, "int64", name="x"), al.Tensor(CUT_EVENLY, "int64", name="x")),
        (al.Space(al.Tensor(LAYOUT, "int64")), al.Space(al.Tensor(CUT_EVENLY, "int64"))),
        (GRID, GRID),
        ({"a": {"b": ENDS}, "c": "text"}, {"a": {"b": EVEN}, "c": "text"}),
        ((2, 5), (6, 5)),
        ([2, 5], [6, 5]),
        ([5, 2], [5, 2]),
        (ENDS, EVEN),
        (list(ENDS), list(EVEN)),
        ((0, 1, 2), (0, 3, 6)),
        ((0, 2), (0, 2)),  # two numbers say too little: one may be anything
        ((1, 1, 1, 2), (1, 1, 1, 2)),
        ((-1, 1, 1, 2), (-1, 1, 1, 2)),
        ((0, 1, 1, 3), (0, 1, 1, 3)),
        ((0, 1, 1, 1), (0, 1, 1, 1)),
        ((), ()),
        ((0, 2, 1, 2), (0, 2, 1, 2)),
        ((0, "1", 2), (0, "1", 2)),
        ((0, 0.5, 2), (0, 0.5, 2)),
        # One entry for each dimension: the boundaries along the other one are not of this dimension.
        ([ENDS, (0, 1, 2)], [EVEN, (0, 1, 2)]),
        (((0, 1, 2), None), ((0, 3, 6), None)),
        ([ENDS, ENDS, (0, 1, 2)], [EVEN, EVEN, (0, 3, 6)]),
        ([ENDS], [EVEN]),
        ([(2, 5), LAYOUT], [(6, 5), CUT_EVENLY]),
        (((2, 5), (5, 2)), ((6, 5), (5, 2))),
        (2, 2),
        (None, None),
    ],
)
def test_each_form_of_a_cut_is_cut_evenly(value: Any, changed: Any) -> None:
    result = _changed(value, ROWS, Cuts.EVEN)
    assert result == changed
    assert type(result) is type(changed)


@pytest.mark.parametrize(
    ("value", "changed"),
    [
        (al.Layout.cut((5, 2), (1, 3), [None, ENDS]), al.Layout.cut((5, 6), (1, 3), [None, EVEN])),
        ([(0, 1, 2), ENDS], [(0, 1, 2), EVEN]),
        ([ENDS], [EVEN]),
        ((5, 2), (5, 6)),
    ],
)
def test_the_second_dimension_is_cut_evenly_too(value: Any, changed: Any) -> None:
    assert _changed(value, COLUMNS, Cuts.EVEN) == changed


@pytest.mark.parametrize(
    ("beside", "says_the_cut"),
    [
        (LAYOUT, True),
        (al.Tensor(LAYOUT), True),
        (al.Space(LAYOUT), True),
        (ENDS, True),
        (list(ENDS), True),
        ({"a": 1, "b": ENDS}, True),
        ([1, ENDS], True),
        ({}, False),
        ({"a": 2}, False),
        ((0, 2), False),
        ((0, 1, 3), False),
        ("012", False),
        (GRID, False),
    ],
)
@pytest.mark.parametrize("cuts", Cuts)
def test_a_shape_alone_is_cut_unevenly_by_one_index_more(beside: Any, says_the_cut: bool, cuts: Cuts) -> None:
    is_uneven = cuts in (Cuts.MOVED, Cuts.WITH_EMPTY)
    for shape, uneven, at in ((2, 5), ROWS, 0), ((5, 2), COLUMNS, 1):
        side = _changed({"shape": shape, "beside": beside}, uneven, cuts)["shape"][at]
        assert side == (7 if is_uneven and not says_the_cut else 6)


@pytest.mark.parametrize(("cuts", "side"), [(Cuts.EVEN, 6), (Cuts.LONGER, 12), (Cuts.MOVED, 6)])
def test_a_side_that_tensors_cut_into_two_and_three_parts_fits_both(cuts: Cuts, side: int) -> None:
    halves, thirds = al.Layout((5,), (2,)), al.Layout((5,), (3,))
    case = case_of({"halves": halves, "thirds": thirds, "depth": 3})
    changed = with_cuts(case, [al.Space(halves), al.Space(al.Layout((2,), (2,))), al.Space(thirds)]).get(cuts)
    assert changed is not None
    assert changed.parameters["halves"].shape == changed.parameters["thirds"].shape == (side,)
    assert changed.parameters["depth"] == 3
    for name in ("halves", "thirds"):
        assert has_uneven_cuts([al.Space(changed.parameters[name])]) is (cuts is Cuts.MOVED)


def test_each_tensor_that_is_cut_unevenly_is_cut_evenly_and_no_other() -> None:
    one, other, even = al.Layout((3,), (2,)), al.Layout((2, 5), (1, 2)), al.Layout((4,), (2,))
    spaces = [al.Space(one), al.Space(al.Tensor(other, name="y"), al.Tensor(even, name="z"))]
    case = case_of({"x": one, "y": other, "z": even})
    assert with_cuts(case, spaces).get(Cuts.EVEN) == case_of(
        {"x": even, "y": al.Layout((2, 6), (1, 2)), "z": even}
    )
    assert with_cuts(case_of({"z": even}), spaces).get(Cuts.EVEN) is None
    assert with_cuts(case, [al.Space(even)]).get(Cuts.EVEN) is None


@pytest.mark.parametrize("cuts", Cuts)
def test_two_uneven_dimensions_of_a_tensor_are_both_cut_otherwise(cuts: Cuts) -> None:
    layout = al.Layout((3, 5), (2, 3))
    given: list[dict[str, Any]] = [{"layout": layout}, {"layout": layout, "shape": (3, 5)}]
    for parameters in given:
        changed = with_cuts(case_of(parameters), [al.Space(layout)]).get(cuts)
        assert changed is not None
        found = changed.parameters["layout"]
        sides = (6, 9) if cuts is Cuts.LONGER else (4, 6)
        assert found.shape == changed.parameters.get("shape", sides) == sides
        ends = (
            [(0, 1, 4), (0, 1, 4, 6)]
            if cuts is Cuts.MOVED
            else [balanced_cut(*each) for each in zip(sides, (2, 3), strict=True)]
        )
        assert [found.ends(dim) for dim in (0, 1)] == ends


def test_boundaries_along_two_uneven_dimensions_are_those_of_their_own_dimension() -> None:
    layout = al.Layout((3, 5), (2, 3))
    case = case_of({"cuts": [(0, 2, 3), (0, 2, 4, 5)], "columns": (0, 2, 4, 5), "rows": (0, 2, 3)})
    changed = with_cuts(case, [al.Space(layout)]).get(Cuts.EVEN)
    assert changed == case_of({"cuts": [(0, 2, 4), (0, 2, 4, 6)], "columns": (0, 2, 4, 6), "rows": (0, 2, 4)})
    square = [al.Space(al.Layout((7, 7), (2, 3)))]
    changed = with_cuts(case_of({"cuts": ((0, 4, 7), (0, 3, 5, 7))}), square).get(Cuts.EVEN)
    assert changed == case_of({"cuts": ((0, 4, 8), (0, 3, 6, 9))})


@pytest.mark.parametrize("cuts", [Cuts.EVEN, Cuts.MOVED])
def test_a_shape_alone_with_two_uneven_dimensions_is_cut_otherwise_in_both(cuts: Cuts) -> None:
    changed = with_cuts(case_of({"shape": (3, 5)}), [al.Space(al.Layout((3, 5), (2, 3)))]).get(cuts)
    assert changed is not None
    assert changed.parameters["shape"] == ((4, 6) if cuts is Cuts.EVEN else (5, 7))
    odd = with_cuts(case_of({"shape": [8]}), [al.Space(al.Layout((8,), (3,)))]).get(cuts)
    assert odd is not None
    assert odd.parameters["shape"] == ([9] if cuts is Cuts.EVEN else [10])


@pytest.mark.parametrize(("ends", "cuts"), [((0, 1, 4), Cuts.MOVED), ((0, 4, 4), Cuts.WITH_EMPTY)])
def test_a_case_that_has_such_cuts_already_is_that_case(ends: tuple[int, ...], cuts: Cuts) -> None:
    layout = al.Layout.cut((4,), (2,), [ends])
    case = case_of({"layout": layout})
    others = with_cuts(case, [al.Space(layout)])
    assert [each for each, other in others.items() if other == case] == [cuts]
