"""Matrices of specifications."""

from __future__ import annotations

import math

import numpy as np

from adjointlab.core.program import Program, buffers
from adjointlab.core.space import Space
from adjointlab.typing import NumpyArray

__all__ = ["program_matrix", "require_fitting"]


def require_fitting(program: Program, source: Space, target: Space) -> None:
    """Raise `ValueError` unless the program maps the buffers of `source` to those of `target`."""
    if program.inputs != buffers(source) or program.outputs != buffers(target):
        raise ValueError(
            f"the specification maps {[str(b) for b in program.inputs]} to {[str(b) for b in program.outputs]}, but the "
            f"spaces need {[str(b) for b in buffers(source)]} and {[str(b) for b in buffers(target)]}"
        )


def program_matrix(program: Program, source: Space, target: Space) -> NumpyArray:
    """Return the matrix <F e_i, f_j> of a program between the spaces, of shape (j, i).

    Raises `ValueError` if the program does not map the buffers of `source` to those of `target`.
    """
    require_fitting(program, source, target)
    width = source.dimension
    identity = np.eye(width)
    memory = {}
    for position, tensor in enumerate(source.tensors):
        for rank in tensor.layout.partition.ranks:
            start, shape = source.offset(position, rank), tensor.layout.local_shape(rank)
            assert start is not None
            columns = identity[start : start + math.prod(shape)].reshape(*shape, width)
            # Without a copy if possible: the program executes on copies.
            memory[rank, tensor.name] = columns.astype(tensor.element.in_numpy, copy=False)
    result = program.execute(memory, (width,))
    matrix = np.zeros((target.dual.dimension, width), np.complex128 if target.is_complex else np.float64)
    for (position, rank), rows in target.coordinate_rows.items():
        images = result[rank, target.tensors[position].name]
        matrix[rows] += images.reshape(rows.stop - rows.start, width)
    return matrix
