"""Entry by entry: <F e_i, f_j> = <e_i, F* f_j> for the basis of the domain and that of the codomain's dual.

Given linearity, which is sampled (:mod:`adjointlab.checks.linearity`), equality of all entries is a proof for the case,
and the first differing entry names the bug.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adjointlab.checks.check import Check, Spaces
from adjointlab.checks.compare import place
from adjointlab.checks.context import CheckContext
from adjointlab.checks.finite import returned_not_finite
from adjointlab.checks.schedule_invariant import MatrixResult, ScheduleInvariant
from adjointlab.checks.verdict import MatrixEntry, Verdict, coherent, incoherent
from adjointlab.core.operator import contributions
from adjointlab.core.space import Space

__all__ = ["MatrixCheck", "Observation", "Witness", "locate"]

_Matrix = np.ndarray[Any, Any]

_SAMPLE = 24
_DENSE = 2**22


@dataclass(frozen=True)
class Observation:
    """One rank's contributions to the probed rows and columns."""

    columns: tuple[int, ...]  # i, of the domain
    rows: tuple[int, ...]  # j, of the codomain's dual
    forward: _Matrix  # <F e_i, f_j> for probed i and all j
    adjoint: _Matrix  # <e_i, F* f_j> for all i and probed j
    apart: str  # the direction in which a basis vector alone gave another column than in its batch, if any
    tolerance: float
    gain: int  # as declared; 0 where it is not


@dataclass(frozen=True)
class Witness:
    """The first matrix entry on which the two directions disagree."""

    column: int
    row: int
    source: str  # the input element and its rank
    target: str  # the output element and its rank
    forward: complex
    adjoint: complex

    def lines(self) -> tuple[tuple[str, str], ...]:
        """As a report says it."""
        return (
            ("forward", f"moves {self.source} to {self.target} with weight {_weight(self.forward)}"),
            ("adjoint", f"gives that entry weight {_weight(self.adjoint)}"),
        )


@dataclass(frozen=True)
class MatrixCheck(Check):
    """Probe at most `limit` basis vectors on each side; all of them where there are no more (a proof).

    A matrix of more than 2**22 entries is sampled, whatever the limit: it would not fit beside its copies.
    """

    limit: int = _SAMPLE
    name = "matrix"

    def observe(self, context: CheckContext) -> Observation:
        domain, codomain = context.domain, context.codomain
        dual = codomain.dual
        limit = self.limit if domain.dimension * dual.dimension <= _DENSE else min(self.limit, _SAMPLE)
        columns = _chosen(domain.dimension, limit, context.setting.seed)
        rows = _chosen(dual.dimension, limit, context.setting.seed + 1)
        library, rank = context.library, context.rank
        batched = context.operator.batched
        forward = contributions(domain, codomain, columns, context.forward, rank, library, batched)
        adjoint = contributions(dual, domain.dual, rows, context.adjoint, rank, library, batched)
        apart = ""
        if batched:
            # One vector at a time as a cross-check, since that is how an operator is used.
            seed = context.setting.seed
            if columns and not _same(
                domain, codomain, columns, context.forward, forward, rank, library, seed
            ):
                apart = "forward"
            if rows and not _same(dual, domain.dual, rows, context.adjoint, adjoint, rank, library, seed):
                apart = "adjoint"
        return Observation(
            columns,
            rows,
            forward,
            np.conj(adjoint.T),
            apart,
            # Entries that both directions compute alike are equal; others differ by the rounding of a coefficient.
            4 * 2.0**-context.precision,
            context.operator.gain or 0,
        )

    def judge(self, spaces: Spaces, observations: Sequence[Observation]) -> Verdict:
        first = observations[0]
        if verdict := _not_finite(spaces, observations):
            return verdict
        for rank, seen in enumerate(observations):
            if seen.apart:
                return incoherent(
                    f"{seen.apart} gives something else for a batch than for its members one by one",
                    ("rank", str(rank)),
                )
        witness = find_witness(spaces, observations)
        proved = len(first.columns) == first.forward.shape[1] == first.adjoint.shape[1] and (
            len(first.rows) == first.forward.shape[0]
        )
        figures: dict[str, float | str] = {
            "entries": len(first.columns) * len(first.rows),
            "proved": "all entries" if proved else "a sample",
        }
        if witness is None:
            row_sum = _largest_row_sum(observations)
            if first.gain and row_sum > first.gain:
                return incoherent(
                    "the declared gain is too small, so exact tests would not be exact",
                    ("declared", str(first.gain)),
                    ("row sum", f"{row_sum:g}"),
                    figures=figures,
                )
            return coherent(**figures)
        return incoherent(
            "adjoint is not the transpose of forward",
            *witness.lines(),
            kind="matrix",
            figures=figures,
            entry=MatrixEntry(witness.column, witness.row),
        )

    def schedule_invariants(
        self, spaces: Spaces, observations: Sequence[Observation]
    ) -> Mapping[str, ScheduleInvariant]:
        found: dict[str, ScheduleInvariant] = {}
        for direction in ("forward", "adjoint"):
            matrix = np.sum([getattr(seen, direction) for seen in observations], axis=0)
            whole = bool(np.all(matrix == np.round(matrix)))
            scale = 0.0 if whole else float(np.abs(matrix).max(initial=0.0))
            found[f"the matrix of {direction}"] = MatrixResult(matrix, observations[0].tolerance * scale)
        return found


