"""Spaces: typed tensors, their duals and their bases. The table of local types is in test_local_types.py."""

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adjointlab.core.arrays import DTYPES, dtype
from adjointlab.core.bases import basis_vector, coordinates
from adjointlab.core.layout import Layout
from adjointlab.core.pairing import ZERO, Exact, pair_local
from adjointlab.core.partition import Partition
from adjointlab.core.space import LocalType, Space, Tensor, needs_messages

small = settings(max_examples=50, deadline=None)
TYPES = [entry.value for entry in LocalType]
CUT, COPIES = Layout((3,), (2,)), Layout((3,), (2,), axes=(None,))


@st.composite
def tensors(draw: st.DrawFn, name: str = "x", dtypes: tuple[str, ...] = ("float64",)) -> Tensor:
    sides = draw(st.lists(st.integers(1, 3), max_size=2))
    size = prod(sides)
    partition = Partition(sides, draw(st.permutations(range(size + draw(st.integers(0, 1)))))[:size])
    types = draw(st.lists(st.sampled_from(TYPES), min_size=len(sides), max_size=len(sides)))
    axes = [dim if entry == "varying" else None for dim, entry in enumerate(types)]
    layout = Layout([draw(st.integers(0, 3)) for _ in axes], partition, axes=axes)
    return Tensor(layout, draw(st.sampled_from(dtypes)), tuple(types), name)  # type: ignore[arg-type]


@st.composite
def spaces(draw: st.DrawFn, dtypes: tuple[str, ...] = ("float64",)) -> Space:
    return Space(*(draw(tensors(name, dtypes)) for name in "xyz"[: draw(st.integers(1, 2))]))


def everybody(space: Space) -> range:
    return range(max(space.ranks) + 2)


def pairing(space: Space, x: dict[int, tuple[Any, ...]], g: dict[int, tuple[Any, ...]]) -> Exact:
    total = ZERO
    for rank in everybody(space):
        total = total + pair_local(space, x[rank], g[rank], rank)
    return total


def basis(space: Space) -> list[dict[int, tuple[Any, ...]]]:
    return [{rank: basis_vector(space, i, rank) for rank in everybody(space)} for i in range(space.dimension)]


def random_element(space: Space, seed: int) -> dict[int, tuple[Any, ...]]:
    """A combination of the basis vectors."""
    weights = np.random.default_rng(seed).integers(-9, 10, (space.dimension, 2))
    everywhere_complex = all(tensor.element.is_complex for tensor in space.tensors)
    complex_weights = weights[:, 0] + 1j * weights[:, 1] if everywhere_complex else weights[:, 0]
    element = {rank: tuple(np.zeros_like(a) for a in v) for rank, v in zero(space).items()}
    for weight, vector in zip(complex_weights, basis(space), strict=True):
        for rank, local in vector.items():
            for total, part in zip(element[rank], local, strict=True):
                total += weight * part
    return element


def zero(space: Space) -> dict[int, tuple[Any, ...]]:
    return {
        rank: tuple(np.zeros(t.layout.local_shape(rank), t.dtype) for t in space.tensors)
        for rank in everybody(space)
    }


def combination(weight: complex, x: dict[int, tuple[Any, ...]], y: dict[int, tuple[Any, ...]]) -> Any:
    return {rank: tuple(weight * a + b for a, b in zip(x[rank], y[rank], strict=True)) for rank in x}


def times(weight: complex, value: Exact) -> Exact:
    a, b = int(complex(weight).real), int(complex(weight).imag)
    return Exact(a * value.real - b * value.imag, a * value.imag + b * value.real)


@pytest.mark.parametrize(
    ("entry", "dual"),
    [
        ("varying", "varying"),
        ("replicated", "partial"),
        ("partial", "replicated"),
        ("invariant", "invariant"),
    ],
)
def test_every_local_type_has_its_dual(entry: str, dual: str) -> None:
    assert LocalType(entry).dual is LocalType(dual)


@given(spaces())
@small
def test_the_dual_of_the_dual_is_the_space(space: Space) -> None:
    assert space.dual.dual == space
    assert [t.name for t in space.dual.tensors] == [t.name for t in space.tensors]
    assert [t.layout for t in space.dual.tensors] == [t.layout for t in space.tensors]
    assert [t.dtype for t in space.dual.tensors] == [t.dtype for t in space.tensors]


