"""Cases of the elementwise losses, and what those of all losses share."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn

from adjointlab.core import strategies
from adjointlab.layers.losses import (
    BCEWithLogitsLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    Loss,
    MSELoss,
    SmoothL1Loss,
)
from adjointlab.layers.subjects.common import (
    Arguments,
    cuts_over,
    dtypes,
    layer_of,
    layer_subject,
    twin_of,
    with_legal_input,
)

__all__ = [
    "absolute_errors",
    "binary_cross_entropies",
    "divergences",
    "huber_losses",
    "loss_arguments",
    "mean_squared_errors",
    "smooth_absolute_errors",
]


def loss_arguments(draw: DrawFn, ranks: int, shape: tuple[int, ...], reduction: str) -> Arguments:
    """Arguments of all losses: any cut of the input, and any rank, or all workers, for the loss."""
    dtype, all_reduce = draw(dtypes), draw(st.booleans())
    partition = draw(strategies.partitions(ranks, len(shape), whole=False))
    cuts = cuts_over(draw, shape, partition)
    return {
        "partition": partition,
        "input_shape": shape,
        "reduction": reduction,
        "root": draw(st.integers(0, ranks - 1)),
        "all_reduce": all_reduce,
        "dtype": dtype,
        "cuts": cuts,
    }


def _elementwise(draw: DrawFn, ranks: int, names: Sequence[str] = Loss.reduction_names) -> Arguments:
    """Tensors of order zero to four in any cut, with an element at least where there is a mean."""
    reduction = draw(st.sampled_from(names))
    shape = draw(strategies.shapes(draw(st.sampled_from((1, 2, 3, 4, 0)))))
    if reduction == "batchmean":
        shape = shape or (3,)
    if "mean" in reduction:
        shape = tuple(max(1, side) for side in shape)
    return loss_arguments(draw, ranks, shape, reduction)


@layer_subject(layer=layer_of(MSELoss), sequential=twin_of(nn.MSELoss), name="MSELoss")
def mean_squared_errors(draw: DrawFn, ranks: int) -> Arguments:
    """Tensors of order zero to four in any cut."""
    return _elementwise(draw, ranks)


@layer_subject(
    layer=layer_of(L1Loss), sequential=twin_of(nn.L1Loss), name="L1Loss", twice_differentiable=False
)
def absolute_errors(draw: DrawFn, ranks: int) -> Arguments:
    """Tensors as of the mean squared error."""
    return _elementwise(draw, ranks)


@layer_subject(
    layer=layer_of(SmoothL1Loss),
    sequential=twin_of(nn.SmoothL1Loss),
    name="SmoothL1Loss",
    twice_differentiable=False,
)
def smooth_absolute_errors(draw: DrawFn, ranks: int) -> Arguments:
    """Tensors as of the mean squared error; differences on both sides of `beta`, which may be 0."""
    return _elementwise(draw, ranks) | {"beta": draw(st.sampled_from((1.0, 0.0, 2.5)))}


@layer_subject(
    layer=layer_of(HuberLoss), sequential=twin_of(nn.HuberLoss), name="HuberLoss", twice_differentiable=False
)
def huber_losses(draw: DrawFn, ranks: int) -> Arguments:
    """Tensors as of the mean squared error; differences on both sides of `delta`."""
    return _elementwise(draw, ranks) | {"delta": draw(st.sampled_from((1.0, 2.5)))}


def with_legal_target(layer: nn.Module, log_target: bool) -> nn.Module:
    """The layer, with targets made positive: a logarithm is taken of them, or they are logarithms."""
    return with_legal_input(layer, lambda target: target if log_target else target.abs() + 0.5)


class _WithoutAdvice(nn.KLDivLoss):
    """Torch's loss without its advice against the mean, which it would give in every call."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return super().forward(x, target)


@layer_subject(
    layer=lambda comm, **case: with_legal_target(layer_of(KLDivLoss)(comm, **case), case["log_target"]),
    sequential=lambda **case: with_legal_target(twin_of(_WithoutAdvice)(**case), case["log_target"]),
    name="KLDivLoss",
)
def divergences(draw: DrawFn, ranks: int) -> Arguments:
    """Tensors as of the mean squared error, and means over the batch; targets and their logarithms."""
    case = _elementwise(draw, ranks, KLDivLoss.reduction_names)
    return case | {"log_target": draw(st.booleans())}


def _weights(shape: Sequence[int], kind: str, dtype: str, first: int) -> torch.Tensor | None:
    """None; or weights for the last dimension, for all, or for all but the first, which is broadcast."""
    sides = {
        "none": None,
        "last": tuple(shape[-1:]),
        "all": tuple(shape),
        "rest": (*(1 for _ in shape[:1]), *shape[1:]),
    }[kind]
    if sides is None:
        return None
    # Not by torch, whose operations are perturbed to measure rounding: a remainder would jump.
    numbers = (np.arange(math.prod(sides)) + first) % 3 + 1
    return torch.tensor(numbers.reshape(sides) / 2, dtype=getattr(torch, dtype))


def _weighted(case: Arguments) -> dict[str, Any]:
    given: dict[str, Any] = dict(case)
    kinds, shape, dtype = given.pop("weights"), given["input_shape"], given["dtype"]
    weights = (_weights(shape, kind, dtype, first) for first, kind in enumerate(kinds))
    return given | {"weight": next(weights), "pos_weight": next(weights)}


@layer_subject(
    layer=lambda comm, **case: layer_of(BCEWithLogitsLoss)(comm, **_weighted(case)),
    sequential=lambda **case: twin_of(nn.BCEWithLogitsLoss)(**_weighted(case)),
    name="BCEWithLogitsLoss",
)
def binary_cross_entropies(draw: DrawFn, ranks: int) -> Arguments:
    """Tensors as of the mean squared error; weights of the elements and of the positive ones, broadcast or not."""
    kind = st.sampled_from(("none", "last", "all", "rest"))
    return _elementwise(draw, ranks) | {"weights": (draw(kind), draw(kind))}
