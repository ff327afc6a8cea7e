"""The matrix test: <F e_i, f_j> = <e_i, F* f_j> for e_i of the domain's basis and f_j of that of the codomain's dual.

Given linearity, which is sampled (:mod:`adjointlab.checks.linearity`), equality of all entries is a proof for the case, and
the first entry that differs names the fault: which element on which rank moves where, and the weight each direction gives it.
A basis vector of a replicated or invariant tensor stands on all its ranks at once, one of a varying or partial tensor on one.

Entries that are integers are equal. What may round the others depends on what stands between, which a matrix does not show: a
second difference of smoothed values loses half of their digits, a copy none. So it is measured: some basis vectors are applied again
times small integers, which rounds otherwise wherever something rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

import numpy as np

from adjointlab.checks.check import AnyCheck, BothDirections, Check, ObservationT, Spaces
from adjointlab.checks.compared import SPECIFICATION, Bases, compared, locate
from adjointlab.checks.context import CheckContext
from adjointlab.checks.declarations import declaration_hint
from adjointlab.checks.elements import SMALL, is_whole, returned_not_finite
from adjointlab.checks.evidence import ComparedMatrices, Evidence, unlike_texts
from adjointlab.checks.gain import (
    ROUNDING_FACTORS,
    ROUNDING_MARGIN,
    Apply,
    largest_rounding,
    times,
)
from adjointlab.checks.hints import scaled_alike_hint
from adjointlab.checks.program_matrix import program_matrix
from adjointlab.checks.schedule_invariant import MatrixResult, ScheduleInvariant
from adjointlab.checks.verdict import Figure, Figures, MatrixEntry, Status, Verdict, coherent, incoherent
from adjointlab.core.operator import AdaptedOperator, Direction, contributions, has_program
from adjointlab.core.program import Program
from adjointlab.core.space import Space
from adjointlab.typing import Array, NumpyArray

__all__ = [
    "MATRIX",
    "PERHAPS",
    "WITNESS",
    "MatrixCheck",
    "Witness",
    "WitnessedCheck",
    "first_witness",
]

_SAMPLE = 24
"""Basis vectors that are probed in either direction of an ordinary case."""

_DENSE = 2**22
"""Most entries of a matrix that is probed as a whole: 32 MiB on every rank, and as much again for each comparison."""


_KEPT = 2**24
"""Most elements of sampled columns that all ranks keep together; each rank keeps whole columns. One column is always probed."""

_SPECIFIED = 2**16
"""Most entries of a matrix beside which that of the specification is shown: it takes as much memory again, and time."""


_TRANSPOSE: Final = "matrix"
"""Kind of failure of an entry that the two directions give differently."""

_REPEATED = 3
"""Basis vectors on each side that are applied again."""


@dataclass(frozen=True)
class Repeated:
    """One rank's contributions to what some probed vectors gave otherwise when they were applied again.

    `differences` is of shape (elements, vectors).
    """

    positions: tuple[int, ...] = ()  # of the vectors, among those that were probed
    differences: NumpyArray = field(default_factory=lambda: np.zeros((0, 0)))


def _not_repeated() -> BothDirections[Repeated]:
    return BothDirections(Repeated(), Repeated())


@dataclass(frozen=True)
class ProbedMatrices:
    """One rank's contributions to the probed columns of forward and of adjoint, and facts that all ranks share."""

    columns: tuple[int, ...]  # i, of the domain
    rows: tuple[int, ...]  # j, of the codomain's dual
    # <F e_i, f_j> for probed i and all j; <e_i, F* f_j> for all i and probed j: both of shape (j, i)
    matrices: BothDirections[NumpyArray]
    tolerance: float
    gain: int  # as declared; 0 where it is not
    # Outputs that do not require a gradient here, though torch is to differentiate.
    without_graph: tuple[str, ...] = ()
    programs: tuple[Program, Program] | None = None  # the specification, where rank 0 was asked for it
    repeated: BothDirections[Repeated] = field(default_factory=_not_repeated)  # times a factor
    alone: BothDirections[Repeated] = field(default_factory=_not_repeated)  # and not in their batch
    precision: int = 53