@given(spaces())
@small
def test_offsets_number_the_basis_without_gaps_and_are_shared_by_equal_copies(space: Space) -> None:
    covered: list[int] = []
    for position, tensor in enumerate(space.tensors):
        layout = tensor.layout
        for rank in everybody(space):
            start = space.offset(position, rank)
            assert (start is None) == (not layout.partition.is_active(rank))
            if start is not None and tensor.groups[rank] == rank:
                covered += range(start, start + layout.local_size(rank))
        for a, b in product(layout.partition.ranks, repeat=2):
            places = zip(layout.partition.index(a), layout.partition.index(b), tensor.types, strict=True)
            equal = all(i == j or entry.is_shared for i, j, entry in places)
            assert (tensor.groups[a] == tensor.groups[b]) == equal
            assert space.offset(position, a) == space.offset(position, b) or not equal
    assert sorted(covered) == list(range(space.dimension))


@given(spaces())
@small
def test_coordinates_of_basis_vectors_are_their_pairings_with_the_basis_of_the_dual(space: Space) -> None:
    dual = basis(space.dual)
    for e in basis(space):
        contributions = [coordinates(space, local, rank) for rank, local in e.items()]
        row = np.sum(contributions, axis=0)
        assert row.shape == (space.dual.dimension,)
        assert [int(entry) for entry in row] == [pairing(space, e, f).real for f in dual]


def copies(space: Space) -> list[int]:
    """For each basis vector, on how many ranks it stands, invariant copies once."""
    return [
        prod(
            side
            for side, entry in zip(tensor.layout.partition.shape, tensor.types, strict=True)
            if entry is LocalType.REPLICATED
        )
        for tensor in space.tensors
        for rank in tensor.layout.partition.ranks
        if tensor.groups[rank] == rank
        for _ in range(tensor.layout.local_size(rank))
    ]


@given(spaces())
@small
def test_a_basis_vector_meets_one_of_the_dual_for_each_copy_that_counts(space: Space) -> None:
    gram = np.array([[int(pairing(space, e, f).real) for f in basis(space.dual)] for e in basis(space)])
    gram = gram.reshape(space.dimension, space.dual.dimension)
    assert set(gram.ravel().tolist()) <= {0, 1}
    assert gram.sum(axis=1).tolist() == copies(space)
    assert gram.sum(axis=0).tolist() == copies(space.dual)


@given(spaces())
@small
def test_the_pairing_is_symmetric_between_a_space_and_its_dual(space: Space) -> None:
    x, g = random_element(space, 1), random_element(space.dual, 2)
    assert pairing(space, x, g) == pairing(space.dual, g, x)


@given(spaces(("float64", "complex128")), st.integers(-4, 4), st.integers(-4, 4))
@small
def test_the_pairing_is_linear_in_x_and_conjugate_linear_in_g(space: Space, real: int, imag: int) -> None:
    weight = complex(real, imag) if all(t.element.is_complex for t in space.tensors) else real
    x, y = random_element(space, 1), random_element(space, 2)
    g, h = random_element(space.dual, 3), random_element(space.dual, 4)
    assert pairing(space, combination(weight, x, y), g) == times(weight, pairing(space, x, g)) + pairing(
        space, y, g
    )
    conjugate = complex(weight).conjugate()
    assert pairing(space, x, combination(weight, g, h)) == times(conjugate, pairing(space, x, g)) + pairing(
        space, x, h
    )


@given(spaces())
@small
def test_an_invariant_copy_counts_once_and_all_else_as_often_as_it_is_held(space: Space) -> None:
    for tensor in space.tensors:
        partition = tensor.layout.partition
        expected = prod(
            1 if entry is LocalType.INVARIANT else side
            for entry, side in zip(tensor.types, partition.shape, strict=True)
        )
        assert sum(tensor.is_counted(rank) for rank in partition.ranks) == expected


@given(spaces())
@small
def test_summands_are_grouped_along_the_partial_dimensions_alone(space: Space) -> None:
    for tensor in space.tensors:
        partition = tensor.layout.partition
        for a, b in product(partition.ranks, repeat=2):
            places = zip(partition.index(a), partition.index(b), tensor.types, strict=True)
            together = all(i == j or entry is LocalType.PARTIAL for i, j, entry in places)
            assert (tensor.summands[a] == tensor.summands[b]) == together


