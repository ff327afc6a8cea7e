"""Cases of softmax and its logarithm."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn

from adjointlab.core import strategies
from adjointlab.layers.softmax import LogSoftmax, Softmax
from adjointlab.layers.subjects.common import Arguments, drawn_shape, dtypes, layer_of, layer_subject, twin_of

__all__ = ["log_softmaxes", "softmaxes"]


def _exponentials(draw: DrawFn, ranks: int) -> Arguments:
    order = draw(st.integers(1, 4))
    shape = drawn_shape(draw, order)
    return {
        "partition": draw(strategies.partitions(ranks, order, whole=False)),
        "input_shape": shape,
        "dim": draw(st.integers(-order, order - 1)),
        "dtype": draw(dtypes),
    }


@layer_subject(layer=layer_of(Softmax), sequential=twin_of(nn.Softmax), name="Softmax")
def softmaxes(draw: DrawFn, ranks: int) -> Arguments:
    """Inputs of order one to four, cut in any dimension; over any of them."""
    return _exponentials(draw, ranks)


@layer_subject(layer=layer_of(LogSoftmax), sequential=twin_of(nn.LogSoftmax), name="LogSoftmax")
def log_softmaxes(draw: DrawFn, ranks: int) -> Arguments:
    """Inputs as for softmax."""
    return _exponentials(draw, ranks)
