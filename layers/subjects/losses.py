"""Cases of the losses."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn

from adjointlab.core import strategies
from adjointlab.core.layout import Window
from adjointlab.engine.subject import subject
from adjointlab.layers.losses import (
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
)
from adjointlab.layers.losses.classes import ClassLoss
from adjointlab.layers.subjects.common import Arguments, cuts_over, dtypes, layer_of, twin_of
from adjointlab.typing import Communicator

__all__ = [
    "absolute_errors",
    "binary_cross_entropies",
    "cross_entropies",
    "divergences",
    "huber_losses",
    "mean_squared_errors",
    "negative_log_likelihoods",
    "smooth_absolute_errors",
]


def _with_legal_targets(
    layer: nn.Module, classes: int, ignore_index: int, windows: Sequence[Window] | None
) -> nn.Module:
    """The layer, with targets made class indices: drawn integers modulo the classes, of which some are ignored.

    `windows` are those of the layer's targets (`None` on a rank that has none). The first target of the global tensor is
    never ignored, so that a mean is over something.
    """

    def prepare(_: nn.Module, inputs: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        logits, drawn = inputs
        first = torch.tensor([]) if windows is None else torch.ones(())
        for start, stop in windows or ():
            first = first[..., None] * (torch.arange(start, stop) == 0)
        legal = drawn.abs() % classes
        away = (legal + 1) % classes if classes > 1 else legal
        kept = torch.where(legal == ignore_index, away, legal)
        first = first.reshape(drawn.shape) > 0
        return logits, torch.where(first, kept, torch.where(drawn < -1, ignore_index, legal))

    layer.register_forward_pre_hook(prepare)
    return layer


def class_weights(classes: int, weighted: bool, dtype: str) -> torch.Tensor | None:
    return (torch.arange(classes) % 3 + 1).to(getattr(torch, dtype)) / 2 if weighted else None


def class_loss(
    comm: Communicator,
    *,
    kind: type[ClassLoss] = CrossEntropyLoss,
    input_shape: tuple[int, ...],
    weighted: bool,
    dtype: str,
    **arguments: Any,
) -> nn.Module:
    """A loss over classes that is given legal targets."""
    classes = input_shape[min(1, len(input_shape) - 1)]
    layer = kind(
        comm,
        input_shape=input_shape,
        weight=class_weights(classes, weighted, dtype),
        dtype=getattr(torch, dtype),
        **arguments,
    )
    windows = layer.domain.tensors[1].layout.window(comm.Get_rank())
    return _with_legal_targets(layer, classes, arguments["ignore_index"], windows)


def _sequential_class_loss(
    *,
    kind: type[nn.Module] = nn.CrossEntropyLoss,
    input_shape: tuple[int, ...],
    weighted: bool,
    dtype: str,
    **arguments: Any,
) -> nn.Module:
    class_dim = min(1, len(input_shape) - 1)
    names = {"ignore_index", "reduction", "label_smoothing"} & arguments.keys()
    module = kind(
        class_weights(input_shape[class_dim], weighted, dtype), **{name: arguments[name] for name in names}
    )
    windows = tuple((0, side) for dim, side in enumerate(input_shape) if dim != class_dim)
    return _with_legal_targets(module, input_shape[class_dim], arguments["ignore_index"], windows)


def _loss_arguments(draw: DrawFn, ranks: int, shape: tuple[int, ...], reduction: str) -> Arguments:
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


@subject(
    layer=class_loss,
    sequential=_sequential_class_loss,
    twice_differentiable=True,
    name="CrossEntropyLoss",
)
def cross_entropies(draw: DrawFn, ranks: int) -> Arguments:
    """Logits of order one to four in any cut; class weights, label smoothing and ignored targets; where legal, empty batches."""
    return over_classes(draw, ranks) | {"label_smoothing": draw(st.sampled_from((0.0, 0.25, 0.1, 1.0)))}


@subject(
    layer=partial(class_loss, kind=NLLLoss),
    sequential=partial(_sequential_class_loss, kind=nn.NLLLoss),
    twice_differentiable=True,
    name="NLLLoss",
)
def negative_log_likelihoods(draw: DrawFn, ranks: int) -> Arguments:
    """Inputs as of the cross-entropy."""
    return over_classes(draw, ranks)


def over_classes(draw: DrawFn, ranks: int) -> Arguments:
    order = draw(st.integers(1, 4))
    reduction = draw(st.sampled_from(Loss.reduction_names))
    classes = draw(st.integers(1, 6))
    least = 1 if reduction == "mean" else 0
    sides = [draw(st.integers(least, 6 if order == 2 else 3)) for _ in range(order - 1)]
    options = {
        "weighted": draw(st.booleans()),
        # With one class, to ignore it leaves no target.
        "ignore_index": draw(st.sampled_from((-100, 0, 2) if classes > 1 else (-100, 2))),
    }
    shape = (*sides[:1], classes, *sides[1:])
    return {**options, **_loss_arguments(draw, ranks, shape, reduction)}


def _elementwise(draw: DrawFn, ranks: int, names: Sequence[str] = Loss.reduction_names) -> Arguments:
    """Tensors of order zero to four in any cut, with an element at least where there is a mean."""
    reduction = draw(st.sampled_from(names))
    shape = draw(strategies.shapes(draw(st.sampled_from((1, 2, 3, 4, 0)))))
    if reduction == "batchmean":
        shape = shape or (3,)
    if "mean" in reduction:
        shape = tuple(max(1, side) for side in shape)
    return _loss_arguments(draw, ranks, shape, reduction)


@subject(layer=layer_of(MSELoss), sequential=twin_of(nn.MSELoss), twice_differentiable=True, name="MSELoss")
def mean_squared_errors(draw: DrawFn, ranks: int) -> Arguments:
    """Tensors of order zero to four in any cut."""
    return _elementwise(draw, ranks)


@subject(layer=layer_of(L1Loss), sequential=twin_of(nn.L1Loss), name="L1Loss")
def absolute_errors(draw: DrawFn, ranks: int) -> Arguments:
    """Tensors as of the mean squared error."""
    return _elementwise(draw, ranks)


@subject(layer=layer_of(SmoothL1Loss), sequential=twin_of(nn.SmoothL1Loss), name="SmoothL1Loss")
def smooth_absolute_errors(draw: DrawFn, ranks: int) -> Arguments:
    """Tensors as of the mean squared error; differences on both sides of `beta`, which may be 0."""
    return _elementwise(draw, ranks) | {"beta": draw(st.sampled_from((1.0, 0.0, 2.5)))}


@subject(layer=layer_of(HuberLoss), sequential=twin_of(nn.HuberLoss), name="HuberLoss")
def huber_losses(draw: DrawFn, ranks: int) -> Arguments:
    """Tensors as of the mean squared error; differences on both sides of `delta`."""
    return _elementwise(draw, ranks) | {"delta": draw(st.sampled_from((1.0, 2.5)))}


def with_legal_target(layer: nn.Module, log_target: bool) -> nn.Module:
    """The layer, with targets made positive: a logarithm is taken of them, or they are logarithms."""

    def prepare(_: nn.Module, inputs: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        x, target = inputs
        return x, target if log_target else target.abs() + 0.5

    layer.register_forward_pre_hook(prepare)
    return layer


class _WithoutAdvice(nn.KLDivLoss):
    """Torch's loss without its advice against the mean, which it would give in every call."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return super().forward(x, target)