def test_types_are_varying_by_default_and_may_be_strings() -> None:
    layout = Layout((3,), Partition((2, 2)), axes=(1,))
    assert Tensor(layout).types == (LocalType.VARYING,) * 2
    assert Space(layout, types=["partial", "varying"]).tensors[0].types == (
        LocalType.PARTIAL,
        LocalType.VARYING,
    )
    assert Space(layout, name="a") == Space(layout, name="b")
    assert hash(Space(layout, name="a")) == hash(Space(layout, name="b"))
    assert Space(layout) != Space(layout, dtype="float32")


def test_a_tensor_of_order_zero_has_one_basis_vector() -> None:
    space = Space(Layout((), Partition(()), axes=()), dtype="complex64")
    assert space.dimension == 1
    assert basis_vector(space, 0, 0)[0] == 1
    assert basis_vector(space, 0, 0)[0].shape == ()
    assert basis_vector(space, 0, 1)[0].shape == (0,)
    assert space.is_complex


def test_an_empty_space_has_dimension_zero() -> None:
    assert Space().dimension == Space(Layout((0,), Partition((2,)))).dimension == 0
    assert Space().dual == Space()


def test_bad_tensors_and_spaces_are_refused_with_their_values() -> None:
    copied, cut = Layout((3,), Partition((2,)), axes=(None,)), Layout((3,), Partition((2,)))
    with pytest.raises(ValueError, match="float8"):
        Tensor(copied, "float8")
    with pytest.raises(
        ValueError, match="types: 'shared' is not one of varying, replicated, partial, invariant"
    ):
        Space(copied, types=["shared"])
    with pytest.raises(ValueError, match=r"order 1 needs 1 local types, not \['partial', 'varying'\]"):
        Space(copied, types=["partial", "varying"])
    for entry in ("replicated", "partial", "invariant"):
        with pytest.raises(
            ValueError, match=rf"dimension 0 of the partition is {entry}.*\[3\] cut at 0\|2\|3"
        ):
            Space(cut, types=[entry])
    with pytest.raises(ValueError, match=r"\['x', 'x'\] are not distinct"):
        Space(copied, cut)
    with pytest.raises(ValueError, match=r"index: 3 is not in 0 \.\.\. 2"):
        basis_vector(Space(cut), 3, 0)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (
            lambda: LocalType("replicate"),
            ValueError,
            "types: 'replicate' is not one of varying, replicated, partial, invariant; did you mean replicated?",
        ),
        (lambda: LocalType(3), ValueError, "types: 3 is not one of varying, replicated, partial, invariant"),
        (lambda: Tensor((3,)), TypeError, "layout: (3,) is not a Layout"),
        (
            lambda: Tensor(COPIES, types="partial"),
            TypeError,
            "types: 'partial' is one string; give one local type for each partition dimension",
        ),
        *(
            (make, TypeError, "types: 3 is not a list of a local type for each dimension of the partition")
            for make in (lambda: Tensor(COPIES, types=3), lambda: Space(COPIES, types=3))
        ),
        *(
            (make, TypeError, "name: ['x'] is not a string")
            for make in (lambda: Tensor(COPIES, name=["x"]), lambda: Space(COPIES, name=["x"]))
        ),
        *(
            (make, ValueError, "name: it is empty; give the tensor a name, or leave it out for x")
            for make in (lambda: Tensor(COPIES, name=""), lambda: Space(COPIES, name=""))
        ),
        *(
            (
                make,
                TypeError,
                f"tensors: {given!r} is neither a Layout nor a Tensor; a Layout says which ranks hold which part of a shape, such as "
                "Layout((3,), Partition((2,)))",
            )
            for make, given in ((lambda: Space(COPIES, 3, 4), 3), (lambda: Space([COPIES]), [COPIES]))
        ),
        (
            lambda: Space(COPIES, types="partial"),
            TypeError,
            "types: 'partial' is one string; give one local type for each partition dimension",
        ),
        (
            lambda: Space(Layout((2,), (1, 1), axes=(0,)), types=["varying"]),
            ValueError,
            "types: a partition of order 2 needs 2 local types, not ['varying']",
        ),
        (
            lambda: Space(Layout((3,), (2, 2), axes=(1,)), types=["partial", "partial"]),
            ValueError,
            "types: dimension 1 of the partition is partial, but its workers hold different windows of [3] cut at 0|2|3 over "
            "ranks 0, 2, 1, 3; only a varying tensor is cut",
        ),
        (
            lambda: Space(Tensor(COPIES, name="b"), Tensor(COPIES, name="a"), Tensor(COPIES, name="b")),
            ValueError,
            "tensors: the names ['b', 'a', 'b'] are not distinct; give each tensor its own name",
        ),
    ],
)
def test_what_is_refused_is_named_with_what_would_be_legal(
    make: Callable[[], object], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as raised:
        make()
    assert str(raised.value) == message


@pytest.mark.parametrize("given", [dict(types=["invariant"]), dict(dtype="float32")])
def test_tensors_have_what_is_given_beside_them_or_the_space_is_refused(given: Any) -> None:
    (keyword,) = given
    text = rf"{keyword}=.* is for layouts .* the Tensor b has its own: write Tensor\(layout, {keyword}="
    with pytest.raises(ValueError, match=text):
        Space(Tensor(COPIES, name="a", **given), Tensor(COPIES, name="b"), **given)
    alike = Tensor(COPIES, name="a", **given)
    assert Space(alike, **given).tensors == Space(alike, COPIES, **given).tensors[:1] == (alike,)
    assert Space(alike, Tensor(COPIES, "int32", name="b"), COPIES, **given).tensors[1].dtype == "int32"


@pytest.mark.parametrize("entry", LocalType)
def test_local_types_print_as_python_reads_them(entry: LocalType) -> None:
    assert repr(entry) == f"LocalType.{entry.name}"


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (Space(CUT), "[3] cut at 0|2|3 float64"),
        (Space(COPIES, dtype="int32"), "[3] whole int32"),
        (Space(COPIES, types=["partial"]), "[3] whole float64 partial"),
        (
            Space(Layout((3,), (2, 2), axes=(1,)), types=["replicated", "varying"]),
            "[3] cut at 0|2|3 over ranks 0, 2, 1, 3 float64 replicated/varying",
        ),
        (
            Space(Tensor(CUT, name="a"), Tensor(COPIES, "int64", name="b")),
            "a: [3] cut at 0|2|3 float64, b: [3] whole int64",
        ),
        (Space(), ""),
    ],
)
def test_a_space_prints_its_tensors(space: Space, text: str) -> None:
    assert str(space) == text