@dataclass(frozen=True)
class Witness:
    """First entry in which two matrices differ that ought to be equal: those of both directions, or one and its specification's."""

    column: int
    row: int
    source: str  # the input element and its rank
    target: str  # the output element and its rank
    first: complex  # the entry in the first of the matrices, which is that of forward where directions are compared
    second: complex
    matrices: ComparedMatrices  # around the entry

    def lines(self) -> tuple[tuple[str, str], ...]:
        """Lines of a report, one for each direction, and what a small difference may come from."""
        first, second = unlike_texts(self.first, self.second)
        is_small = abs(self.first - self.second) < SMALL * abs(self.first)
        return (
            (Direction.FORWARD, f"moves {self.source} to {self.target} with weight {first}"),
            (Direction.ADJOINT, f"gives that entry weight {second}"),
            *((PERHAPS,) if is_small else ()),
        )


PERHAPS: Final = (
    "perhaps",
    "a cast to a narrower element type, a solver that stops at a tolerance, or an ill-conditioned one: how far it may be off is declared as `rounding`",
)
"""Of relative errors below :data:`~adjointlab.checks.elements.SMALL`."""


class WitnessedCheck(Check[ObservationT]):
    """A check whose failures are explained by the matrix entry that is wrong."""

    def follow_up(self) -> AnyCheck | None:
        return WITNESS

    def explained(self, verdict: Verdict, answer: Verdict | None) -> Verdict:
        if answer is None or answer.status is not Status.INCOHERENT:
            return verdict
        if answer.kind != _TRANSPOSE:  # something else is wrong, such as the gain that is declared
            return answer
        return replace(verdict, lines=answer.lines, entry=answer.entry, evidence=answer.evidence)


