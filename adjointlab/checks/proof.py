"""The proof: every entry of forward is the specification's, and adjoint is the transpose.

This proves a case given linearity, which is sampled: a random vector, applied alone and not in a batch, must have the image that
the matrix gives it, in each form of the operator. Copies that are declared equal share their basis vectors, so the
matrix does not show them separately; they are compared with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from adjointlab.checks.check import BothDirections, Check, DirectedSpaces, Spaces
from adjointlab.checks.context import CheckContext
from adjointlab.checks.elements import Local, is_whole, unequal_copies_verdict
from adjointlab.checks.evidence import Evidence
from adjointlab.checks.forms import other_forms
from adjointlab.checks.matrix import Witness, first_witness
from adjointlab.checks.program_matrix import program_matrix
from adjointlab.checks.verdict import Figure, Figures, MatrixEntry, Verdict, coherent, incoherent, unjudged
from adjointlab.core import arrays
from adjointlab.core.bases import LinearMap, combination
from adjointlab.core.operator import Direction
from adjointlab.core.program import Program
from adjointlab.core.space import Space
from adjointlab.core.splitmix import hashed, mixed
from adjointlab.typing import Array, NumpyArray

__all__ = ["PROOF", "ProofCheck"]

_LARGEST_INTEGER = 64
"""Bound of the random vectors' integers, so that their images are exact in float64 as well."""


_ROUNDS: Final = (
    "its results round, and a proof compares them bit by bit",
    ("so", "`adjointlab check` is for it: its check `matrix` allows for rounding"),
)


_MIXED: Final = (
    "some of its tensors are real and others complex, and a proof has no basis vectors times i",
    ("so", "`adjointlab check` is for it: its check `adjoint` draws complex numbers"),
)
"""Without these vectors, faults that are found are real, but a map that is linear only over the reals may pass."""


@dataclass(frozen=True)
class ProbedDirection:
    """One direction as observed on one rank.

    `columns` has an array of shape (elements, images) for each tensor of the target: this rank's local tensors of the images as columns.
    First come the images of all basis vectors, then those of `vector` in each of the `forms`.
    """

    columns: tuple[NumpyArray, ...]
    vector: NumpyArray  # coordinates of a random vector, the same on all ranks
    forms: tuple[str, ...]  # the plain form, which comes first, has no name
    copies: Local | None  # image of the random vector, if some of its copies are declared equal


@dataclass(frozen=True)
class ProofObservation:
    """Both directions as observed on one rank; rank 0 adds the specification."""

    directions: BothDirections[ProbedDirection]
    specification: tuple[Program, Program] | None
    precision: int


class ProofCheck(Check[ProofObservation]):
    """For small cases, and for exhaustive runs over all of them: the whole matrix of both directions."""

    name = "proof"

    def observe(self, context: CheckContext) -> ProofObservation:
        forward, adjoint = _directions(context.domain, context.codomain)
        bound = min(context.arithmetic.integers(), _LARGEST_INTEGER)
        return ProofObservation(
            BothDirections(
                _probed(context, forward, context.forward, bound),
                _probed(context, adjoint, context.adjoint, bound),
            ),
            context.programs if context.rank == 0 else None,
            context.arithmetic.precision,
        )

    def judge(self, spaces: Spaces, observations: Sequence[ProofObservation]) -> Verdict:
        first, *_ = observations
        matrices = BothDirections(
            *map(
                _matrix,
                _directions(spaces.domain, spaces.codomain),
                zip(*(seen.directions for seen in observations), strict=True),
            )
        )
        figures: Figures = {Figure.ENTRIES: matrices.forward.entries.size}
        for matrix, program in zip(matrices, first.specification or (), strict=False):
            if verdict := _compared_with_specification(matrix, program, figures):
                return verdict
        if verdict := _transposed(spaces, matrices, first.precision, figures):
            return verdict
        for matrix in matrices:
            if verdict := _on_random_vector(matrix, first.precision, figures):
                return verdict
        for (direction, _, target), _, _, ranks in matrices:
            copies = [each.copies for each in ranks if each.copies is not None]
            if copies and (verdict := unequal_copies_verdict(direction, target, copies)):
                return verdict
        return unjudged(*_MIXED) if spaces.mixed else coherent(figures)


