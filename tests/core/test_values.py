"""Values from a counter."""

from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adjointlab.core import vectors
from adjointlab.core.arrays import DTYPES
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.space import Space, Tensor
from adjointlab.core.splitmix import mixed
from adjointlab.core.vectors import VALUES, Draw, local_values

small = settings(max_examples=50, deadline=None)
FLOATING = sorted(name for name, entry in DTYPES.items() if not entry.is_integer)
WHOLE = Draw(seed=1, index=0, side="primal", bound=100)


def draws(floating: bool = True) -> st.SearchStrategy[Draw]:
    return st.builds(
        Draw,
        seed=st.integers(0, 2**64 - 1),
        index=st.integers(0, 300),
        side=st.sampled_from(["primal", "dual"]),
        bound=st.sampled_from([0, 1, 7, 2**20] if floating else [1, 7, 2**20]),
        exponent=st.integers(-3, 3),
    )


@st.composite
def cut_spaces(draw: st.DrawFn) -> Space:
    sides = draw(st.lists(st.integers(1, 3), max_size=3))
    shape = [draw(st.integers(0, 4)) for _ in sides]
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    return Space(Layout(shape, Partition(sides, draw(st.permutations(range(prod(sides)))))), dtype=dtype)


def flat(size: int, dtype: str) -> Space:
    return Space(Layout((size,), Partition((1,))), dtype=dtype)


def global_values(space: Space, position: int, draw: Draw) -> np.ndarray[Any, Any]:
    """The global tensor, from the one rank that holds the whole of it in another layout."""
    wholes = (Layout(t.layout.shape, Partition((1,) * t.layout.order)) for t in space.tensors)
    tensors = (replace(t, layout=whole) for t, whole in zip(space.tensors, wholes, strict=True))
    return local_values(Space(*tensors), position, 0, draw)