def test_the_text_of_a_tensor_without_its_workers() -> None:
    tensor = Tensor(Layout((3,), Partition((2, 2)), axes=(1,)), types=("partial", "varying"))
    assert tensor.without_workers == "[3] cut at 0|2|3 float64 partial/varying"
    assert Tensor(Layout((3,), Partition((2,), (5, 7)))).without_workers == "[3] cut at 0|2|3 float64"


def test_groups_and_summands_begin_at_the_first_index_of_their_dimensions() -> None:
    layout = Layout((4,), Partition((2, 2, 2), (9, 8, 7, 6, 5, 4, 3, 2)), axes=(None,))
    tensor = Tensor(layout, types=("replicated", "partial", "varying"))
    assert tensor.groups == {9: 9, 8: 8, 7: 7, 6: 6, 5: 9, 4: 8, 3: 7, 2: 6}
    assert tensor.summands == {9: 9, 8: 8, 7: 9, 6: 8, 5: 5, 4: 4, 3: 5, 2: 4}


def test_spaces_fit_where_ranks_hold_the_same_whatever_the_grids_are() -> None:
    row, column = Partition((1, 4)), Partition((4, 1))
    one = Layout((6, 5), row, axes=(None, 1))
    assert Space(one).fits(Space(Layout((6, 5), Partition((4,)), axes=(None, 0))))
    assert Space(one).fits(Space(Layout((6, 5), row)))
    assert not Space(one).fits(Space(Layout((6, 5), column)))  # other windows
    assert not Space(one).fits(Space(Layout((6, 5), Partition((1, 4), (1, 2, 3, 4)))))  # other ranks
    assert not Space(one).fits(Space(one, dtype="float32"))
    whole, grid = Layout((3,), Partition((2, 2)), axes=(None,)), Layout((3,), Partition((4,)), axes=(None,))
    assert Space(whole, types=["partial", "partial"]).fits(Space(grid, types=["partial"]))
    assert not Space(whole, types=["partial", "replicated"]).fits(Space(grid, types=["partial"]))
    assert not Space(whole).fits(Space(grid, types=["invariant"]))
    assert not Space(whole, types=["partial", "varying"]).fits(Space(whole, types=["varying", "partial"]))