@dataclass(frozen=True)
class MatrixCheck(WitnessedCheck[ProbedMatrices]):
    """Probes at most `limit` basis vectors on each side; all of them where there are no more, which is a proof.

    A matrix of more than 2**22 entries is sampled, whatever the limit, and of a very large one fewer columns.
    """

    limit: int = _SAMPLE
    name = "matrix"
    order: ClassVar[int | None] = 20
    share = 0.5

    def observe(self, context: CheckContext) -> ProbedMatrices:
        domain, codomain = context.domain, context.codomain
        dual, seed = codomain.dual, context.setting.seed
        limit = self.limit
        if domain.dimension * dual.dimension > _DENSE:
            largest = max(domain.dimension, dual.dimension) * context.comm.Get_size()
            limit = min(limit, _SAMPLE, max(1, _KEPT // largest))
        # Drawn from the case's seed, so alike on all ranks: a probe is collective.
        columns, rows = _chosen(domain.dimension, limit, seed), _chosen(dual.dimension, limit, seed + 1)
        forward, alone = _probed(context, domain, codomain, columns, context.forward)
        adjoint, adjoint_alone = _probed(context, dual, domain.dual, rows, context.adjoint)
        return ProbedMatrices(
            columns,
            rows,
            BothDirections(forward, np.conj(adjoint.T)),
            _of_coefficients(context),
            context.operator.gain or 0,
            _without_graph(context),
            repeated=BothDirections(
                _repeated(context, domain, codomain, columns, forward, context.forward),
                _repeated(context, dual, domain.dual, rows, adjoint, context.adjoint),
            ),
            alone=BothDirections(alone, adjoint_alone),
            precision=context.arithmetic.precision,
        )

    def judge(self, spaces: Spaces, observations: Sequence[ProbedMatrices]) -> Verdict:
        first, *_ = observations
        if verdict := _not_finite(spaces, observations):
            return verdict
        if verdict := _unlike_batch(observations):
            return verdict
        witness = find_witness(spaces, observations)
        # The adjoint's matrix has all columns, the forward's all rows. Where the pairing is the real part, complex tensors have the
        # vectors i e_j in their bases too, which are not probed.
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
                figures=figures,
            )
        return coherent(figures)

    def schedule_invariants(
        self, spaces: Spaces, observations: Sequence[ProbedMatrices]
    ) -> Mapping[str, ScheduleInvariant]:
        tolerance, precision = _tolerance(observations), observations[0].precision
        return {
            f"the matrix of {direction}": MatrixResult(matrix, _allowed(matrix, tolerance, precision))
            for direction, matrix in zip(Direction, _summed(observations), strict=True)
        }


@dataclass(frozen=True)
class WitnessCheck(MatrixCheck):
    """The matrix test without a sample, for a case that is shrunk already: it names the entry that is wrong."""

    limit: int = 4096
    name = "witness"
    order = None

    def follow_up(self) -> None:
        return None

    def observe(self, context: CheckContext) -> ProbedMatrices:
        seen = super().observe(context)
        programs = None
        if context.rank == 0:
            with suppress(Exception):  # of the user's code; a picture without the specification is still one
                programs = context.programs
        return replace(seen, programs=programs)

    def judge(self, spaces: Spaces, observations: Sequence[ProbedMatrices]) -> Verdict:
        """The verdict of the matrix test; its evidence, also where it is coherent, shows the specification's matrix too."""
        verdict = super().judge(spaces, observations)
        matrices = beside_specification(verdict.evidence, spaces, observations)
        if matrices is None and verdict.evidence is not None:
            matrices = verdict.evidence.matrices
        if matrices is None:
            return verdict
        declaration = "" if verdict.is_coherent else _declaration(spaces, observations)
        return replace(verdict, evidence=Evidence(matrices=replace(matrices, declaration=declaration)))


def _declaration(spaces: Spaces, observations: Sequence[ProbedMatrices]) -> str:
    forward, adjoint = _summed(observations)
    if forward.shape != adjoint.shape or forward.size > _SPECIFIED:
        return ""
    return declaration_hint(spaces.domain, spaces.codomain, forward, adjoint)


def beside_specification(
    evidence: Evidence | None, spaces: Spaces, observations: Sequence[ProbedMatrices]
) -> ComparedMatrices | None:
    """The matrices of the evidence beside that of the specification; where there are none, those that differ from it."""
    programs, (forward, adjoint) = observations[0].programs, _summed(observations)
    if programs is None or forward.shape != adjoint.shape or forward.size > _SPECIFIED:
        return None
    try:
        of_forward, of_adjoint = (
            program_matrix(program, source, target)
            for program, (_, source, target) in zip(programs, spaces.directions(), strict=True)
        )
    except (ValueError, KeyError):  # programs between other buffers: other checks say so
        return None
    if evidence is not None and evidence.matrices is not None:
        hint = evidence.matrices.hint if np.array_equal(forward, of_forward) else None
        return replace(evidence.matrices.beside(SPECIFICATION, of_forward), hint=hint)
    rows, columns = (range(side) for side in forward.shape)
    bases = (spaces.domain, columns), (spaces.codomain.dual, rows)
    for name, actual, expected in (
        ("forward", forward, of_forward),
        ("adjoint, transposed", adjoint, of_adjoint.T),
    ):
        wrong = ~(actual == expected)
        if wrong.any():
            found = compared((name, SPECIFICATION), (actual, expected), wrong, bases)
            alike = scaled_alike_hint((forward, of_forward), (adjoint, of_adjoint.T), _active(spaces))
            return replace(found, hint=alike or found.hint)
    return None


def _active(spaces: Spaces) -> int:
    """Number of ranks that hold some tensor."""
    return len({rank for tensor in spaces.tensors for rank in tensor.layout.partition.ranks})


def _without_graph(context: CheckContext) -> tuple[str, ...]:
    operator, rank = context.operator, context.rank
    numbers = operator.without_graph if isinstance(operator, AdaptedOperator) else frozenset[int]()
    outputs = [operator.codomain.tensors[number] for number in sorted(numbers)]
    return tuple(tensor.name for tensor in outputs if tensor.layout.local_size(rank))


def _explained_by_graph(observations: Sequence[ProbedMatrices]) -> list[tuple[str, str]]:
    """Lines on outputs that require no gradient: their backward pass does nothing."""
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
    """Verdict on a direction in which a basis vector alone gave another column than in its batch, by more than rounding."""
    for number, direction in enumerate(Direction):
        if not observations[0].alone[number].positions:
            continue
        allowed = _allowed_of_batch(observations, number)
        for rank, seen in enumerate(observations):
            if not (np.abs(seen.alone[number].differences) <= allowed).all():  # NaN is not
                return incoherent(
                    f"{direction} gives something else for a batch than for its members one by one",
                    ("rank", str(rank)),
                )
    return None


def _allowed_of_batch(observations: Sequence[ProbedMatrices], number: int) -> float | NumpyArray:
    """Allowed difference of the vectors alone from the columns of their batch: none if all entries are whole.

    A product with a matrix is another sum than one with a vector, and so rounds otherwise.
    """
    first, *_ = observations
    if all(
        is_whole(matrix, first.precision)
        for seen in observations
        for matrix in (seen.matrices[number], seen.alone[number].differences)
    ):
        return 0.0
    # Of summands that cancel each is rounded, not their sum.
    sizes = np.sum([np.abs(seen.matrices[number]) for seen in observations], axis=0)
    columns = sizes if number == 0 else sizes.T
    chosen = columns[:, list(first.alone[number].positions)]
    # Relative to the row and the column, as in `find_witness`.
    of_rows = columns.max(axis=1, initial=0.0)[:, None]
    largest = np.minimum(chosen.max(axis=0, initial=0.0), of_rows)
    return np.asarray(_tolerance(observations) * largest)


def _probed(
    context: CheckContext,
    source: Space,
    target: Space,
    indices: Sequence[int],
    apply: Callable[[Sequence[Array]], Sequence[Array]],
) -> tuple[NumpyArray, Repeated]:
    """This rank's contributions to the columns `indices`, and what one vector gives otherwise alone than in its batch."""
    rank, library, batched = context.rank, context.library, context.operator.batched
    matrix = contributions(source, target, indices, apply, rank, library, batched)
    if not batched or not indices:
        return matrix, Repeated()
    # An operator is used on one vector at a time, and a batch may take another path through its code.
    column = context.setting.seed % len(indices)
    alone = contributions(source, target, [indices[column]], apply, rank, library, batched=False)
    with np.errstate(all="ignore"):  # what is not finite is for the judge to report
        return matrix, Repeated((column,), alone - matrix[:, [column]])


def _of_coefficients(context: CheckContext) -> float:
    """Relative difference that entries may have which are not whole, whatever rounds when they are applied.

    A third is rounded when it is stored, and again when it is applied. Where nobody declares anything of the coefficients, two
    formulas for a cosine may differ by many units in the last place; in half precision that many would be a fault.
    """
    unit, declared = 2.0**-context.arithmetic.precision, context.operator.rounding or 0.0
    return max(4 * unit, min(256 * unit, 2.0**-16) if context.operator.gain is None else 0.0, declared)


def _repeated(
    context: CheckContext,
    source: Space,
    target: Space,
    indices: Sequence[int],
    matrix: NumpyArray,
    apply: Apply,
) -> Repeated:
    """Apply some of the basis vectors `indices`, whose images are the columns of `matrix`, again times each factor."""
    if has_program(context.operator) or context.arithmetic.has_integers or not indices:
        return Repeated()  # nothing rounds
    seed, number = context.setting.seed, len(indices)
    positions = tuple(sorted({(seed + number * part // _REPEATED) % number for part in range(_REPEATED)}))
    chosen = [indices[position] for position in positions]
    differences = []
    for factor in ROUNDING_FACTORS:
        with np.errstate(
            all="ignore"
        ):  # what is not finite, as half precision may overflow, measures nothing
            images = contributions(
                source,
                target,
                chosen,
                times(factor, apply),
                context.rank,
                context.library,
                context.operator.batched,
            )
            differences.append(images / factor - matrix[:, list(positions)])
    return Repeated(positions, np.concatenate(differences, axis=1))


def _tolerance(observations: Sequence[ProbedMatrices]) -> float:
    """The difference that rounding may make to an entry, relative to the largest in its column: as it is measured."""
    first, *_ = observations
    measured = 0.0
    forward, adjoint = _summed(observations)
    for matrix, number in ((forward, 0), (adjoint.T, 1)):
        with np.errstate(all="ignore"):  # what is not finite measures nothing
            total = np.abs(np.sum([seen.repeated[number].differences for seen in observations], axis=0))
            columns = matrix[:, list(first.repeated[number].positions) * len(ROUNDING_FACTORS)]
            largest = np.abs(columns).max(axis=0, initial=0.0)
            relative = total.max(axis=0, initial=0.0)[largest > 0] / largest[largest > 0]
        measured = max(measured, float(relative[np.isfinite(relative)].max(initial=0.0)))
    return first.tolerance + min(ROUNDING_MARGIN * measured, largest_rounding(first.precision))


def _summed(observations: Sequence[ProbedMatrices]) -> BothDirections[NumpyArray]:
    forward, adjoint = zip(*(seen.matrices for seen in observations), strict=True)
    return BothDirections(np.sum(forward, axis=0), np.sum(adjoint, axis=0))


def _allowed(matrix: NumpyArray, tolerance: float, precision: int) -> float:
    """Allowed difference between two computations of `matrix`: none if all entries are whole."""
    return 0.0 if is_whole(matrix, precision) else tolerance * float(np.abs(matrix).max(initial=0.0))


def _largest_row_sum(observations: Sequence[ProbedMatrices]) -> float:
    """Largest absolute row sum of either direction, as far as it was probed: a lower bound of the gain."""
    forward = _summed(observations).forward
    sizes = np.abs(forward.real) + np.abs(forward.imag)
    return float(max(sizes.sum(axis=0).max(initial=0.0), sizes.sum(axis=1).max(initial=0.0)))


def _rounding_of_row_sum(observations: Sequence[ProbedMatrices], row_sum: float) -> float:
    """By how much rounding may put a row sum off: each of its terms as much as an entry, and their sum once for each."""
    forward, precision = _summed(observations).forward, observations[0].precision
    if is_whole(forward, precision):
        return 0.0
    terms: int = max(forward.shape)
    return row_sum * (_tolerance(observations) + terms * 2.0**-53)


def find_witness(spaces: Spaces, observations: Sequence[ProbedMatrices]) -> Witness | None:
    """Return the first entry, by column, that differs between the directions."""
    first, *_ = observations
    whole_columns, whole_rows = _summed(observations)
    forward, adjoint = whole_columns[list(first.rows), :], whole_rows[:, list(first.columns)]
    if spaces.mixed:
        forward, adjoint = forward.real, adjoint.real
    allowed: float | NumpyArray = 0.0
    if not (is_whole(forward, first.precision) and is_whole(adjoint, first.precision)):
        # Relative to the row and the column, for blocks of a matrix may be of very different sizes.
        of_columns = np.abs(whole_columns).max(axis=0, initial=0.0)
        of_rows = np.abs(whole_rows).max(axis=1, initial=0.0)
        largest = np.minimum(
            np.maximum(of_columns, np.abs(adjoint).max(axis=0, initial=0.0)),
            np.maximum(of_rows, np.abs(forward).max(axis=1, initial=0.0))[:, None],
        )
        allowed = _tolerance(observations) * largest
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
    """Return the first entry, by column, in which the `matrices` differ where `wrong` is true; None where it is nowhere.

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


def _chosen(dimension: int, limit: int, seed: int) -> tuple[int, ...]:
    if dimension <= limit:
        return tuple(range(dimension))
    chosen = np.random.default_rng(seed).choice(dimension, size=limit, replace=False)
    return tuple(sorted(int(i) for i in chosen))


MATRIX, WITNESS = MatrixCheck(), WitnessCheck()
