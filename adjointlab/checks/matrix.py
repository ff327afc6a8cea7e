"""The matrix test: <F e_i, f_j> = <e_i, F* f_j> for e_i of the domain's basis and f_j of that of the codomain's dual.

Given linearity, which is sampled (:mod:`adjointlab.checks.linearity`), equality of all entries is a proof for the case, and
the first entry that differs names the fault: which element on which rank moves where, and its weight in each direction.
A basis vector of a replicated or invariant tensor is 1 on all its ranks at once, one of a varying or partial tensor on one rank.

Integer entries must be equal; the rounding of others is measured (:mod:`adjointlab.checks.probed_matrices`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np

from adjointlab.checks.check import AnyCheck, Check, ObservationT, Spaces
from adjointlab.checks.compared import OF_SPECIFICATION, Bases, compared, locate
from adjointlab.checks.context import CheckContext
from adjointlab.checks.declarations import declaration_hint
from adjointlab.checks.elements import SMALL, Tolerance, is_whole, returned_not_finite
from adjointlab.checks.evidence import ComparedMatrices, Evidence, unlike_texts
from adjointlab.checks.hints import scaled_alike_hint
from adjointlab.checks.linearity import LINEARITY
from adjointlab.checks.probed_matrices import (
    SAMPLE,
    ProbedMatrices,
    entry_tolerance,
    probed,
    summed,
)
from adjointlab.checks.program_matrix import program_matrix
from adjointlab.checks.schedule_invariant import MatrixResult, ScheduleInvariant
from adjointlab.checks.verdict import (
    PERHAPS,
    Figure,
    Figures,
    MatrixEntry,
    Status,
    Verdict,
    coherent,
    incoherent,
)
from adjointlab.core.operator import Direction
from adjointlab.typing import NumpyArray

__all__ = ["MATRIX", "WITNESS", "MatrixCheck", "Witness", "WitnessedCheck", "first_witness"]

_SPECIFIED = 2**16
"""Largest number of entries of a matrix that is shown with that of the specification, which takes as much memory again, and time."""


_TRANSPOSE: Final = "matrix"
"""Kind of failure of an entry that the two directions give differently."""


@dataclass(frozen=True)
class Witness:
    """First entry in which two matrices differ that should be equal: those of both directions, or one and its specification's."""

    column: int
    row: int
    source: str  # the input element and its rank
    target: str  # the output element and its rank
    first: complex  # the entry in the first of the matrices, which is forward's if directions are compared
    second: complex
    matrices: ComparedMatrices  # around the entry

    def lines(self) -> tuple[tuple[str, str], ...]:
        """Lines of a report, one for each direction, and the possible causes of a small difference."""
        first, second = unlike_texts(self.first, self.second)
        is_small = abs(self.first - self.second) < SMALL * abs(self.first)
        return (
            (Direction.FORWARD, f"moves {self.source} to {self.target} with weight {first}"),
            (Direction.ADJOINT, f"gives that entry weight {second}"),
            *((PERHAPS,) if is_small else ()),
        )


class WitnessedCheck(Check[ObservationT]):
    """A check whose failures are explained by the wrong matrix entry."""

    def follow_up(self) -> AnyCheck | None:
        return WITNESS

    def explained(self, verdict: Verdict, answer: Verdict | None) -> Verdict:
        if answer is None or answer.status is not Status.INCOHERENT:
            return verdict
        if answer.kind != _TRANSPOSE:  # something else is wrong, such as the declared gain
            return answer
        return replace(verdict, lines=answer.lines, entry=answer.entry, evidence=answer.evidence)

    def premise(self) -> AnyCheck | None:
        return LINEARITY


