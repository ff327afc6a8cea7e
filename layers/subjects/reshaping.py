"""Cases of reshaping, unflattening and permuting."""

from __future__ import annotations

import math

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn

from adjointlab.core import strategies
from adjointlab.core.kept_strategies import permuted
from adjointlab.layers.permute import Permute, Permuted, Transpose, Transposed
from adjointlab.layers.reshape import Reshape, Reshaped, Unflatten
from adjointlab.layers.subjects.common import Arguments, cuts_over, dtypes, layer_of, layer_subject, twin_of

__all__ = ["permutations", "rearranged", "reshapes", "transpositions", "unflattenings"]


def rearranged(draw: DrawFn, ranks: int, shape: tuple[int, ...], y_shape: tuple[int, ...]) -> Arguments:
    """The input in any cut; the output in the layer's layout, or in any other."""
    partition = draw(strategies.partitions(ranks, len(shape), whole=False))
    cuts = cuts_over(draw, shape, partition)
    target = draw(strategies.layouts(ranks, shape=y_shape, whole=False)) if draw(st.booleans()) else None
    return {
        "input_shape": shape,
        "partition": partition,
        "cuts": cuts,
        "target": target,
        "dtype": draw(dtypes),
    }


def _sides(draw: DrawFn, size: int) -> tuple[int, ...]:
    """Draw sides whose product is `size`; some may be 1."""
    sides: list[int] = []
    while size > 1 and len(sides) < 3:
        factor = draw(st.sampled_from([factor for factor in range(1, size + 1) if size % factor == 0]))
        sides.append(factor)
        size //= factor
    return (*sides, size) if size > 1 or draw(st.booleans()) else tuple(sides)


@layer_subject(layer=layer_of(Reshape), sequential=twin_of(Reshaped), name="Reshape")
def reshapes(draw: DrawFn, ranks: int) -> Arguments:
    """Sides that are merged, split, and shifted against each other, with a dimension that stays or without; one may be -1."""
    size = draw(st.sampled_from((6, 12, 4, 8, 7, 1, 0)))
    x_shape, y_shape = _sides(draw, size), _sides(draw, size)
    if draw(st.booleans()):
        stays = draw(st.integers(1, 3))
        x_shape, y_shape = (stays, *x_shape), (stays, *y_shape)
    if size == 0:
        x_shape, y_shape = (*x_shape, 2, 0), (0, *y_shape)
    asked = list(y_shape)
    if asked and size and draw(st.booleans()):
        asked[draw(st.integers(0, len(asked) - 1))] = -1
    return {**rearranged(draw, ranks, x_shape, y_shape), "shape": tuple(asked)}


@layer_subject(layer=layer_of(Unflatten), sequential=twin_of(nn.Unflatten), name="Unflatten")
def unflattenings(draw: DrawFn, ranks: int) -> Arguments:
    """A dimension in the middle, at the start or at the end, into one to three."""
    before, after = (draw(strategies.shapes(draw(st.integers(0, 1)))) for _ in range(2))
    sides = list(draw(strategies.shapes(draw(st.integers(1, 3)))))
    x_shape, y_shape = (*before, math.prod(sides), *after), (*before, *sides, *after)
    if 0 not in y_shape and draw(st.booleans()):
        sides[draw(st.integers(0, len(sides) - 1))] = -1
    dim = len(before) - draw(st.sampled_from((0, len(x_shape))))
    return {**rearranged(draw, ranks, x_shape, y_shape), "dim": dim, "unflattened_size": tuple(sides)}


@layer_subject(
    # Called `order` here, since `layer_of` uses `dims` for the number of dimensions.
    layer=lambda comm, *, order, dtype, **case: Permute(
        comm, dims=order, dtype=getattr(torch, dtype), **case
    ),
    sequential=lambda *, order, **_: Permuted(order),
    name="Permute",
)
def permutations(draw: DrawFn, ranks: int) -> Arguments:
    """Tensors of order zero to four, in any order of their dimensions, counted from both ends."""
    shape = draw(strategies.shapes(draw(st.sampled_from((2, 3, 4, 1, 0)))))
    dims = permuted(draw, range(len(shape)))
    counted = tuple(dim - draw(st.sampled_from((0, len(shape)))) for dim in dims)
    return {**rearranged(draw, ranks, shape, tuple(shape[dim] for dim in dims)), "order": counted}


@layer_subject(layer=layer_of(Transpose), sequential=twin_of(Transposed), name="Transpose")
def transpositions(draw: DrawFn, ranks: int) -> Arguments:
    """Tensors of order one to four, any two dimensions, which may be the same."""
    shape = draw(strategies.shapes(draw(st.integers(1, 4))))
    order = len(shape)
    dim0, dim1 = (draw(st.integers(-order, order - 1)) for _ in range(2))
    sides = list(shape)
    sides[dim0], sides[dim1] = sides[dim1], sides[dim0]
    return {**rearranged(draw, ranks, shape, tuple(sides)), "dim0": dim0, "dim1": dim1}