def test_only_spaces_fit_spaces_and_only_tensors_tensors() -> None:
    nothing: Any = None
    with pytest.raises(TypeError, match=r"^other: None is not an adjointlab\.Space$"):
        Space(CUT).fits(nothing)
    with pytest.raises(TypeError, match=r"^other: None is not an adjointlab\.Tensor$"):
        Tensor(CUT).fits(nothing)


def test_element_types_know_their_precision() -> None:
    for name, entry in DTYPES.items():
        assert dtype(name) is entry
        assert entry.name == name
        assert (entry.is_complex, entry.is_integer) == (name.startswith("complex"), name.startswith("int"))
        assert entry.in_numpy == ("float32" if name == "bfloat16" else name)
        bits = int(name.strip("abcdefghijklmnopqrstuvwxyz"))
        assert entry.itemsize * 8 == bits
        assert entry.real == (f"float{bits // 2}" if entry.is_complex else name)
        if name == "bfloat16":
            assert (entry.precision, entry.itemsize) == (8, 2)
        elif entry.is_integer:
            assert np.iinfo(name).max == 2**entry.precision - 1
        else:
            assert np.finfo(name).nmant + 1 == entry.precision
            assert np.dtype(name).itemsize == entry.itemsize
            assert np.finfo(name).dtype == entry.real
    with pytest.raises(ValueError, match="'float8' is not one of float64, float32"):
        dtype("float8")
    with pytest.raises(ValueError, match="is not one of"):
        dtype([])  # type: ignore[arg-type]


def test_an_element_type_is_given_by_its_name_or_as_a_type_of_numpy_or_torch() -> None:
    layout = Layout((3,), (1,))
    named = Space(layout, dtype="float32")
    torch = pytest.importorskip("torch")
    for each in (np.float32, np.dtype("float32"), torch.float32):
        assert Space(layout, dtype=each) == named
        assert Space(layout, dtype=each).tensors[0].dtype == "float32"
        tensor = Tensor(layout, each)
        assert (str(tensor), tensor) == ("[3] cut at 0|3 float32", named.tensors[0])
    with pytest.raises(ValueError, match="<class 'float'> is not one of float64"):
        Space(layout, dtype=float)


@pytest.mark.parametrize("grid", [Partition((2,)), Partition((2,), (1, 0))], ids=str)
def test_spaces_need_messages_where_a_rank_has_results_that_depend_on_others_data_alone(
    grid: Partition,
) -> None:
    cut, copies = Layout((4,), grid), Layout((4,), grid, axes=(None,))
    on_first, on_second = Layout((4,), Partition((1,))), Layout((4,), Partition((1,), (1,)))
    shared, partial = Space(copies, types=["invariant"]), Space(copies, types=["partial"])
    replicated = Space(copies, types=["replicated"])
    for domain, codomain in (
        (Space(on_first), Space(on_second)),
        (Space(cut), shared),
        (Space(cut), replicated),
        (Space(on_first), replicated),
        (partial, replicated),
        (partial, Space(cut)),  # the adjoint returns copies
    ):
        assert needs_messages(domain, codomain)
        assert needs_messages(codomain.dual, domain.dual)
    # What the adjoint alone needs, a check that never goes back does not miss.
    assert not needs_messages(partial, Space(cut), goes_back=False)
    assert needs_messages(Space(on_first), Space(on_second), goes_back=False)
    for domain, codomain in (
        (Space(cut), Space(cut)),
        (shared, shared),
        (replicated, Space(cut)),  # its adjoint's parts are summands, zero beyond the cut
        (Space(cut), partial),
        (Space(on_first), partial),  # summands of others are zero
        (Space(cut), Space(copies)),
    ):
        assert not needs_messages(domain, codomain)
        assert not needs_messages(codomain.dual, domain.dual)