@dataclass(frozen=True)
class MatrixCheck(WitnessedCheck[ProbedMatrices]):
    """Probes at most `limit` basis vectors on each side; if there are no more than that, it is a proof.

    A matrix of more than 2**22 entries is sampled, whatever the limit, and a very large one with fewer columns.
    """

    limit: int = SAMPLE
    name = "matrix"
    order: ClassVar[int | None] = 20
    share = 0.5

    def observe(self, context: CheckContext) -> ProbedMatrices:
        return probed(context, self.limit)

    def judge(self, spaces: Spaces, observations: Sequence[ProbedMatrices]) -> Verdict:
        first, *_ = observations
        if verdict := _not_finite(spaces, observations):
            return verdict
        if verdict := _unlike_batch(observations):
            return verdict
        witness = find_witness(spaces, observations)
        # The adjoint's matrix has all columns, the forward's all rows. If the pairing is the real part, the bases of complex tensors
        # also have the vectors i e_j, which are not probed.
        proved = first.matrices.forward.shape == first.matrices.adjoint.shape and not spaces.mixed
        figures: Figures = {
            Figure.ENTRIES: len(first.columns) * len(first.rows),
            Figure.PROVED: "all entries" if proved else "a sample",
        }
        if witness is not None:
            return incoherent(
                "adjoint is not the transpose of forward",
                *witness.lines(),
                *_explained_by_graph(observations),
                kind=_TRANSPOSE,
                figures=figures,
                entry=MatrixEntry(witness.column, witness.row),
                evidence=Evidence(matrices=witness.matrices),
            )
        row_sum = _largest_row_sum(observations)
        if first.gain and row_sum > first.gain + _rounding_of_row_sum(observations, row_sum):
            _, shown = unlike_texts(first.gain, row_sum)
            return incoherent(
                "the declared gain is too small, so exact tests would not be exact",
                ("declared", str(first.gain)),
                ("row sum", shown),
                (
                    "advice",
                    "declare that number, or give an attribute that means something else another name",
                ),
                figures=figures,
            )
        return coherent(figures)

    def schedule_invariants(
        self, spaces: Spaces, observations: Sequence[ProbedMatrices]
    ) -> Mapping[str, ScheduleInvariant]:
        tolerance, precision = entry_tolerance(observations), observations[0].precision
        return {
            f"the matrix of {direction}": MatrixResult(matrix, _allowed(matrix, tolerance, precision))
            for direction, matrix in zip(Direction, summed(observations), strict=True)
        }


@dataclass(frozen=True)
class WitnessCheck(MatrixCheck):
    """The matrix test without sampling, for a case that has been shrunk: it names the wrong entry."""

    limit: int = 4096
    name = "witness"
    order = None

    def follow_up(self) -> None:
        return None

    def observe(self, context: CheckContext) -> ProbedMatrices:
        seen = super().observe(context)
        programs = None
        if context.rank == 0:
            with suppress(Exception):  # user code may raise; then the picture does without the specification
                programs = context.programs
        return replace(seen, programs=programs)

    def judge(self, spaces: Spaces, observations: Sequence[ProbedMatrices]) -> Verdict:
        """The verdict of the matrix test; its evidence, even if it is coherent, shows the specification's matrix too."""
        verdict = super().judge(spaces, observations)
        matrices = beside_specification(verdict.evidence, spaces, observations)
        if matrices is None and verdict.evidence is not None:
            matrices = verdict.evidence.matrices
        if matrices is None:
            return verdict
        declaration = "" if verdict.is_coherent else _declaration(spaces, observations)
        return replace(verdict, evidence=Evidence(matrices=replace(matrices, declaration=declaration)))


def _declaration(spaces: Spaces, observations: Sequence[ProbedMatrices]) -> str:
    forward, adjoint = summed(observations)
    if forward.shape != adjoint.shape or forward.size > _SPECIFIED:
        return ""
    return declaration_hint(spaces.domain, spaces.codomain, forward, adjoint)