def _not_finite(spaces: Spaces, observations: Sequence[Observation]) -> Verdict | None:
    for direction, axis, space in (("forward", 0, spaces.codomain.dual), ("adjoint", 1, spaces.domain)):
        for rank, seen in enumerate(observations):
            matrix: _Matrix = getattr(seen, direction)
            wrong = np.argwhere(~np.isfinite(matrix))
            if len(wrong):
                value = "nan" if np.isnan(matrix[tuple(wrong[0])]) else "inf"
                return returned_not_finite(direction, rank, locate(space, int(wrong[0][axis])), value)
    return None


def _same(
    source: Space,
    target: Space,
    indices: Sequence[int],
    apply: Callable[[Sequence[Any]], Sequence[Any]],
    seen: _Matrix,
    rank: int,
    library: str,
    seed: int,
) -> bool:
    """Whether a basis vector applied alone gives the column that this rank saw of it in a batch."""
    column = seed % len(indices)
    alone = contributions(source, target, [indices[column]], apply, rank, library, batched=False)
    return bool(np.array_equal(alone[:, 0], seen[:, column], equal_nan=True))


def _largest_row_sum(observations: Sequence[Observation]) -> float:
    """Of either direction, as far as it was probed: a lower bound of the gain."""
    forward = np.sum([seen.forward for seen in observations], axis=0)
    sizes = np.abs(forward.real) + np.abs(forward.imag)
    return float(max(sizes.sum(axis=0).max(initial=0.0), sizes.sum(axis=1).max(initial=0.0)))


def find_witness(spaces: Spaces, observations: Sequence[Observation]) -> Witness | None:
    """The first entry, by column, that differs between the directions."""
    first = observations[0]
    forward = np.sum([seen.forward for seen in observations], axis=0)[list(first.rows), :]
    adjoint = np.sum([seen.adjoint for seen in observations], axis=0)[:, list(first.columns)]
    if spaces.mixed:
        forward, adjoint = forward.real, adjoint.real
    scale = max((float(np.abs(m).max(initial=0.0)) for m in (forward, adjoint)), default=0.0)
    # Whole numbers are exact; a coefficient may be rounded once or twice on its way.
    whole = bool(np.all(forward == np.round(forward)))
    wrong = ~(np.abs(forward - adjoint) <= (0.0 if whole else first.tolerance * scale))
    if not wrong.any():
        return None
    column, row = (int(index) for index in np.argwhere(wrong.T)[0])
    return Witness(
        first.columns[column],
        first.rows[row],
        locate(spaces.domain, first.columns[column]),
        locate(spaces.codomain.dual, first.rows[row]),
        complex(forward[row, column]),
        complex(adjoint[row, column]),
    )


def locate(space: Space, index: int) -> str:
    """The element that a basis vector stands on: name, global index, and its (first) rank."""
    for position, tensor in enumerate(space.tensors):
        for rank in tensor.layout.partition.ranks:
            start = space.offset(position, rank)
            assert start is not None
            if start <= index < start + tensor.layout.local_size(rank):
                local = np.unravel_index(index - start, tensor.layout.local_shape(rank))
                return place(tensor, rank, [int(i) for i in local])
    raise ValueError(f"index: {index} is not below the dimension {space.dimension}")


def _chosen(dimension: int, limit: int, seed: int) -> tuple[int, ...]:
    if dimension <= limit:
        return tuple(range(dimension))
    chosen = np.random.default_rng(seed).choice(dimension, size=limit, replace=False)
    return tuple(sorted(int(i) for i in chosen))


def _weight(value: complex) -> str:
    if np.isnan(value):
        return "NaN"
    return f"{value.real:g}" if not value.imag else f"{value:g}"
