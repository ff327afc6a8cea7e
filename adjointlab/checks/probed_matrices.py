"""Columns of the matrices of an operator and of its adjoint, as one rank probes them; and the rounding that they show.

The rounding of an entry depends on intermediates, which a matrix does not show: a second difference of smoothed values loses half of
its digits, a copy none. So it is measured: some basis vectors are applied again times small integers, which round differently wherever
something rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from adjointlab.checks.check import BothDirections
from adjointlab.checks.context import CheckContext
from adjointlab.checks.elements import Tolerance
from adjointlab.checks.measured_rounding import (
    ROUNDING_FACTORS,
    MeasuredRounding,
    residual_rounding,
    times,
)
from adjointlab.core.bases import LinearMap
from adjointlab.core.operator import AdaptedOperator, Direction, has_program
from adjointlab.core.program import Program
from adjointlab.typing import NumpyArray

__all__ = [
    "SAMPLE",
    "ProbedMatrices",
    "Repeated",
    "entry_tolerance",
    "probed",
    "summed",
]

SAMPLE = 24
"""Number of basis vectors that are probed in either direction of an ordinary case."""

_DENSE = 2**22
"""Largest number of entries of a matrix that is probed as a whole: 32 MiB on every rank, and as much again for each comparison."""


_KEPT = 2**24
"""Largest number of elements of sampled columns on all ranks together; each rank keeps whole columns. One column is always probed."""

_REPEATED = 3
"""Number of basis vectors on each side that are applied again."""


@dataclass(frozen=True)
class Repeated:
    """One rank's contributions to the changes in the images of some probed vectors when they were applied again.

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
    gain: int  # as declared; 0 if it is not
    # Outputs that do not require a gradient here, though torch has to differentiate them.
    without_graph: tuple[str, ...] = ()
    programs: tuple[Program, Program] | None = None  # the specification, on rank 0 if it is needed
    repeated: BothDirections[Repeated] = field(default_factory=_not_repeated)  # times a factor
    alone: BothDirections[Repeated] = field(default_factory=_not_repeated)  # not in their batch
    precision: int = 53


