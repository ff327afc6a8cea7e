"""Cases of batch normalisation."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn

from adjointlab.core import strategies
from adjointlab.layers.batch_norm import BatchNormalisation
from adjointlab.layers.subjects.common import (
    Arguments,
    batches,
    dtypes,
    layer_from,
    layer_subject,
    twin_of,
    with_other_statistics,
)

__all__ = ["batch_norms"]


def _sequential(*, input_shape: tuple[int, ...], bias: bool, **case: Any) -> nn.Module:
    kinds = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    module = with_other_statistics(twin_of(*kinds)(dims=len(input_shape) - 1, **case))
    if not bias:
        module.register_parameter("bias", None)  # older versions of torch have no argument for it
    return module


@layer_subject(
    layer=layer_from(BatchNormalisation, _sequential), sequential=_sequential, name="BatchNormalisation"
)
def batch_norms(draw: DrawFn, ranks: int) -> Arguments:
    """Inputs of order two to five, cut in any dimension; training and evaluation; batches of one, or of none."""
    order = draw(st.integers(2, 5))
    training, tracked = draw(st.booleans()), draw(st.booleans())
    channels = draw(st.integers(1, 4))
    batch = draw(batches if order > 2 else st.integers(0, 6))
    sides = [draw(st.integers(1, 6 if order == 3 else 3)) for _ in range(order - 2)]
    if (training or not tracked) and batch * math.prod(sides) == 1:
        batch = 2  # one value per channel has no statistics
    affine = draw(st.booleans())
    return {
        "partition": draw(strategies.partitions(ranks, order, whole=False)),
        "input_shape": (batch, channels, *sides),
        "num_features": channels,
        "eps": draw(st.sampled_from((1e-5, 0.25))),
        "momentum": draw(st.sampled_from((0.1, None, 0.5, 0.0, 1.0))),
        "affine": affine,
        "track_running_stats": tracked,
        "bias": draw(st.integers(0, 3)) > 0,
        "dtype": draw(dtypes),
        "training": training,
    }