def test_basis_vectors_and_coordinates_of_several_tensors_by_hand() -> None:
    grid = Partition((2, 2), (4, 3, 1, 0))
    copied = Layout((2,), grid, axes=(1,))  # windows of 1 along the second dimension, copies along the first
    space = Space(
        Tensor(Layout((5,), Partition((2,), (3, 1))), name="a"),
        Tensor(copied, types=("invariant", "varying"), name="b"),
        Tensor(copied, types=("partial", "varying"), name="c"),
        Tensor(copied, types=("replicated", "varying"), name="d"),
    )
    assert space.ranks == {0, 1, 3, 4}
    assert [[space.offset(tensor, rank) for rank in (4, 3, 1, 0, 2)] for tensor in range(4)] == [
        [None, 0, 3, None, None],
        [5, 6, 5, 6, None],
        [7, 8, 9, 10, None],
        [11, 12, 11, 12, None],
    ]
    assert (space.dimension, space.dual.dimension) == (13, 13)
    assert space.coordinate_rows == {
        (0, 3): slice(0, 3),
        (0, 1): slice(3, 5),
        (1, 4): slice(5, 6),
        (1, 3): slice(6, 7),
        (2, 4): slice(7, 8),
        (2, 3): slice(8, 9),
        (2, 1): slice(7, 8),
        (2, 0): slice(8, 9),
        (3, 4): slice(9, 10),
        (3, 3): slice(10, 11),
        (3, 1): slice(11, 12),
        (3, 0): slice(12, 13),
    }
    assert [[tensor.is_counted(rank) for rank in (4, 3, 1, 0, 2)] for tensor in space.tensors] == [
        [False, True, True, False, False],
        [True, True, False, False, False],
        [True, True, True, True, False],
        [True, True, True, True, False],
    ]


def test_an_empty_local_tensor_has_no_coordinates() -> None:
    space = Space(Layout((1,), (3,)))
    assert space.coordinate_rows == {(0, 0): slice(0, 1)}
    assert [space.offset(0, rank) for rank in range(4)] == [0, 1, 1, None]


def over(sides: tuple[int, ...], ranks: tuple[int, ...], types: list[str], axis: int | None = None) -> Space:
    return Space(Layout((4,), Partition(sides, ranks), axes=(axis,)), types=types)


# pairs of spaces, and whether they fit
FITTING = [
    (over((2,), (0, 1), ["varying"], 0), over((2, 1), (0, 1), ["varying"] * 2, 0), True),
    (over((2,), (0, 1), ["varying"], 0), over((2,), (1, 0), ["varying"], 0), False),
    (over((2,), (0, 1), ["varying"]), over((3,), (0, 1, 2), ["varying"]), False),
    (over((2,), (0, 1), ["varying"]), over((2,), (0, 2), ["varying"]), False),
    (over((2,), (0, 1), ["partial"]), over((1, 2), (0, 1), ["replicated", "partial"]), True),
    (over((2,), (0, 1), ["partial"]), over((2, 1), (0, 1), ["partial", "invariant"]), True),
    (over((2,), (0, 1), ["partial"]), over((2, 1), (0, 1), ["replicated", "partial"]), False),
    (over((3,), (0, 1, 2), ["replicated"]), over((3, 1), (2, 0, 1), ["replicated", "varying"]), True),
    (
        over((2, 2), (0, 1, 2, 3), ["partial", "replicated"]),
        over((2, 2), (0, 2, 1, 3), ["replicated", "partial"]),
        True,
    ),
    (
        over((2, 2), (0, 1, 2, 3), ["partial", "replicated"]),
        over((2, 2), (0, 1, 2, 3), ["replicated", "partial"]),
        False,
    ),
    (Space(Layout((4,), (1,))), Space(), False),
    (Space(Layout((4,), (2,))), Space(Layout.cut((4,), (2,), [(0, 3, 4)])), False),
    (Space(Layout((4,), (1,))), Space(Layout((5,), (1,), [[(0, 4)]])), False),
]


@pytest.mark.parametrize(("one", "other", "do_fit"), FITTING)
def test_spaces_fit_both_ways_or_not_at_all(one: Space, other: Space, do_fit: bool) -> None:
    assert one.fits(other) is other.fits(one) is do_fit
    assert one.fits(one)
    pair = Space(
        *(Tensor(t.layout, t.dtype, t.types, name) for name, t in zip("ab", one.tensors * 2, strict=False))
    )
    assert not pair.fits(one)
    assert not one.fits(pair)


def test_a_space_is_complex_where_some_tensor_is() -> None:
    real, complex_ = Tensor(CUT, name="a"), Tensor(CUT, "complex64", name="b")
    assert [Space(*tensors).is_complex for tensors in ((real,), (complex_,), (real, complex_), ())] == [
        False,
        True,
        True,
        False,
    ]
