"""Layouts: which window of a global tensor each worker holds."""

import copy
from itertools import pairwise, permutations, product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adjointlab.core.layout import Layout, Window, balanced_cut, balanced_windows
from adjointlab.core.partition import Index, Partition

small = settings(max_examples=60, deadline=None)


@st.composite
def partitions(draw: st.DrawFn, max_order: int = 3) -> Partition:
    shape = draw(st.lists(st.integers(1, 3), max_size=max_order))
    return Partition(
        shape, draw(st.permutations(range(prod(shape) + draw(st.integers(0, 2)))))[: prod(shape)]
    )


@st.composite
def axes_of(draw: st.DrawFn, partition: Partition) -> tuple[int | None, ...]:
    used = draw(st.permutations(range(partition.order)))[: draw(st.integers(0, partition.order))]
    axes = draw(st.permutations([*used, *[None] * draw(st.integers(0, 1))]))
    return tuple(axes)


@st.composite
def cuts_of(draw: st.DrawFn, side: int, parts: int) -> tuple[int, ...]:
    inner = draw(st.lists(st.integers(0, side), min_size=parts - 1, max_size=parts - 1))
    return (0, *sorted(inner), side)


@st.composite
def cut_layouts(draw: st.DrawFn) -> Layout:
    """Cuts along some dimensions; copies along those that no tensor dimension lies along."""
    partition = draw(partitions())
    axes = draw(axes_of(partition))
    shape = [draw(st.integers(0, 5)) for _ in axes]
    cuts = [
        draw(st.none() | cuts_of(side, 1 if axis is None else partition.shape[axis]))
        for side, axis in zip(shape, axes, strict=True)
    ]
    return Layout.cut(shape, partition, cuts, axes)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any windows: overlapping, beyond the tensor, with gaps, empty, in any order; half of them cuts."""
    layout = draw(cut_layouts())
    if draw(st.booleans()):
        return layout
    windows: list[list[Window]] = []
    for dim, axis in zip(layout.windows, layout.axes, strict=True):
        match draw(st.sampled_from(["cut", "shuffled", "copied", "any"])):
            case "cut":
                windows.append(list(dim))
            case "shuffled":
                windows.append(list(draw(st.permutations(dim))))
            case "copied":
                windows.append([dim[0]] * len(dim))
            case _:
                parts = 1 if axis is None else layout.partition.shape[axis]
                ends = st.tuples(st.integers(-2, 6), st.integers(-2, 6)).map(
                    lambda pair: (min(pair), max(pair))
                )
                windows.append(draw(st.lists(ends, min_size=parts, max_size=parts)))
    return Layout(layout.shape, layout.partition, windows, layout.axes)


def held(layout: Layout) -> dict[Index, list[int]]:
    """Brute force: the ranks that hold each element, in the tensor or in padding."""
    table: dict[Index, list[int]] = {}
    for rank in layout.partition.ranks:
        window = layout.window(rank)
        assert window is not None
        for element in product(*(range(start, stop) for start, stop in window)):
            table.setdefault(element, []).append(rank)
    return table


@given(st.integers(0, 40), st.integers(1, 12))
@small
def test_a_balanced_cut_gives_the_remainder_to_the_first(length: int, parts: int) -> None:
    ends = balanced_cut(length, parts)
    sides = [stop - start for start, stop in pairwise(ends)]
    assert (ends[0], ends[-1], len(sides)) == (0, length, parts)
    assert sides == sorted(sides, reverse=True)
    assert max(sides) - min(sides) <= 1


@given(cut_layouts())
@small
def test_cut_covers_every_element_once_for_each_copy(layout: Layout) -> None:
    unused = prod(side for dim, side in enumerate(layout.partition.shape) if dim not in layout.axes)
    table = held(layout)
    assert set(table) == set(product(*(range(side) for side in layout.shape)))
    assert all(len(ranks) == unused for ranks in table.values())


@given(layouts())
@small
def test_every_local_element_is_the_global_one_of_its_place_in_the_window(layout: Layout) -> None:
    found: dict[Index, list[int]] = {}
    for rank in layout.partition.ranks:
        for local in product(*(range(side) for side in layout.local_shape(rank))):
            found.setdefault(layout.to_global(rank, local), []).append(rank)
    assert found == held(layout)


@given(layouts())
@small
def test_every_rank_has_a_local_shape_and_an_inactive_one_holds_nothing(layout: Layout) -> None:
    for rank in range(max(layout.partition.ranks) + 2):
        window = layout.window(rank)
        if layout.partition.is_active(rank):
            assert window is not None
            assert layout.local_shape(rank) == tuple(stop - start for start, stop in window)
            assert layout.local_size(rank) == sum(rank in ranks for ranks in held(layout).values())
        else:
            assert window is None
            assert layout.local_shape(rank) == (0,) * max(1, layout.order)
            assert layout.local_size(rank) == 0


@given(layouts())
@small
def test_the_windows_lie_along_the_axes(layout: Layout) -> None:
    for rank in layout.partition.ranks:
        window = layout.window(rank)
        assert window is not None
        for dim, axis in enumerate(layout.axes):
            place = 0 if axis is None else layout.partition.index(rank)[axis]
            assert window[dim] == layout.windows[dim][place]


@given(layouts())
@small
def test_the_hull_is_the_smallest_box_around_the_tensor_and_all_windows(layout: Layout) -> None:
    for dim, (side, (low, high)) in enumerate(zip(layout.shape, layout.hull, strict=True)):
        ends = [end for window in layout.windows[dim] for end in window] + [0, side]
        assert (low, high) == (min(ends), max(ends))


@given(layouts())
@small
def test_a_dimension_overlaps_where_one_element_is_held_at_two_indices_along_it(layout: Layout) -> None:
    index = layout.partition.index

    def differ_along(a: int, b: int, dim: int) -> bool:
        return all((i != j) == (k == dim) for k, (i, j) in enumerate(zip(index(a), index(b), strict=True)))

    for dim, overlapping in enumerate(layout.overlapping):
        assert overlapping == any(
            differ_along(a, b, dim) for ranks in held(layout).values() for a, b in product(ranks, ranks)
        )


@given(layouts())
@small
def test_a_dimension_is_copied_where_all_indices_along_it_hold_the_same_windows(layout: Layout) -> None:
    partition = layout.partition
    for dim, copied in enumerate(layout.copied):
        lines = partition.subpartitions([dim])
        assert copied == all(len({layout.window(rank) for rank in line.ranks}) == 1 for line in lines)


def test_a_tensor_of_order_zero_is_one_element_and_may_be_copied() -> None:
    single = Layout((), Partition(()))
    assert (single.window(0), single.local_shape(0), single.local_size(0)) == ((), (), 1)
    assert (single.local_shape(1), single.local_size(1)) == ((0,), 0)
    assert (single.to_global(0, ()), single.hull) == ((), ())
    copies = Layout((), Partition((2,)), axes=())
    assert (copies.overlapping, copies.copied) == ((True,), (True,))


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (Layout((3,), Partition((2,))), "[3] cut at 0|2|3"),
        (Layout.cut((3, 4), Partition((2, 1)), [(0, 0, 3), None]), "[3, 4] cut at 0|0|3, 0|4"),
        (Layout((3,), Partition((2,)), axes=(None,)), "[3] whole"),
        (Layout((3,), Partition((2,)), [[(1, 3)]], axes=(None,)), "[3] windows 1:3"),
        (Layout((3,), Partition((2,)), [[(0, 3), (0, 3)]]), "[3] windows 0:3 0:3"),
        (Layout((4,), Partition((2,)), [[(-1, 3), (1, 5)]]), "[4] windows -1:3 1:5"),
        (Layout((4,), Partition((2,)), [[(2, 4), (0, 2)]]), "[4] windows 2:4 0:2"),
        (Layout((), Partition(())), "[]"),
    ],
)
def test_a_layout_prints_its_boundaries_or_its_windows(layout: Layout, text: str) -> None:
    assert str(layout) == text


two = Partition((2,))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((-1,), two), r"shape: .* not \(-1,\)"),
        (((3, 4), two), r"of order 1 \(2\), but the tensor \[3, 4\] has order 2"),
        (((3,), two, [[(0, 1)]]), r"dimension 0 lies along 2 workers but has 1 window \(\(0, 1\),\)"),
        (((3,), (2, 2)), r"of order 2 \(2x2\), but the tensor \[3\] has order 1; promote"),
        (
            ((3,), (1,), [[(0, 1), (1, 3)]]),
            r"dimension 0 lies along 1 worker but has 2 windows \(\(0, 1\), \(",
        ),
        (
            ((3, 1), (2, 1), [[(0, 2), (2, 3)], []]),
            r"dimension 1 lies along 1 worker but has 0 windows \(\)",
        ),
        (((3,), two, [[(0, 2), (2, 3)], [(0, 1)]]), "order 1 needs 1 list, not 2"),
        (((3, 3), (2, 1), [[(0, 2), (2, 3)]]), "order 2 needs 2 lists, not 1"),
        (((3,), two, [[(0, 2), (3, 2)]]), r"dimension 0 the window \(3, 2\) stops before it starts"),
        (((3,), two, [[(5, 3), (3, 2)]]), r"dimension 0 the window \(5, 3\) stops before it starts"),
        (((3, 3), two, None, (0,)), r"order 2 needs 2 entries, not \(0,\)"),
        (((3,), two, None, (2,)), r"axes: \(2,\) are not distinct dimensions of a partition of order 1"),
        (((3,), two, None, (-2,)), r"axes: \(-2,\) are not distinct"),
        (((3,), two, None, (0, 1)), r"order 1 needs 1 entry, not \(0, 1\)"),
        (((3,), two, None, (1,)), r"axes: \(1,\) are not distinct dimensions of a partition of order 1"),
        (((3,), two, None, (-1,)), r"axes: \(-1,\) are not distinct"),
        (((3, 3), two, None, (0, 0)), r"axes: \(0, 0\) are not distinct"),
    ],
)
def test_a_bad_layout_is_refused_with_its_values(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Layout(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cuts", "message"),
    [
        ([(0, 2, 4)], r"\(0, 2, 4\) do not cover dimension 0; they must run from 0 to 3"),
        ([(0, 1, 2)], r"\(0, 1, 2\) do not cover dimension 0"),
        ([(1, 2, 3)], r"\(1, 2, 3\) do not cover dimension 0"),
        ([(-1, 2, 3)], r"\(-1, 2, 3\) do not cover dimension 0"),
        ([(0, 3)], "make 1 part of dimension 0, which lies along 2 workers"),
        ([], "order 1 needs 1 cut, not 0"),
        ([()], r"\(\) do not cover dimension 0"),
        ([(0, 4, 3)], r"\(0, 4, 3\) in dimension 0 decrease"),
        ([(0, 1, 2, 3)], "make 3 parts of dimension 0, which lies along 2 workers"),
        ([None, None], "order 1 needs 1 cut, not 2"),
    ],
)
def test_bad_cuts_are_refused_with_their_values(cuts: list[tuple[int, ...] | None], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Layout.cut((3,), two, cuts)


@pytest.mark.parametrize(
    ("rank", "local"), [(0, (2,)), (0, (-1,)), (0, ()), (0, (0, 0)), (1, (1,)), (5, (0,))]
)
def test_a_local_index_outside_the_local_tensor_is_refused(rank: int, local: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError, match=rf"local: \({', '.join(map(str, local))},?\) is not in .* rank {rank}"
    ):
        Layout((3,), two).to_global(rank, local)


def test_other_bad_arguments_are_refused_with_their_values() -> None:
    with pytest.raises(ValueError, match="-1 elements cannot be cut into 2"):
        balanced_cut(-1, 2)
    with pytest.raises(ValueError, match="3 elements cannot be cut into 0"):
        balanced_cut(3, 0)
    with pytest.raises(TypeError, match="is not a sequence of integers"):
        Layout((2.5,), two)  # type: ignore[arg-type]
    for axes in (0, "0"):
        with pytest.raises(
            TypeError, match=f"axes: {axes!r} is not a list of a dimension of the partition, or None"
        ):
            Layout((2,), two, axes=axes)  # type: ignore[arg-type]
    for cuts in (None, 3, "02"):
        with pytest.raises(TypeError, match=f"cuts: {cuts!r} is not a list of boundaries, or None, for each"):
            Layout.cut((2,), two, cuts)  # type: ignore[arg-type]
    for dim in (1, None, "x"):
        with pytest.raises(ValueError, match=f"dim: {dim!r} is not a dimension of a tensor of order 1"):
            Layout((2,), two).ends(dim)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="local: 0 is not a sequence of integers"):
        Layout((2,), two).to_global(0, 0)  # type: ignore[arg-type]


def test_layouts_print_alike_if_and_only_if_each_rank_has_the_same_window() -> None:
    layouts = [
        Layout((4, 6), Partition((2, 2), ranks), axes=axes)
        for ranks in permutations(range(4))
        for axes in ((0, 1), (1, 0))
    ]
    for one, other in product(layouts, layouts):
        is_alike = all(one.window(rank) == other.window(rank) for rank in range(4))
        assert (str(one) == str(other)) is is_alike


def test_the_text_of_a_layout_has_ranks_where_they_are_not_in_order() -> None:
    cut = "[4, 6] cut at 0|2|4, 0|3|6"
    assert str(Layout((4, 6), (2, 2))) == cut
    assert str(Layout((4, 6), Partition((2, 2), (1, 0, 2, 3)))) == f"{cut} over ranks 1, 0, 2, 3"
    assert str(Layout((4, 6), (2, 2), axes=(1, 0))) == f"{cut} over ranks 0, 2, 1, 3"
    assert str(Layout((4, 6), Partition((2, 2), (0, 2, 1, 3)), axes=(1, 0))) == cut
    assert Layout((4, 6), (2, 2), axes=(1, 0)).without_workers == cut
    assert str(Layout((4, 6), (2, 1, 2), axes=(2, 0))) == f"{cut} over ranks 0, 2, 1, 3"


@given(layouts())
@small
def test_windows_are_taken_over_from_another_layout_and_equal_to_plain_tuples(layout: Layout) -> None:
    again = Layout(layout.shape, layout.partition, layout.windows, layout.axes)
    plain = tuple(tuple(tuple(window) for window in dim) for dim in layout.windows)
    assert all(ours is theirs for ours, theirs in zip(again.windows, layout.windows, strict=True))
    assert layout.windows == plain == copy.deepcopy(layout).windows
    assert hash(layout.windows) == hash(plain)
    assert Layout(layout.shape, layout.partition, plain, layout.axes) == layout


@given(st.integers(0, 9), st.integers(1, 5))
def test_balanced_windows_lie_between_the_boundaries_of_the_balanced_cut(length: int, parts: int) -> None:
    assert balanced_windows(length, parts) == tuple(pairwise(balanced_cut(length, parts)))
    assert balanced_windows(length, parts) is balanced_windows(length, parts)


WIDE = int("1000")
"""Above 256: an integer that Python makes anew each time."""

# layout: untiled, overlapping, copied, hull, and the boundaries of dimension 0
PROPERTIES: list[
    tuple[Layout, int | None, tuple[bool, ...], tuple[bool, ...], Window, tuple[int, ...] | None]
] = [
    (Layout((WIDE,), (2,)), None, (False,), (False,), (0, WIDE), (0, 500, WIDE)),
    (Layout((WIDE,), (1,)), None, (False,), (True,), (0, WIDE), (0, WIDE)),
    (Layout((0,), (2,)), None, (False,), (True,), (0, 0), (0, 0, 0)),
    (Layout((0,), (2,), axes=(None,)), None, (False,), (True,), (0, 0), (0, 0)),
    (Layout((5,), (2,), axes=(None,)), None, (True,), (True,), (0, 5), (0, 5)),
    (Layout((5,), (1,), axes=(None,)), None, (False,), (True,), (0, 5), (0, 5)),
    (Layout((5,), (2,), [[(0, 5), (0, 5)]]), 0, (True,), (True,), (0, 5), None),
    (Layout((5,), (2,), [[(3, 5), (0, 3)]]), None, (False,), (False,), (0, 5), None),
    (Layout((5,), (2,), [[(3, 5), (0, 4)]]), 0, (True,), (False,), (0, 5), None),
    (Layout((5,), (2,), [[(0, 2), (3, 5)]]), 0, (False,), (False,), (0, 5), None),
    (Layout((5,), (2,), [[(1, 2), (2, 5)]]), 0, (False,), (False,), (0, 5), None),
    (Layout((5,), (2,), [[(0, 2), (2, 4)]]), 0, (False,), (False,), (0, 5), None),
    (Layout((5,), (2,), [[(-1, 2), (2, 5)]]), 0, (False,), (False,), (-1, 5), None),
    (Layout((5,), (2,), [[(0, 2), (2, 7)]]), 0, (False,), (False,), (0, 7), None),
    (Layout((5,), (2,), [[(0, 5), (9, 9)]]), None, (False,), (False,), (0, 9), None),
    (Layout((5,), (2,), [[(-3, -3), (0, 5)]]), None, (False,), (False,), (-3, 5), None),
    (
        Layout((WIDE,), (3,), [[(0, WIDE), (500, int("500")), (700, int("700"))]]),
        None,
        (False,),
        (False,),
        (0, WIDE),
        None,
    ),
    (Layout((5,), (3,), [[(0, 3), (1, 1), (3, 5)]]), None, (False,), (False,), (0, 5), None),
    (Layout((5, 4), (2, 2), axes=(1, None)), None, (True, False), (True, False), (0, 5), (0, 3, 5)),
    (Layout((5, 4), (2, 3), axes=(None, 0)), None, (False, True), (False, True), (0, 5), (0, 5)),
    (Layout((5, 0), (2, 3), axes=(None, 0)), None, (False, False), (True, True), (0, 5), (0, 5)),
    (Layout((5, 4), (1, 2), [[(0, 5)], [(0, 2), (1, 4)]]), 1, (False, True), (True, False), (0, 5), (0, 5)),
]


@pytest.mark.parametrize(("layout", "untiled", "overlapping", "copied", "hull", "ends"), PROPERTIES)
def test_the_properties_of_windows_by_hand(
    layout: Layout,
    untiled: int | None,
    overlapping: tuple[bool, ...],
    copied: tuple[bool, ...],
    hull: Window,
    ends: tuple[int, ...] | None,
) -> None:
    assert layout.untiled == untiled
    assert layout.overlapping == overlapping
    assert layout.copied == copied
    assert layout.hull[0] == hull
    assert layout.ends(0) == ends


def test_a_wide_cut_is_taken_by_value() -> None:
    cut = Layout.cut((WIDE,), two, [(0, int("400"), int("1000"))])
    assert cut.windows == (((0, 400), (400, 1000)),)
    assert cut == Layout((WIDE,), two, [[(0, 400), (int("400"), 1000)]])
    assert (str(cut), cut.to_global(1, (int("599"),))) == ("[1000] cut at 0|400|1000", (999,))
    for rank, outside in ((0, 400), (0, 401), (1, 600), (1, -300)):
        with pytest.raises(
            ValueError, match=rf"^local: \({outside},\) is not in the local tensor of rank {rank}"
        ):
            cut.to_global(rank, (outside,))
    with pytest.raises(ValueError, match=r"cuts: .* do not cover"):
        Layout.cut((WIDE,), two, [(0, 400, 999)])


@pytest.mark.parametrize("windows", [3, [3], [(0, 3)], [[(0,), (1,)]], [[(0, 1, 2)]], [[(0.5, 1)]], [["ab"]]])
def test_windows_that_are_no_pairs_of_integers_are_refused(windows: object) -> None:
    with pytest.raises(TypeError) as raised:
        Layout((3,), (1,), windows)  # type: ignore[arg-type]
    assert str(raised.value) == (
        f"windows: {windows!r} is not a list of (start, stop) for each dimension; boundaries are for Layout.cut"
    )


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (Layout((3, 4), (2,), [[(0, 3)], [(0, 1), (3, 4)]], (None, 0)), "[3, 4] windows whole, 0:1 3:4"),
        (Layout((3, 4), (2,), [[(0, 2)], [(0, 1), (1, 4)]], (None, 0)), "[3, 4] cut at 0:2, 0|1|4"),
        (Layout((3, 4), (2,), [[(0, 3)], [(0, 1), (1, 4)]], (None, 0)), "[3, 4] cut at whole, 0|1|4"),
        (Layout((3,), (1,), [[(1, 3)]]), "[3] windows 1:3"),
        (Layout((WIDE,), (1,), [[(0, int("1000"))]], (None,)), "[1000] whole"),
        (Layout((WIDE,), (1,), [[(0, int("1001"))]], (None,)), "[1000] windows 0:1001"),
        (Layout((3,), (1,), [[(-1, 3)]], (None,)), "[3] windows -1:3"),
        (Layout((3,), Partition((2,), (0, 2)), axes=(None,)), "[3] whole over ranks 0, 2"),
        (
            Layout((2, 2), (2, 3, 2), axes=(2, 0)),
            "[2, 2] cut at 0|1|2, 0|1|2 over ranks 0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11",
        ),
    ],
)
def test_a_layout_prints_the_kind_of_each_dimension_and_ranks_out_of_order(layout: Layout, text: str) -> None:
    assert str(layout) == text
