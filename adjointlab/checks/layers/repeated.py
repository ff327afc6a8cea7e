"""A parameter that is added to a result more often than once: a bias that each rank adds to its summand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from adjointlab.checks.elements import Local, joined, summed
from adjointlab.checks.hints import FaultKind, Hint, are_telling
from adjointlab.core.layout import Layout
from adjointlab.core.space import LocalType, Space, Tensor
from adjointlab.typing import NumpyArray

__all__ = ["repeated_hint"]


def repeated_hint(
    output: Tensor,
    actual: Sequence[NumpyArray],
    expected: Sequence[NumpyArray],
    parameters: tuple[Space, Sequence[Local]],
    allowed: float,
) -> Hint | None:
    """The hint on an output, by rank, whose wrong elements all differ by the same multiple of a parameter of one dimension.

    The `parameters` are the expected parts of all ranks. Differences up to `allowed` count as none.
    """
    got, want = summed(output, actual), summed(output, expected)
    if output.element.is_integer:  # parameters are not added to integers
        return None
    for name, dim, values in _terms(output.layout, *parameters):
        terms = {rank: _along(values, output.layout, rank, dim) for rank in got}
        if (times := _multiple(got, want, terms, allowed)) is not None:
            match times:
                case -1:
                    change, done = f"less {name}", "left out"
                case 1:
                    change, done = f"plus {name}", "counted again"
                case _:
                    change, done = f"plus {times} times {name}", "counted again"
            return Hint(FaultKind.REPEATED, f"the expected value {change}: the parameter {name} is {done}")
    return None


def _terms(output: Layout, space: Space, local: Sequence[Local]) -> Iterator[tuple[str, int, NumpyArray]]:
    """Each whole one-dimensional parameter with its name, and each dimension of the output of the same length."""
    for position, tensor in enumerate(space.tensors):
        if len(tensor.layout.shape) != 1 or LocalType.PARTIAL in tensor.types:
            continue
        (side,) = tensor.layout.shape
        whole = np.full(side, np.nan)
        for rank in tensor.groups:
            window = tensor.layout.window(rank)
            assert window is not None
            start, stop = window[0]
            if 0 <= start <= stop <= side:
                whole[start:stop] = local[rank][position]
        for dim, length in enumerate(output.shape):
            if length == side and np.isfinite(whole).all():
                yield tensor.name, dim, whole


def _along(values: NumpyArray, layout: Layout, rank: int, dim: int) -> NumpyArray:
    """The part of the values in a rank's window along a dimension, shaped to be added to its local tensor; NaN beyond the tensor."""
    window = layout.window(rank)
    assert window is not None
    start, stop = window[dim]
    indices = np.arange(start, stop)
    is_inside = (indices >= 0) & (indices < len(values))
    part = np.where(is_inside, values[np.clip(indices, 0, len(values) - 1)], np.nan)
    return part.reshape([len(part) if each == dim else 1 for each in range(len(layout.shape))])


def _multiple(
    got: dict[int, NumpyArray], want: dict[int, NumpyArray], terms: dict[int, NumpyArray], allowed: float
) -> int | None:
    """The integer, at least -1, by whose multiple of its term each wrong element differs; `None` if there is none."""
    if any(got[rank].shape != want[rank].shape for rank in got):
        return None
    with np.errstate(invalid="ignore"):
        errors = joined([got[rank] - want[rank] for rank in got])
    addends = joined([np.broadcast_to(terms[rank], got[rank].shape) for rank in got])
    wrong = ~(np.abs(errors) <= allowed)
    errors, addends = errors[wrong], addends[wrong]
    if not errors.size or not np.isfinite(errors).all() or not are_telling(addends, allowed).all():
        return None
    times = round(float(np.median(errors / addends)))
    if times < -1 or times == 0:
        return None
    scale = float(np.abs(addends).max() * abs(times))
    return times if bool((np.abs(errors - times * addends) <= 2 * allowed + 2.0**-40 * scale).all()) else None
