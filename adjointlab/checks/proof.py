"""The proof: every entry of forward is the specification's, and adjoint is the transpose.

A proof for the case, given linearity, which is sampled: a random vector, applied alone and not in a batch, has the image that
the matrix gives it, in each form that the operator has. Copies that are declared equal share their basis vectors, so that the
matrix does not see them one by one; they are compared with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from adjointlab.checks.check import BothDirections, Check, Spaces
from adjointlab.checks.context import CheckContext
from adjointlab.checks.elements import Local, unequal_copies_verdict
from adjointlab.checks.evidence import Evidence
from adjointlab.checks.forms import other_forms
from adjointlab.checks.matrix import Witness, first_witness
from adjointlab.checks.program_matrix import program_matrix
from adjointlab.checks.verdict import Figure, Figures, MatrixEntry, Verdict, coherent, incoherent
from adjointlab.core import arrays
from adjointlab.core.operator import Direction, contributions, coordinates
from adjointlab.core.program import Program
from adjointlab.core.space import Space
from adjointlab.typing import Array, NumpyArray

__all__ = ["PROOF", "ProofCheck"]

_LARGEST_INTEGER = 64
"""Bound of the random vectors' integers, so that their images, added up in float64, are exact as well."""


@dataclass(frozen=True)
class ProbedDirection:
    """One direction G, as one rank observed it."""

    matrix: NumpyArray  # this rank's contributions to <G e_i, f_j>, of shape (j, i)
    vector: NumpyArray  # coordinates of a random vector, which all ranks know
    images: dict[str, NumpyArray]  # contributions to its image, by form; the plain form has no name
    copies: Local | None  # image of a random element, if some of its copies are declared equal


@dataclass(frozen=True)
class ProofObservation:
    """Both directions, as one rank observed them; rank 0 adds the specification."""

    directions: BothDirections[ProbedDirection]
    specification: tuple[Program, Program] | None


class ProofCheck(Check[ProofObservation]):
    """For small cases, and for exhaustive runs over all of them: the whole matrix of both directions."""

    name = "proof"

    def observe(self, context: CheckContext) -> ProofObservation:
        domain, codomain = context.domain, context.codomain
        return ProofObservation(
            BothDirections(
                _probed(context, Direction.FORWARD, domain, codomain, context.forward),
                _probed(context, Direction.ADJOINT, codomain.dual, domain.dual, context.adjoint),
            ),
            context.programs if context.rank == 0 else None,
        )

    def judge(self, spaces: Spaces, observations: Sequence[ProofObservation]) -> Verdict:
        parts = [ranks for _, _, ranks in spaces.outputs(seen.directions for seen in observations)]
        forward, adjoint = (np.sum([each.matrix for each in ranks], axis=0) for ranks in parts)
        figures: Figures = {Figure.ENTRIES: forward.size}
        programs = observations[0].specification
        for (direction, source, target), program, matrix in zip(
            spaces.directions(), programs or (), (forward, adjoint), strict=False
        ):
            of_adjoint = direction is Direction.ADJOINT
            expected = program_matrix(program, source, target)
            names = (str(direction), "specification")
            if witness := _differing(matrix, expected, source, target.dual, names, of_adjoint=of_adjoint):
                place = (witness.column, witness.row)
                return incoherent(
                    f"{direction} is not what its specification says",
                    (direction, witness.lines()[0][1]),
                    ("program", witness.lines()[1][1]),
                    figures=figures,
                    # An entry is named by e_i of the domain and f_j of the codomain's dual, whichever direction maps which.
                    entry=MatrixEntry(*(place[::-1] if of_adjoint else place), witness.adjoint),
                    evidence=Evidence(matrices=witness.matrices),
                )
        if witness := _differing(forward, np.conj(adjoint.T), spaces.domain, spaces.codomain.dual):
            return incoherent(
                "adjoint is not the transpose of forward",
                *witness.lines(),
                figures=figures,
                entry=MatrixEntry(witness.column, witness.row),
                evidence=Evidence(matrices=witness.matrices),
            )
        for (direction, _, _), part, matrix in zip(
            spaces.directions(), parts, (forward, adjoint), strict=True
        ):
            image = matrix @ part[0].vector
            for form in part[0].images:
                if not np.array_equal(image, np.sum([each.images[form] for each in part], axis=0)):
                    return incoherent(
                        f"{f'{direction} {form}'.rstrip()} gives a random vector another image than its matrix does",
                        figures=figures,
                    )
        for (direction, _, target), part in zip(spaces.directions(), parts, strict=True):
            copies = [each.copies for each in part if each.copies is not None]
            if copies and (verdict := unequal_copies_verdict(direction, target, copies)):
                return verdict
        return coherent(figures)


def _probed(
    context: CheckContext,
    direction: Direction,
    source: Space,
    target: Space,
    apply: Callable[[Sequence[Array]], tuple[Array, ...]],
) -> ProbedDirection:
    rank, library, bound = context.rank, context.library, min(context.integers(), _LARGEST_INTEGER)
    basis = range(source.dimension)
    matrix = contributions(source, target, basis, apply, rank, library, context.operator.batched)
    random = np.random.default_rng((context.setting.seed, direction is Direction.ADJOINT))
    vector = random.integers(-bound, bound, len(basis), endpoint=True)
    local = combination(source, vector, rank, library)
    plain = apply(local)
    images = {"": coordinates(target, plain, rank)}
    for form in other_forms(context.operator, direction, local, plain):
        images[form.name] = coordinates(target, form.result, rank)
    copies = None
    if any(rank != first for tensor in target.tensors for rank, first in tensor.groups.items()):
        element = context.primal(0, bound) if direction is Direction.FORWARD else context.dual(0, bound)
        copies = context.numpy(apply(element))
    return ProbedDirection(matrix, vector, images, copies)


def combination(space: Space, vector: NumpyArray, rank: int, library: str) -> tuple[Array, ...]:
    """Return what `rank` holds of the element of `space` with the coordinates `vector` in its basis."""
    local = []
    for position, tensor in enumerate(space.tensors):
        start, size = space.offset(position, rank), tensor.layout.local_size(rank)
        values = vector[start : start + size] if start is not None else vector[:0]
        shaped = np.asarray(values).reshape(tensor.layout.local_shape(rank))
        local.append(arrays.from_numpy(shaped, tensor.dtype, library))
    return tuple(local)


def _differing(
    actual: NumpyArray,
    expected: NumpyArray,
    source: Space,
    target: Space,
    names: tuple[str, str] = ("forward", "adjoint, transposed"),
    *,
    of_adjoint: bool = False,
) -> Witness | None:
    wrong = ~(actual == expected)  # NaN equals nothing
    rows, columns = (range(side) for side in actual.shape)
    return first_witness(wrong, actual, expected, source, target, columns, rows, names, of_adjoint=of_adjoint)


PROOF = ProofCheck()