def probed(context: CheckContext, limit: int) -> ProbedMatrices:
    """Probe at most `limit` basis vectors on each side, and of a very large matrix fewer. Collective."""
    forward, adjoint = map(context.linear_map, Direction)
    dimension, dual_dimension = forward.source.dimension, adjoint.source.dimension
    seed = context.setting.seed
    if dimension * dual_dimension > _DENSE:
        largest = max(dimension, dual_dimension) * context.comm.Get_size()
        limit = min(limit, SAMPLE, max(1, _KEPT // largest))
    # Drawn from the case's seed, so the same on all ranks: a probe is collective.
    columns, rows = _chosen(dimension, limit, seed), _chosen(dual_dimension, limit, seed + 1)
    matrix, alone = _columns(context, forward, columns)
    adjoint_matrix, adjoint_alone = _columns(context, adjoint, rows)
    return ProbedMatrices(
        columns,
        rows,
        BothDirections(matrix, np.conj(adjoint_matrix.T)),
        _of_coefficients(context),
        context.operator.gain or 0,
        _without_graph(context),
        repeated=BothDirections(
            _repeated(context, forward, columns, matrix), _repeated(context, adjoint, rows, adjoint_matrix)
        ),
        alone=BothDirections(alone, adjoint_alone),
        precision=context.arithmetic.precision,
    )


def _without_graph(context: CheckContext) -> tuple[str, ...]:
    operator, rank = context.operator, context.rank
    numbers = operator.without_graph if isinstance(operator, AdaptedOperator) else frozenset[int]()
    outputs = [operator.codomain.tensors[number] for number in sorted(numbers)]
    return tuple(tensor.name for tensor in outputs if tensor.layout.local_size(rank))


def _columns(
    context: CheckContext, linear_map: LinearMap, indices: Sequence[int]
) -> tuple[NumpyArray, Repeated]:
    """This rank's contributions to the columns `indices`, and the change in one vector's image if it is not in a batch."""
    matrix = linear_map.contributions(indices)
    if not linear_map.batched or not indices:
        return matrix, Repeated()
    # Users apply an operator to one vector at a time, and a batch may take another path through its code.
    column = context.setting.seed % len(indices)
    alone = replace(linear_map, batched=False).contributions([indices[column]])
    with np.errstate(all="ignore"):  # the judge reports values that are not finite
        return matrix, Repeated((column,), alone - matrix[:, [column]])


def _of_coefficients(context: CheckContext) -> float:
    """Legal relative difference of entries that are not integers, in addition to measured rounding.

    A coefficient of one third is rounded when it is stored, and again when it is applied. If no gain is declared, two
    formulas for a cosine may differ by many units in the last place; in half precision that many would be a fault.
    """
    unit, declared = 2.0**-context.arithmetic.precision, context.operator.rounding or 0.0
    return max(4 * unit, min(256 * unit, 2.0**-16) if context.operator.gain is None else 0.0, declared)


def _repeated(
    context: CheckContext, linear_map: LinearMap, indices: Sequence[int], matrix: NumpyArray
) -> Repeated:
    """Apply some of the basis vectors `indices`, whose images are the columns of `matrix`, again times each factor."""
    if has_program(context.operator) or context.arithmetic.has_integers or not indices:
        return Repeated()  # nothing rounds
    seed, number = context.setting.seed, len(indices)
    positions = tuple(sorted({(seed + number * part // _REPEATED) % number for part in range(_REPEATED)}))
    chosen = [indices[position] for position in positions]
    differences = []
    for factor in ROUNDING_FACTORS:
        # Half precision may overflow; values that are not finite are left out of the measurement.
        with np.errstate(all="ignore"):
            images = replace(linear_map, apply=times(factor, linear_map.apply)).contributions(chosen)
            differences.append(images / factor - matrix[:, list(positions)])
    return Repeated(positions, np.concatenate(differences, axis=1))


def entry_tolerance(observations: Sequence[ProbedMatrices]) -> Tolerance:
    """Return the measured tolerance for an entry: relative to the largest in its column, and an absolute one."""
    first, *_ = observations
    measured = _measured(observations).with_margin(first.precision)
    return Tolerance(first.tolerance + measured.relative, absolute=measured.residual)


def _measured(observations: Sequence[ProbedMatrices]) -> MeasuredRounding:
    """The largest changes in an entry when a basis vector is multiplied by a factor."""
    first, *_ = observations
    relative, residual = [0.0], [0.0]
    forward, adjoint = summed(observations)
    for matrix, number in ((forward, 0), (adjoint.T, 1)):
        if not first.repeated[number].positions:
            continue
        with np.errstate(all="ignore"):  # values that are not finite are left out
            changes = np.abs(np.sum([seen.repeated[number].differences for seen in observations], axis=0))
            sizes = np.abs(matrix[:, list(first.repeated[number].positions) * len(ROUNDING_FACTORS)])
            largest = sizes.max(axis=0, initial=0.0)
            of_columns = changes.max(axis=0, initial=0.0)[largest > 0] / largest[largest > 0]
        relative.extend(of_columns[np.isfinite(of_columns)])
        residual.append(residual_rounding(changes, sizes, first.precision))
    return MeasuredRounding(float(max(relative)), max(residual))


def summed(observations: Sequence[ProbedMatrices]) -> BothDirections[NumpyArray]:
    """The probed columns of both directions, summed over all ranks."""
    forward, adjoint = zip(*(seen.matrices for seen in observations), strict=True)
    return BothDirections(np.sum(forward, axis=0), np.sum(adjoint, axis=0))


def _chosen(dimension: int, limit: int, seed: int) -> tuple[int, ...]:
    if dimension <= limit:
        return tuple(range(dimension))
    chosen = np.random.default_rng(seed).choice(dimension, size=limit, replace=False)
    return tuple(sorted(int(i) for i in chosen))