def beside_specification(
    evidence: Evidence | None, spaces: Spaces, observations: Sequence[ProbedMatrices]
) -> ComparedMatrices | None:
    """The matrices of the evidence with that of the specification; without evidence, a matrix that differs from the specification's."""
    programs, (forward, adjoint) = observations[0].programs, summed(observations)
    if programs is None or forward.shape != adjoint.shape or forward.size > _SPECIFIED:
        return None
    try:
        of_forward, of_adjoint = (
            program_matrix(program, source, target)
            for program, (_, source, target) in zip(programs, spaces.directions(), strict=True)
        )
    except (ValueError, KeyError):  # programs between other buffers, which other checks report
        return None
    if evidence is not None and evidence.matrices is not None:
        hint = evidence.matrices.hint if np.array_equal(forward, of_forward) else None
        return replace(evidence.matrices.beside(OF_SPECIFICATION, of_forward), hint=hint)
    rows, columns = (range(side) for side in forward.shape)
    bases = (spaces.domain, columns), (spaces.codomain.dual, rows)
    for name, actual, expected in (
        ("forward", forward, of_forward),
        ("adjoint, transposed", adjoint, of_adjoint.T),
    ):
        wrong = ~(actual == expected)
        if wrong.any():
            found = compared((name, OF_SPECIFICATION), (actual, expected), wrong, bases)
            alike = scaled_alike_hint((forward, of_forward), (adjoint, of_adjoint.T), _active(spaces))
            return replace(found, hint=alike or found.hint)
    return None


def _active(spaces: Spaces) -> int:
    """Number of ranks that hold a part of some tensor."""
    return len({rank for tensor in spaces.tensors for rank in tensor.layout.partition.ranks})


def _explained_by_graph(observations: Sequence[ProbedMatrices]) -> list[tuple[str, str]]:
    """Lines on outputs that do not require a gradient: their backward pass does nothing."""
    ranks_of: dict[str, list[str]] = {}
    for rank, seen in enumerate(observations):
        for name in seen.without_graph:
            ranks_of.setdefault(name, []).append(str(rank))
    return [
        (
            "no graph",
            f"the output {name} does not require a gradient (rank {', '.join(ranks)}), so nothing goes back from it",
        )
        for name, ranks in ranks_of.items()
    ]


def _not_finite(spaces: Spaces, observations: Sequence[ProbedMatrices]) -> Verdict | None:
    # The axis of the outputs: rows of forward's matrix, columns of adjoint's, which is stored transposed.
    outputs = ((0, spaces.codomain.dual), (1, spaces.domain))
    found = spaces.outputs(seen.matrices for seen in observations)
    for (direction, _, matrices), (axis, space) in zip(found, outputs, strict=True):
        for rank, matrix in enumerate(matrices):
            place = next(iter(np.argwhere(~np.isfinite(matrix))), None)
            if place is not None:
                value = "nan" if np.isnan(matrix[tuple(place)]) else "inf"
                return returned_not_finite(direction, rank, locate(space, int(place[axis])), value)
    return None


def _unlike_batch(observations: Sequence[ProbedMatrices]) -> Verdict | None:
    """Verdict on a direction in which the image of a basis vector alone differs from that in its batch by more than rounding."""
    for number, direction in enumerate(Direction):
        if not observations[0].alone[number].positions:
            continue
        allowed = _allowed_of_batch(observations, number)
        for rank, seen in enumerate(observations):
            if not (np.abs(seen.alone[number].differences) <= allowed).all():  # false for NaN
                return incoherent(
                    f"{direction} gives something else for a batch than for its members one by one",
                    ("rank", str(rank)),
                )
    return None


def _allowed_of_batch(observations: Sequence[ProbedMatrices], number: int) -> float | NumpyArray:
    """Allowed difference of single vectors' images from the columns of their batch: none if all entries are integers.

    A product with a matrix adds in another order than one with a vector, so it rounds differently.
    """
    first, *_ = observations
    if all(
        is_whole(matrix, first.precision)
        for seen in observations
        for matrix in (seen.matrices[number], seen.alone[number].differences)
    ):
        return 0.0
    # Sizes of the summands of all ranks, not of their sum: each is rounded, and they may cancel.
    sizes = np.sum([np.abs(seen.matrices[number]) for seen in observations], axis=0)
    columns = sizes if number == 0 else sizes.T
    chosen = columns[:, list(first.alone[number].positions)]
    # Relative to the row and the column, as in `find_witness`.
    of_rows = columns.max(axis=1, initial=0.0)[:, None]
    largest = np.minimum(chosen.max(axis=0, initial=0.0), of_rows)
    return entry_tolerance(observations).allowed_in(largest)