class _Matrix(NamedTuple):
    """One direction as observed on all ranks: its matrix, and the images of the random vector, a column for each form."""

    spaces: DirectedSpaces
    entries: NumpyArray
    images: NumpyArray
    ranks: Sequence[ProbedDirection]


def _matrix(spaces: DirectedSpaces, ranks: Sequence[ProbedDirection]) -> _Matrix:
    columns = _columns(spaces.target, ranks)
    width = len(ranks[0].vector)
    return _Matrix(spaces, columns[:, :width], columns[:, width:], ranks)


def _compared_with_specification(matrix: _Matrix, program: Program, figures: Figures) -> Verdict | None:
    direction, source, target = matrix.spaces
    of_adjoint = direction is Direction.ADJOINT
    expected = program_matrix(program, source, target)
    names = (str(direction), "specification")
    witness = _differing(matrix.entries, expected, source, target.dual, names, of_adjoint=of_adjoint)
    if witness is None:
        return None
    place = (witness.column, witness.row)
    return incoherent(
        f"{direction} is not what its specification says",
        (direction, witness.lines()[0][1]),
        ("program", witness.lines()[1][1]),
        figures=figures,
        # In either direction, an entry is named by e_i of the domain and f_j of the codomain's dual.
        entry=MatrixEntry(*(place[::-1] if of_adjoint else place), witness.second),
        evidence=Evidence(matrices=witness.matrices),
    )


def _transposed(
    spaces: Spaces, matrices: BothDirections[_Matrix], precision: int, figures: Figures
) -> Verdict | None:
    one, other = matrices.forward.entries, np.conj(matrices.adjoint.entries.T)
    if spaces.mixed:  # the pairing is the real part
        one, other = one.real, other.real
    witness = _differing(one, other, spaces.domain, spaces.codomain.dual)
    if witness is None:
        return None
    if _may_be_rounding(one, other, precision):
        return unjudged(*_ROUNDS)
    return incoherent(
        "adjoint is not the transpose of forward",
        *witness.lines(),
        figures=figures,
        entry=MatrixEntry(witness.column, witness.row),
        evidence=Evidence(matrices=witness.matrices),
    )


def _on_random_vector(matrix: _Matrix, precision: int, figures: Figures) -> Verdict | None:
    first, *_ = matrix.ranks
    expected = matrix.entries @ first.vector
    for form, image in zip(first.forms, matrix.images.T, strict=True):
        if (image == expected).all():
            continue
        if _may_be_rounding(image, expected, precision):
            return unjudged(*_ROUNDS)
        name = f"{matrix.spaces.direction} {form}".rstrip()
        return incoherent(f"{name} gives a random vector another image than its matrix does", figures=figures)
    return None


def _directions(domain: Space, codomain: Space) -> BothDirections[DirectedSpaces]:
    """The spaces of both directions: the same objects for all ranks, so that their cached properties are computed once."""
    names = tuple(tensor.name for tensor in (*domain.tensors, *codomain.tensors))
    return _shared_directions(domain, codomain, names)


@lru_cache(maxsize=64)
def _shared_directions(
    domain: Space, codomain: Space, names: tuple[str, ...]
) -> BothDirections[DirectedSpaces]:
    # `names` is only part of the key: equality of spaces ignores names.
    return Spaces(domain, codomain).directions()


@lru_cache(maxsize=8)  # for all ranks of the running case
def _random_vector(
    seed: int, direction: Direction, bound: int, dimension: int, *, is_complex: bool
) -> NumpyArray:
    key = mixed(2 * seed + (direction is Direction.ADJOINT))
    vector = _random_integers(key, bound, dimension)
    if is_complex:
        # A map that is linear only over the reals, such as the real part, has the right images of basis vectors.
        vector = vector + 1j * _random_integers(mixed(key), bound, dimension)
    vector.flags.writeable = False
    return vector


