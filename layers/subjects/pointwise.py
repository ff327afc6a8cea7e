"""Cases of point-wise functions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn

from adjointlab.core import strategies
from adjointlab.core.layout import Layout
from adjointlab.layers.pointwise import Pointwise
from adjointlab.layers.subjects.common import Arguments, dtypes, layer_subject
from adjointlab.typing import Communicator

__all__ = ["pointwise_layers"]


class _Doubled(nn.Module):
    """2 x."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


_POINTWISE: dict[str, Callable[[], nn.Module]] = {
    "ReLU": nn.ReLU,
    "in place": lambda: nn.Sequential(_Doubled(), nn.ReLU(inplace=True)),
    "LeakyReLU": lambda: nn.LeakyReLU(0.25),
    "Hardtanh": lambda: nn.Hardtanh(-2, 2),
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "GELU": nn.GELU,
    "SiLU": nn.SiLU,
    "ELU": nn.ELU,
    "Softplus": nn.Softplus,
    "double": _Doubled,
    "dropout": nn.Dropout,
}


def _pointwise(comm: Communicator, *, layout: Layout, function: str, dtype: str) -> Pointwise:
    return Pointwise(comm, layout, _POINTWISE[function](), dtype=getattr(torch, dtype))


def _sequential_pointwise(*, function: str, **_: object) -> nn.Module:
    return _POINTWISE[function]()


@layer_subject(layer=_pointwise, sequential=_sequential_pointwise, name="Pointwise")
def pointwise_layers(draw: DrawFn, ranks: int) -> Arguments:
    """Activations, one of them in place, and dropout that is not training, over tensors in any cut."""
    function = draw(st.sampled_from(tuple(_POINTWISE)))
    shape = draw(strategies.shapes(draw(st.sampled_from((1, 2, 3, 4, 0)))))
    return {
        "function": function,
        "dtype": draw(dtypes),
        "training": function != "dropout" and draw(st.booleans()),
        "layout": draw(strategies.layouts(ranks, shape=shape, whole=False)),
    }