@subject(
    layer=lambda comm, **case: with_legal_target(layer_of(KLDivLoss)(comm, **case), case["log_target"]),
    sequential=lambda **case: with_legal_target(twin_of(_WithoutAdvice)(**case), case["log_target"]),
    twice_differentiable=True,
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
    numbers = torch.arange(torch.Size(sides).numel(), dtype=getattr(torch, dtype))
    return ((numbers + first) % 3 + 1).reshape(sides) / 2


def _weighted(case: Arguments) -> dict[str, Any]:
    given: dict[str, Any] = dict(case)
    kinds, shape, dtype = given.pop("weights"), given["input_shape"], given["dtype"]
    weights = (_weights(shape, kind, dtype, first) for first, kind in enumerate(kinds))
    return given | {"weight": next(weights), "pos_weight": next(weights)}


@subject(
    layer=lambda comm, **case: layer_of(BCEWithLogitsLoss)(comm, **_weighted(case)),
    sequential=lambda **case: twin_of(nn.BCEWithLogitsLoss)(**_weighted(case)),
    twice_differentiable=True,
    name="BCEWithLogitsLoss",
)
def binary_cross_entropies(draw: DrawFn, ranks: int) -> Arguments:
    """Tensors as of the mean squared error; weights of the elements and of the positive ones, broadcast or not."""
    kind = st.sampled_from(("none", "last", "all", "rest"))
    return _elementwise(draw, ranks) | {"weights": (draw(kind), draw(kind))}
