"""All entries: forward is the matrix of the specification, adjoint is its transpose.

A proof for the case, given linearity, which is sampled: a random vector, applied alone and not in a batch, has the
image that the matrix gives it, in each form that the operator has. Copies that are declared equal, which the matrix
does not see one by one, are compared there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adjointlab.checks.bench import Bench
from adjointlab.checks.check import Check, Spaces
from adjointlab.checks.compare import Local
from adjointlab.checks.declared import unequal_copies
from adjointlab.checks.forms import other_forms
from adjointlab.checks.matrix import Witness, locate
from adjointlab.checks.verdict import Entry, Verdict, coherent, incoherent
from adjointlab.core import arrays
from adjointlab.core.operator import basis_batch, contributions, coordinates
from adjointlab.core.program import Program, buffers
from adjointlab.core.space import Space

__all__ = ["ProofCheck"]

_Matrix = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Observation:
    """One rank's contributions to both matrices, and to the images of a random vector in both directions."""

    forward: _Matrix  # <F e_i, f_j>, of shape (j, i)
    adjoint: _Matrix  # <F* f_j, e_i>, of shape (i, j)
    images: dict[str, _Matrix]  # <F x, f_j>, by form; the form without a name is the plain one
    coimages: dict[str, _Matrix]  # <F* y, e_i>
    vectors: tuple[_Matrix, _Matrix]  # the coordinates of x and of y, which all ranks know
    copies: dict[str, Local]  # F x and F* y themselves, where some of their copies are declared equal
    specification: tuple[Program, Program] | None  # from rank 0


class ProofCheck(Check):
    """For small cases: the whole matrix of both directions, beside that of the specification where there is one."""

    name = "proof"

    def observe(self, bench: Bench) -> Observation:
        domain, codomain, rank = bench.domain, bench.codomain, bench.rank
        forward, x, images = _probed(bench, "forward", domain, codomain, bench.forward)
        adjoint, y, coimages = _probed(bench, "adjoint", codomain.dual, domain.dual, bench.adjoint)
        given = bench.operator.specification() if rank == 0 else None
        both = given if isinstance(given, tuple) or given is None else (given, given.adjoint())
        return Observation(forward, adjoint, images, coimages, (x, y), _copies(bench), both)

    def judge(self, spaces: Spaces, observations: Sequence[Observation]) -> Verdict:
        first = observations[0]
        forward = np.sum([seen.forward for seen in observations], axis=0)
        adjoint = np.sum([seen.adjoint for seen in observations], axis=0)
        entries: dict[str, float | str] = {"entries": forward.size}
        if first.specification is not None:
            for (direction, source, target), program, matrix in zip(
                spaces.sides(), first.specification, (forward, adjoint), strict=True
            ):
                expected = program_matrix(program, source, target)
                if witness := _differing(matrix, expected, source, target.dual):
                    place = (witness.column, witness.row)
                    return incoherent(
                        f"{direction} is not what its specification says",
                        (direction, witness.lines()[0][1]),
                        ("program", witness.lines()[1][1]),
                        figures=entries,
                        entry=Entry(*(place if direction == "forward" else place[::-1]), witness.adjoint),
                    )
        transpose = np.conj(adjoint.T)
        if witness := _differing(forward, transpose, spaces.domain, spaces.codomain.dual):
            return incoherent(
                "adjoint is not the transpose of forward",
                *witness.lines(),
                figures=entries,
                entry=Entry(witness.column, witness.row),
            )
        for direction, matrix, vector, parts in (
            ("forward", forward, first.vectors[0], [seen.images for seen in observations]),
            ("adjoint", adjoint, first.vectors[1], [seen.coimages for seen in observations]),
        ):
            image = matrix @ vector
            for form in parts[0]:
                if not np.array_equal(image, np.sum([part[form] for part in parts], axis=0)):
                    return incoherent(
                        f"{f'{direction} {form}'.rstrip()} gives a random vector another image than its matrix does",
                        figures=entries,
                    )
        for direction, _, target in spaces.sides():
            if direction in first.copies and (
                verdict := unequal_copies(
                    direction, target, [seen.copies[direction] for seen in observations]
                )
            ):
                return verdict
        return coherent(**entries)