def components(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return (
        np.concatenate([values.real.ravel(), values.imag.ravel()])
        if values.dtype.kind == "c"
        else values.ravel()
    )


@given(cut_spaces(), draws(floating=False))
@small
def test_local_values_of_a_cut_are_windows_of_the_global_tensor(space: Space, draw: Draw) -> None:
    layout = space.tensors[0].layout
    draw = replace(draw, bound=min(draw.bound, 2**8))
    whole = global_values(space, 0, draw)
    assert whole.shape == layout.shape
    for rank in layout.partition.ranks:
        window = layout.window(rank)
        assert window is not None
        local = local_values(space, 0, rank, draw)
        assert local.shape == layout.local_shape(rank)
        assert (
            local.dtype
            == whole.dtype
            == ("float32" if space.tensors[0].dtype == "bfloat16" else space.tensors[0].dtype)
        )
        assert np.array_equal(local, whole[tuple(slice(start, stop) for start, stop in window)])
        assert np.array_equal(local, local_values(space, 0, rank, draw))
    inactive = local_values(space, 0, layout.partition.size, draw)
    assert (inactive.size, inactive.shape) == (0, layout.local_shape(layout.partition.size))


@given(st.lists(st.sampled_from(["varying", "partial", "replicated", "invariant"]), min_size=1, max_size=3))
@small
def test_copies_are_equal_where_they_are_declared_so_and_unrelated_otherwise(types: list[str]) -> None:
    space = Space(Layout((20,), Partition((2,) * len(types)), axes=(None,)), types=types)
    tensor = space.tensors[0]
    index = tensor.layout.partition.index
    for a, b in product(tensor.layout.partition.ranks, repeat=2):
        equal = all(
            i == j or entry.is_shared for i, j, entry in zip(index(a), index(b), tensor.types, strict=True)
        )
        x, y = (local_values(space, 0, rank, replace(WHOLE, bound=2**40)) for rank in (a, b))
        assert np.all(x == y) if equal else not np.any(x == y)


def test_halo_and_padding_cells_get_values_of_their_own() -> None:
    space = Space(Layout((6,), Partition((2,)), [[(-2, 4), (2, 8)]]))
    left, right = (local_values(space, 0, rank, replace(WHOLE, bound=2**40)) for rank in (0, 1))
    assert len({*left.tolist(), *right.tolist()}) == 12
    assert np.all(left != 0)
    assert np.all(right != 0)


@given(cut_spaces(), draws(floating=False))
@small
def test_integers_stay_within_the_bound_times_a_power_of_two(space: Space, draw: Draw) -> None:
    tensor = space.tensors[0]
    bound = min(draw.bound, 2**tensor.element.precision - tensor.element.is_integer)
    values = components(global_values(space, 0, replace(draw, bound=bound))).astype(np.float64)
    scale = 1.0 if tensor.element.is_integer else 2.0**draw.exponent
    assert np.all(values / scale == np.round(values / scale))
    assert np.all(np.abs(values) <= bound * scale)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_integers_are_roughly_uniform_and_reach_both_bounds(dtype: str) -> None:
    values = components(global_values(flat(7000, dtype), 0, replace(WHOLE, bound=3)))
    found, counts = np.unique(values.astype(np.float64), return_counts=True)
    assert found.tolist() == list(range(-3, 4))
    expected = values.size / 7
    assert np.sum((counts - expected) ** 2 / expected) < 40  # chi-squared with 6 degrees of freedom


@pytest.mark.parametrize(
    ("values", "wanted"), [("negative", {-1, -2, -3}), ("integers", {-3, -2, -1, 0, 1, 2, 3})]
)
def test_values_of_a_kind_are_all_of_that_kind_and_of_no_other(values: str, wanted: set[int]) -> None:
    drawn = components(global_values(flat(300, "float32"), 0, replace(WHOLE, bound=3, values=values)))
    assert set(drawn.tolist()) == wanted


@pytest.mark.parametrize("dtype", ["int64", "float64", "complex128"])
def test_the_largest_bounds_are_exact(dtype: str) -> None:
    bound = 2**63 - 1 if dtype == "int64" else 2**53
    values = components(global_values(flat(500, dtype), 0, replace(WHOLE, bound=bound))).astype(object)
    assert all(int(value) == value for value in values)
    assert 0.9 * bound < max(abs(int(value)) for value in values) <= bound
    assert min(int(value) for value in values) < 0 < max(int(value) for value in values)


@pytest.mark.parametrize("exponent", [0, -5, 7])
@pytest.mark.parametrize("dtype", FLOATING)
def test_floating_values_fill_the_whole_significand_and_are_exact(dtype: str, exponent: int) -> None:
    values = components(global_values(flat(3000, dtype), 0, Draw(1, 0, "primal", exponent=exponent)))
    precision = DTYPES[dtype].precision
    scaled = values.astype(np.float64) * 2.0**-exponent
    assert np.all(np.abs(scaled) <= 1)
    assert scaled.min() < -0.9
    assert scaled.max() > 0.9
    assert abs(scaled.mean()) < 0.05
    assert np.all(scaled * 2.0**precision == np.round(scaled * 2.0**precision))
    significands, _ = np.frexp(scaled)
    last_bits = (np.abs(significands) * 2.0**precision).astype(np.int64)[np.abs(scaled) >= 0.5] % 2
    assert 0.4 < last_bits.mean() < 0.6  # so a narrowing by a single bit changes half of them
    if dtype == "bfloat16":
        assert np.array_equal(torch.tensor(values).bfloat16().float().numpy(), values)


@given(draws(), st.data())
@small
def test_another_seed_draw_role_or_tensor_has_other_values(draw: Draw, data: st.DataObject) -> None:
    draw = replace(draw, bound=2**40)
    layout = Layout((12,), Partition((1,)))
    space = Space(Tensor(layout, name="x"), Tensor(layout, name="y"))
    others = [
        global_values(space, 0, replace(draw, seed=draw.seed ^ (1 << data.draw(st.integers(0, 63))))),
        global_values(space, 0, replace(draw, seed=(draw.seed + 1) % 2**64, index=max(0, draw.index - 64))),
        global_values(space, 0, replace(draw, index=draw.index + data.draw(st.integers(1, 200)))),
        global_values(space, 0, replace(draw, side={"primal": "dual", "dual": "primal"}[draw.side])),
        global_values(space, 1, draw),
    ]
    for other in others:
        assert not np.any(other == global_values(space, 0, draw))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_no_two_elements_of_a_tensor_share_a_counter(dtype: str) -> None:
    partition = Partition((2, 1, 3))
    windows = [[(-1, 3), (3, 5)], [(0, 7)], [(-2, 2), (2, 6), (6, 9)]]
    space = Space(Layout((5, 7, 9), partition, windows), dtype=dtype)
    held = [local_values(space, 0, rank, replace(WHOLE, bound=2**53)) for rank in partition.ranks]
    values = np.concatenate([components(local) for local in held])
    assert np.unique(values).size == values.size


def test_values_do_not_depend_on_how_the_tensor_is_cut() -> None:
    one = global_values(flat(9, "float64"), 0, WHOLE)
    uneven = Space(Layout.cut((9,), Partition((3,)), [(0, 7, 7, 9)]))
    assert np.array_equal(np.concatenate([local_values(uneven, 0, rank, WHOLE) for rank in range(3)]), one)


def test_one_element_of_order_zero_wraps_around_without_a_warning() -> None:
    values = [global_values(Space(Layout((), Partition(()))), 0, replace(WHOLE, index=n)) for n in range(20)]
    assert all(value.shape == () for value in values)
    assert len({float(value) for value in values}) > 10


def test_bad_draws_are_refused_with_their_values() -> None:
    with pytest.raises(ValueError, match="side: 'duel' is neither"):
        Draw(1, 0, "duel")
    with pytest.raises(ValueError, match="bound: -1 is not in"):
        Draw(1, 0, "dual", bound=-1)
    with pytest.raises(ValueError, match="bound: 9223372036854775808 is not in"):
        Draw(1, 0, "dual", bound=2**63)
    with pytest.raises(ValueError, match="no floating values"):
        global_values(flat(2, "int32"), 0, Draw(1, 0, "dual"))
    for dtype in ("bfloat16", "float16", "float32", "complex64", "float64", "int32"):
        largest = 2 ** DTYPES[dtype].precision - DTYPES[dtype].is_integer
        with pytest.raises(ValueError, match=f"bound: integers up to {largest + 1} are not exact in {dtype}"):
            global_values(flat(2, dtype), 0, Draw(1, 0, "dual", bound=largest + 1))


def test_values_are_in_memory_of_their_own() -> None:
    space, draw = Space(Layout((4,), Partition((1,)))), Draw(1, 0, "primal", 4)
    first = local_values(space, 0, 0, draw)
    expected = first.copy()
    first[:] = 9
    assert np.array_equal(local_values(space, 0, 0, draw), expected)


# Values by their definition, in Python's integers: a stored case draws the same tensors in every version.

MODULUS, GAMMA = 2**64, 0x9E3779B97F4A7C15
HALOS = Layout((3, 5), Partition((2, 2), (3, 1, 0, 2)), [[(-1, 2), (1, 5)], [(0, 3), (2, 5)]])
COPIES = Layout((2,), Partition((2, 3)), axes=(None,))


def hash_by_definition(counter: int, keys: tuple[int, ...]) -> int:
    key = 0
    for part in keys:
        key = mixed(key ^ part)
    return mixed(((mixed(counter) ^ key) - GAMMA) % MODULUS)


def value_by_definition(bits: int, draw: Draw, dtype: str) -> Any:
    if draw.bound == 0:
        precision = DTYPES[dtype].precision
        return ((bits >> (63 - precision)) - 2**precision) * 2.0 ** (draw.exponent - precision)
    whole = bits % (2 * draw.bound + 1) - draw.bound
    if DTYPES[dtype].is_integer:
        return whole
    if draw.values == "negative":
        whole = -1 - bits % draw.bound
    fraction = (bits >> 52) / 2**12 if draw.values == "fractions" else 0
    return (whole + fraction) / (3 if draw.values == "thirds" else 1) * 2.0**draw.exponent


def tensor_by_definition(space: Space, position: int, rank: int, draw: Draw) -> np.ndarray[Any, Any]:
    tensor = space.tensors[position]
    layout, window = tensor.layout, tensor.layout.window(rank)
    assert window is not None
    copy = 0
    index = layout.partition.index(rank)
    for i, side, entry, copied in zip(
        index, layout.partition.shape, tensor.types, layout.overlapping, strict=True
    ):
        copy = copy * side + (i if copied and not entry.is_shared else 0)
    parts = 2 if tensor.element.is_complex else 1
    found = []
    for element in product(*(range(*interval) for interval in window)):
        flat_index = 0
        for i, (low, high) in zip(element, layout.hull, strict=True):
            flat_index = flat_index * (high - low) + i - low
        if draw.values == "equal" and not tensor.element.is_integer:
            flat_index = 0
        keys = (draw.seed, draw.index, position, int(draw.side == "dual"), copy)
        values = [
            value_by_definition(hash_by_definition(flat_index * parts + part, keys), draw, tensor.dtype)
            for part in range(parts)
        ]
        found.append(complex(*values) if parts == 2 else values[0])
    return np.array(found, tensor.element.in_numpy).reshape(layout.local_shape(rank))


@pytest.mark.parametrize("dtype", ["float64", "complex64", "float16", "int32"])
@pytest.mark.parametrize(
    "draw",
    [
        *(Draw(7, 3, "primal", 9, 2, values) for values in VALUES),
        Draw(2**63 + 5, 0, "dual", 1000),
        Draw(0, 1, "dual", 0, -3),
    ],
    ids=lambda draw: f"{draw.side}-{draw.bound}-{draw.values}",
)
@pytest.mark.parametrize(
    ("layout", "types"),
    [(HALOS, ("varying", "varying")), (COPIES, ("varying", "partial")), (COPIES, ("replicated", "varying"))],
)
def test_values_are_those_of_their_definition(
    layout: Layout, types: tuple[str, ...], draw: Draw, dtype: str
) -> None:
    if draw.bound == 0 and DTYPES[dtype].is_integer:
        draw = replace(draw, bound=2**30)
    space = Space(*(Tensor(layout, dtype, types=types, name=name) for name in "xy"))
    for position, rank in ((0, 0), (1, 1), (1, layout.partition.size - 1)):
        expected = tensor_by_definition(space, position, rank, draw)
        assert np.array_equal(local_values(space, position, rank, draw), expected)


def test_elements_that_a_rank_does_not_hold_have_values_of_another_seed() -> None:
    seed = 77
    for layout, types, holder, same in (
        (HALOS, ("varying", "varying"), 3, {3}),
        (COPIES, ("replicated", "varying"), 4, {1, 4}),
        (Layout((6,), Partition((3,))), ("varying",), 1, {1}),
    ):
        space = Space(layout, types=types)
        draw = replace(WHOLE, bound=2**40)
        for rank in layout.partition.ranks:
            expected = replace(draw, seed=WHOLE.seed if rank in same else seed)
            assert np.array_equal(
                local_values(space, 0, rank, replace(draw, beyond=(holder, seed))),
                local_values(space, 0, rank, expected),
            )


def test_the_bits_of_small_windows_alone_are_kept() -> None:
    vectors._kept_bits.cache_clear()
    for size, kept in ((1025, 0), (1024, 1), (1024, 1), (1, 2)):
        local_values(flat(size, "float64"), 0, 0, WHOLE)
        assert vectors._kept_bits.cache_info().currsize == kept
    bits = vectors._kept_bits(((0, 1),), ((0, 1),), 0, 1, False)
    with pytest.raises(ValueError, match="read-only"):
        bits[0] = 0


@pytest.mark.parametrize("values", ["integers", "fractions", "thirds"])
def test_the_largest_element_of_a_peaked_tensor_is_on_one_rank_alone(values: str) -> None:
    key = Draw(seed=3, index=1, side="primal", bound=4, values=values, peaked=True)
    space = Space(Layout((6, 5), Partition((3, 1))))
    parts = [local_values(space, 0, rank, key) for rank in range(3)]
    plain = [local_values(space, 0, rank, replace(key, peaked=False)) for rank in range(3)]
    (place,) = np.argwhere(np.concatenate(parts) != np.concatenate(plain))
    assert tuple(place) == (4, 3)
    peak, other = np.concatenate(parts)[4, 3], np.concatenate(plain)[4, 3]
    assert (abs(peak), peak < 0) == (5 / (3 if values == "thirds" else 1), other < 0)
    assert all(abs(part).max() < abs(peak) for part in (*parts[:2], *plain))


@pytest.mark.parametrize(
    ("shape", "dtype"), [((1,), "float64"), ((0,), "float64"), ((4,), "int64"), ((4,), "complex128")]
)
def test_one_element_integers_and_complex_numbers_have_no_peak(shape: tuple[int, ...], dtype: str) -> None:
    key = Draw(seed=3, index=1, side="primal", bound=4, peaked=True)
    space = Space(Tensor(Layout(shape, Partition((1,))), dtype=dtype))
    assert np.array_equal(
        local_values(space, 0, 0, key), local_values(space, 0, 0, replace(key, peaked=False))
    )