def _random_integers(key: int, bound: int, number: int) -> NumpyArray:
    bits = hashed(np.arange(number, dtype=np.uint64), key)
    return (bits % np.uint64(2 * bound + 1)).astype(np.int64) - bound


def _probed(
    context: CheckContext,
    spaces: DirectedSpaces,
    apply: Callable[[Sequence[Array]], tuple[Array, ...]],
    bound: int,
) -> ProbedDirection:
    (direction, source, target), rank, library = spaces, context.rank, context.library
    width = source.dimension
    linear_map = LinearMap(source, target, apply, rank, library, context.operator.batched)
    # Each image is copied before the next call: an operator may reuse the memory that it returns.
    images = [_as_columns(target, image, rank, batch) for image, batch in linear_map.images(range(width))]
    is_complex = all(tensor.element.is_complex for tensor in (*source.tensors, *target.tensors))
    vector = _random_vector(context.setting.seed, direction, bound, width, is_complex=is_complex)
    local = combination(source, vector, rank, library)
    plain = apply(local)
    images.append(_as_columns(target, plain, rank))
    has_copies = any(rank != first for rank, first in _declared_equal(target))
    copies = context.numpy(plain) if has_copies else None
    forms = other_forms(context.operator, direction, local, plain, context.forms_left_out)
    images += [_as_columns(target, form.result, rank) for form in forms]
    return ProbedDirection(
        tuple(np.concatenate(parts, axis=1) for parts in zip(*images, strict=True)),
        vector,
        ("", *(form.name for form in forms)),
        copies,
    )


def _declared_equal(space: Space) -> Iterator[tuple[int, int]]:
    """For each tensor, each rank with the first rank whose local tensor is declared equal to its own."""
    for tensor in space.tensors:
        yield from tensor.groups.items()


def _as_columns(
    space: Space, local: Sequence[Array], rank: int, batch: tuple[int, ...] = ()
) -> tuple[NumpyArray, ...]:
    """Copies of local tensors, or of a batch of them, each as an array of shape (elements, b)."""
    return tuple(
        np.array(arrays.to_numpy(array), _element_type(space)).reshape(
            tensor.layout.local_size(rank), *(batch or (1,))
        )
        for tensor, array in zip(space.tensors, local, strict=True)
    )


def _element_type(space: Space) -> type[np.number[Any]]:
    return np.complex128 if space.is_complex else np.float64


def _columns(space: Space, ranks: Sequence[ProbedDirection]) -> NumpyArray:
    """The coordinates of the images on all ranks together, one column for each."""
    first, *_ = ranks
    columns = np.zeros((space.dual.dimension, len(first.vector) + len(first.forms)), _element_type(space))
    for (position, rank), rows in space.coordinate_rows.items():
        columns[rows] += ranks[rank].columns[position]
    return columns


def _may_be_rounding(one: NumpyArray, other: NumpyArray, precision: int) -> bool:
    """Return True if some numbers are fractions, and all agree in half of their digits."""
    if is_whole(one, precision) and is_whole(other, precision):
        return False
    largest = max(float(np.abs(each).max(initial=0.0)) for each in (one, other))
    return bool((np.abs(one - other) <= 2.0 ** (-precision / 2) * largest).all())


def _differing(
    actual: NumpyArray,
    expected: NumpyArray,
    source: Space,
    target: Space,
    names: tuple[str, str] = ("forward", "adjoint, transposed"),
    *,
    of_adjoint: bool = False,
) -> Witness | None:
    rows, columns = (range(side) for side in actual.shape)
    bases = (source, columns), (target, rows)
    wrong = actual != expected  # NaN equals nothing
    return first_witness((actual, expected), wrong, bases, names, of_adjoint=of_adjoint)


PROOF = ProofCheck()