def program_matrix(program: Program, source: Space, target: Space) -> _Matrix:
    """The matrix <F e_i, f_j> of a program between the spaces, of shape (j, i).

    Raises `ValueError` where the program does not map the buffers of the one to those of the other.
    """
    if program.inputs != buffers(source) or program.outputs != buffers(target):
        raise ValueError(
            f"the specification maps {[str(b) for b in program.inputs]} to {[str(b) for b in program.outputs]}, but the "
            f"spaces need {[str(b) for b in buffers(source)]} and {[str(b) for b in buffers(target)]}"
        )
    columns = range(source.dimension)
    memory = {}
    for rank in source.ranks:
        for tensor, array in zip(source.tensors, basis_batch(source, columns, rank), strict=True):
            if tensor.layout.partition.is_active(rank):
                memory[rank, tensor.name] = arrays.to_numpy(array)
    result = program.execute(memory, (len(columns),))
    matrix = np.zeros((target.dual.dimension, len(columns)))
    for rank in target.ranks:
        nothing = [np.zeros((0, len(columns)))] * len(target.tensors)
        local = [
            result.get((rank, tensor.name), empty)
            for tensor, empty in zip(target.tensors, nothing, strict=True)
        ]
        matrix = matrix + coordinates(target, local, rank, (len(columns),))
    return matrix


def _probed(
    bench: Bench,
    direction: str,
    source: Space,
    target: Space,
    apply: Callable[[Sequence[Any]], tuple[Any, ...]],
) -> tuple[_Matrix, _Matrix, dict[str, _Matrix]]:
    """This rank's part of the matrix; a random vector, and this rank's part of its image, by form."""
    rank, library = bench.rank, bench.library
    basis = range(source.dimension)
    matrix = contributions(source, target, basis, apply, rank, library, bench.operator.batched)
    random = np.random.default_rng((bench.setting.seed, direction == "adjoint"))
    bound = min(bench.integers(), 64)
    vector = random.integers(-bound, bound, len(basis), endpoint=True)
    local = combination(source, vector, rank, library)
    fresh = apply(local)
    images = {"": coordinates(target, fresh, rank)}
    for form in other_forms(bench.operator, direction, local, fresh):
        images[form.name] = coordinates(target, form.result, rank)
    return matrix, vector, images


def _copies(bench: Bench) -> dict[str, Local]:
    """This rank's part of the images of random elements, in the directions in which there are copies to compare."""
    bound, found = min(bench.integers(), 64), {}
    if _has_copies(bench.codomain):
        found["forward"] = bench.numpy(bench.forward(bench.primal(0, bound)))
    if _has_copies(bench.domain.dual):
        found["adjoint"] = bench.numpy(bench.adjoint(bench.dual(0, bound)))
    return found


def _has_copies(space: Space) -> bool:
    return any(rank != first for tensor in space.tensors for rank, first in tensor.groups.items())


def combination(space: Space, vector: _Matrix, rank: int, library: str) -> tuple[Any, ...]:
    """What `rank` holds of the element of `space` with the coordinates `vector` in its basis."""
    local = []
    for position, tensor in enumerate(space.tensors):
        start, size = space.offset(position, rank), tensor.layout.local_size(rank)
        values = vector[start : start + size] if start is not None else vector[:0]
        shaped = np.asarray(values).reshape(tensor.layout.local_shape(rank))
        local.append(arrays.from_numpy(shaped, tensor.dtype, library))
    return tuple(local)


def _differing(actual: _Matrix, expected: _Matrix, source: Space, target: Space) -> Witness | None:
    wrong = ~(actual == expected)
    if not wrong.any():
        return None
    column, row = (int(index) for index in np.argwhere(wrong.T)[0])
    return Witness(
        column,
        row,
        locate(source, column),
        locate(target, row),
        complex(actual[row, column]),
        complex(expected[row, column]),
    )
