"""Inner products, exactly."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adjointlab.core import pairing
from adjointlab.core.layout import Layout
from adjointlab.core.pairing import ZERO, Exact, NotFinite, dot, exact_sum, pair_local
from adjointlab.core.partition import Partition
from adjointlab.core.space import Space

small = settings(max_examples=60, deadline=None)
REAL = ("float64", "float32", "float16")


def finite(dtype: str) -> st.SearchStrategy[float]:
    width: Any = 8 * np.dtype(dtype).itemsize
    return st.floats(width=width, allow_nan=False, allow_infinity=False) | st.sampled_from(
        [
            float(np.finfo(dtype).smallest_subnormal),
            -float(np.finfo(dtype).max),
            float(np.finfo(dtype).tiny),
            -0.0,
        ]
    )


@st.composite
def vectors(draw: st.DrawFn, dtype: str, size: int) -> np.ndarray[Any, Any]:
    """Some drawn values, among many that a generator fills in; a long list of draws would be slow."""
    drawn = draw(st.lists(finite(dtype), max_size=min(size, 12)))
    fill = np.random.default_rng(draw(st.integers(0, 99)))
    low, high = np.finfo(dtype).minexp, np.finfo(dtype).maxexp
    values = np.ldexp(fill.uniform(-1, 1, size), fill.integers(low, high, size)).astype(dtype)
    values[: len(drawn)] = drawn
    return values


def by_fractions(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> Exact:
    real, imag = Fraction(0), Fraction(0)
    for x, y in zip(a.ravel().tolist(), b.ravel().tolist(), strict=True):
        xr, xi, yr, yi = (Fraction(part) for part in (x.real, x.imag, y.real, y.imag))
        real, imag = real + xr * yr + xi * yi, imag + xi * yr - xr * yi
    return Exact(real, imag)


sizes = st.integers(0, 8) | st.sampled_from([63, 64, 65, 100, 300])


@given(st.data(), st.sampled_from(REAL), sizes)
@small
def test_dot_is_the_sum_of_the_exact_products(data: st.DataObject, dtype: str, size: int) -> None:
    a, b = data.draw(vectors(dtype, size)), data.draw(vectors(dtype, size))
    assert dot(a, b) == by_fractions(a, b)


@given(st.data(), st.sampled_from(["complex128", "complex64"]), sizes)
@small
def test_dot_conjugates_its_second_argument(data: st.DataObject, dtype: str, size: int) -> None:
    part = {"complex128": "float64", "complex64": "float32"}[dtype]
    a, b = np.zeros(size, dtype), np.zeros(size, dtype)
    for array in (a, b):
        array.real, array.imag = data.draw(vectors(part, size)), data.draw(vectors(part, size))
    assert dot(a, b) == by_fractions(a, b)
    assert dot(b, a) == Exact(dot(a, b).real, -dot(a, b).imag)
    assert dot(a.real, b) == by_fractions(a.real.astype(dtype), b)


@given(st.data(), st.sampled_from(["int64", "int32"]), sizes)
@small
def test_dot_of_integers_does_not_overflow(data: st.DataObject, dtype: str, size: int) -> None:
    limit = 2**62 if dtype == "int64" else 2**31 - 1
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    a, b = (rng.integers(-limit, limit, size, dtype=dtype, endpoint=True) for _ in range(2))
    drawn = data.draw(st.lists(st.integers(-limit, limit), max_size=min(size, 8)))
    a[: len(drawn)] = drawn
    assert dot(a, b) == by_fractions(a, b)
    assert dot(a.astype("float64"), b) == by_fractions(a.astype("float64"), b)


@given(st.data(), st.sampled_from([65, 300]))
@small
def test_one_lost_bit_shows(data: st.DataObject, size: int) -> None:
    a, b = data.draw(vectors("float64", size)), np.ones(size)
    place = data.draw(st.integers(0, size - 1))
    other = a.copy()
    other[place] = np.nextafter(a[place], 0) if a[place] else 5e-324
    assert dot(a, b) != dot(other, b)


def test_both_code_paths_agree_and_long_vectors_go_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 1000)) * 2.0 ** rng.integers(-500, 500, (2, 1000))
    whole = dot(a, b)
    monkeypatch.setattr("adjointlab.core.pairing._BLOCK", 64)
    assert dot(a, b) == whole
    monkeypatch.setattr("adjointlab.core.pairing._FEW", 10**6)
    assert dot(a, b) == whole


def test_dot_takes_any_shape_and_memory_order() -> None:
    a = np.arange(24.0).reshape(2, 3, 4)
    assert dot(a, a) == Exact(Fraction(int((a * a).sum())))
    assert dot(a[:, ::-1, ::2].T, a[:, ::-1, ::2].T) == dot(a[:, ::-1, ::2], a[:, ::-1, ::2])
    assert dot(np.array(3.0), np.array(2.0)) == Exact(Fraction(6))
    assert dot(np.zeros((0, 3)), np.zeros((0, 3))) == ZERO


def test_dot_refuses_shapes_that_differ() -> None:
    with pytest.raises(ValueError, match=r"b: has shape \(2,\), but a has shape \(3,\)"):
        dot(np.zeros(3), np.zeros(2))
    with pytest.raises(ValueError, match=r"b: has shape \(1,\), but a has shape \(70,\)"):
        dot(np.zeros(70), np.zeros(1))


@pytest.mark.parametrize("size", [1, 64, 65, 300])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "complex64", "complex128"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_even_times_zero(size: int, dtype: str, bad: float) -> None:
    spoilt, zeros = np.ones(size, dtype), np.zeros(size, dtype)
    spoilt[size // 2] = bad
    for a, b in ((spoilt, zeros), (zeros, spoilt)):
        with pytest.raises(NotFinite):
            dot(a, b)
    if spoilt.dtype.kind == "c":
        spoilt[size // 2] = complex(0, bad)
        with pytest.raises(NotFinite):
            dot(zeros.real, spoilt)


def test_exact_numbers_add_and_print() -> None:
    a, b = Exact(Fraction(3), Fraction(4)), Exact(Fraction(1, 2))
    assert (a + b, a - b) == (Exact(Fraction(7, 2), Fraction(4)), Exact(Fraction(5, 2), Fraction(4)))
    assert abs(a) == 5
    assert [str(a), str(b), str(b - a), str(ZERO)] == ["3+4j", "0.5", "-2.5-4j", "0"]


def test_exact_numbers_beyond_the_range_of_floats_still_print_and_compare() -> None:
    huge = dot(np.full(2, 1.7e308), np.full(2, 1.7e308)) + dot(np.array([0.5]), np.array([0.5]))
    assert abs(huge) == math.inf
    assert str(huge) == "inf"
    assert str(ZERO - huge) == "-inf"


def test_each_rank_contributes_its_counted_tensors_and_an_inactive_one_nothing() -> None:
    layout = Layout((2,), Partition((2,), (2, 0)), axes=(None,))
    x = (np.array([1.0, 2.0]),)
    for entry, counts in {"invariant": [0, 0, 1], "replicated": [1, 0, 1]}.items():
        space = Space(layout, types=[entry])
        held = [x, (np.zeros(0),), x]
        assert [pair_local(space, held[r], held[r], r) for r in range(3)] == [
            Exact(Fraction(5 * c)) for c in counts
        ]


@pytest.mark.parametrize("size", [65, 70, 200])
@pytest.mark.parametrize("exponent", [-60, -53, -1, 0, 1, 51, 52, 53, 54, 60])
def test_products_of_any_one_exponent_are_summed_exactly(size: int, exponent: int) -> None:
    """Among them those whose integers have the exponent zero, and single ones of a higher and a lower exponent."""
    a = np.ldexp(np.arange(1.0, size + 1) / 256, exponent)
    for first in (1.0, 2.0**-70, -(2.0**70)):
        b = np.ones(size)
        b[0] = first
        assert dot(a, b) == by_fractions(a, b)
        assert dot(np.full(size, 2.0**exponent), b) == by_fractions(np.full(size, 2.0**exponent), b)


@pytest.mark.parametrize(("a", "b"), [(2, 3), (3, 2), (70, 1), (1, 70), (0, 1), (1, 0)])
def test_vectors_of_other_lengths_have_no_product(a: int, b: int) -> None:
    with pytest.raises(ValueError, match=rf"^b: has shape \({b},\), but a has shape \({a},\)$"):
        dot(np.ones(a), np.ones(b))


def test_a_matrix_and_its_transpose_have_no_product() -> None:
    with pytest.raises(ValueError, match=r"^b: has shape \(3, 2\), but a has shape \(2, 3\)$"):
        dot(np.ones((2, 3)), np.ones((3, 2)))


def test_long_vectors_are_summed_in_numpy_and_short_ones_and_integers_in_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A number of Python for each element takes ten times as long as NumPy's; for few, NumPy's calls take longer."""
    used: list[str] = []
    for name in ("_whole", "_dot_in_limbs"):
        function = getattr(pairing, name)
        monkeypatch.setattr(pairing, name, lambda *given, n=name, f=function: (used.append(n), f(*given))[1])
    for size, dtypes, expected in (
        (1, "dd", "_whole"),
        (64, "ff", "_whole"),
        (65, "dd", "_dot_in_limbs"),
        (65, "ef", "_dot_in_limbs"),
        (65, "id", "_whole"),
        (65, "dB", "_whole"),
    ):
        used.clear()
        x, y = (np.full(size, 3).astype(dtype) for dtype in dtypes)
        assert dot(x, y) == Exact(Fraction(9 * size))
        assert set(used) == {expected}


@given(st.lists(st.builds(Exact, st.fractions(), st.sampled_from([0, 1, -3]).map(Fraction)), max_size=4))
@small
def test_a_sum_is_that_of_the_fractions(parts: list[Exact]) -> None:
    assert exact_sum(parts) == sum(parts, ZERO)