def _allowed(matrix: NumpyArray, tolerance: Tolerance, precision: int) -> float:
    """Allowed difference between two computations of `matrix`: none if all entries are integers."""
    return 0.0 if is_whole(matrix, precision) else tolerance.allowed(float(np.abs(matrix).max(initial=0.0)))


def _largest_row_sum(observations: Sequence[ProbedMatrices]) -> float:
    """Largest absolute row sum of the probed entries of either direction: a lower bound of the gain."""
    forward = summed(observations).forward
    sizes = np.abs(forward.real) + np.abs(forward.imag)
    return float(max(sizes.sum(axis=0).max(initial=0.0), sizes.sum(axis=1).max(initial=0.0)))


def _rounding_of_row_sum(observations: Sequence[ProbedMatrices], row_sum: float) -> float:
    """Bound on the rounding error of a row sum: that of an entry for each term, and one rounding of the sum for each."""
    forward, precision = summed(observations).forward, observations[0].precision
    if is_whole(forward, precision):
        return 0.0
    terms: int = max(forward.shape)
    return row_sum * (entry_tolerance(observations).relative + terms * 2.0**-53)


def find_witness(spaces: Spaces, observations: Sequence[ProbedMatrices]) -> Witness | None:
    """Return the first entry, by column, that differs between the directions."""
    first, *_ = observations
    whole_columns, whole_rows = summed(observations)
    forward, adjoint = whole_columns[list(first.rows), :], whole_rows[:, list(first.columns)]
    if spaces.mixed:
        forward, adjoint = forward.real, adjoint.real
    allowed: float | NumpyArray = 0.0
    if not (is_whole(forward, first.precision) and is_whole(adjoint, first.precision)):
        # Relative to the row and the column, because blocks of a matrix may differ very much in size.
        of_columns = np.abs(whole_columns).max(axis=0, initial=0.0)
        of_rows = np.abs(whole_rows).max(axis=1, initial=0.0)
        largest = np.minimum(
            np.maximum(of_columns, np.abs(adjoint).max(axis=0, initial=0.0)),
            np.maximum(of_rows, np.abs(forward).max(axis=1, initial=0.0))[:, None],
        )
        allowed = entry_tolerance(observations).allowed_in(largest)
    wrong = ~(np.abs(forward - adjoint) <= allowed)
    bases = (spaces.domain, first.columns), (spaces.codomain.dual, first.rows)
    return first_witness((forward, adjoint), wrong, bases)


def first_witness(
    matrices: tuple[NumpyArray, NumpyArray],
    wrong: NumpyArray,
    bases: Bases,
    names: tuple[str, str] = ("forward", "adjoint, transposed"),
    *,
    of_adjoint: bool = False,
) -> Witness | None:
    """Return the first entry, by column, of the `matrices` where `wrong` is true; None if it is nowhere.

    The arguments are those of :func:`~adjointlab.checks.compared.compared`.
    """
    if not wrong.any():
        return None
    (source, columns), (target, rows) = bases
    column, row = (int(index) for index in np.argwhere(wrong.T)[0])
    one, other = matrices
    return Witness(
        columns[column],
        rows[row],
        locate(source, columns[column]),
        locate(target, rows[row]),
        complex(one[row, column]),
        complex(other[row, column]),
        compared(names, matrices, wrong, bases, of_adjoint=of_adjoint),
    )


MATRIX, WITNESS = MatrixCheck(), WitnessCheck()
