"""Cases of layer, RMS, group and instance normalisation."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn

from adjointlab.core import strategies
from adjointlab.layers.group_norm import GroupNorm
from adjointlab.layers.instance_norm import InstanceNormalisation
from adjointlab.layers.layer_norm import LayerNorm, RMSNorm
from adjointlab.layers.subjects.common import (
    Arguments,
    batches,
    drawn_shape,
    dtypes,
    layer_from,
    layer_of,
    layer_subject,
    twin_of,
    with_other_statistics,
)

__all__ = ["group_norms", "instance_norms", "layer_norms", "rms_norms"]


def _over_last_dimensions(draw: DrawFn, ranks: int) -> Arguments:
    order = draw(st.integers(1, 4))
    shape = drawn_shape(draw, order)
    normalised = draw(st.integers(1, order))
    if torch.Size(shape[order - normalised :]).numel() == 1:
        # The deviation of a single value is 0, and torch's result x α + (b - μ α) has rounding errors of terms without a bound.
        shape = (*shape[:-1], 2)
    return {
        "partition": draw(strategies.partitions(ranks, order, whole=False)),
        "input_shape": shape,
        "normalized_shape": shape[order - normalised :],
        "eps": draw(st.sampled_from((1e-5, 0.25))),
        "elementwise_affine": draw(st.booleans()),
        "dtype": draw(dtypes),
    }


@layer_subject(layer=layer_of(LayerNorm), sequential=twin_of(nn.LayerNorm), name="LayerNorm")
def layer_norms(draw: DrawFn, ranks: int) -> Arguments:
    """Inputs of order one to four, cut in any dimension, normalised over one or more of the last ones."""
    return _over_last_dimensions(draw, ranks) | {"bias": draw(st.booleans())}


@layer_subject(layer=layer_of(RMSNorm), sequential=twin_of(nn.RMSNorm), name="RMSNorm")
def rms_norms(draw: DrawFn, ranks: int) -> Arguments:
    """Inputs as for layer normalisation; ε also the precision of the element type."""
    case = _over_last_dimensions(draw, ranks)
    return case | {"eps": draw(st.sampled_from((case["eps"], None)))}


@layer_subject(layer=layer_of(GroupNorm), sequential=twin_of(nn.GroupNorm), name="GroupNorm")
def group_norms(draw: DrawFn, ranks: int) -> Arguments:
    """Inputs of order two to four, cut in any dimension, also inside groups."""
    order = draw(st.integers(2, 4))
    groups, of_each = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    batch = draw(batches)
    sides = tuple(draw(st.integers(1, 4)) for _ in range(order - 2))
    if of_each * torch.Size(sides).numel() == 1:
        of_each = 2  # as for layer normalisation
    return {
        "partition": draw(strategies.partitions(ranks, order, whole=False)),
        "input_shape": (batch, groups * of_each, *sides),
        "num_groups": groups,
        "num_channels": groups * of_each,
        "eps": draw(st.sampled_from((1e-5, 0.25))),
        "affine": draw(st.booleans()),
        "dtype": draw(dtypes),
    }


def _sequential_instance_norm(**arguments: Any) -> nn.Module:
    kinds = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
    return with_other_statistics(twin_of(*kinds)(**arguments))


@layer_subject(
    layer=layer_from(InstanceNormalisation, _sequential_instance_norm),
    sequential=_sequential_instance_norm,
    name="InstanceNormalisation",
)
def instance_norms(draw: DrawFn, ranks: int) -> Arguments:
    """Inputs of one to three spatial dimensions, with and without a batch, cut in any dimension; training and evaluation."""
    dims = draw(st.integers(1, 3))
    # Running statistics of a batch that is cut are most often wrong, and would be rarest in uniform draws.
    training, tracked = draw(st.integers(0, 3)) > 0, draw(st.integers(0, 3)) > 0
    channels = draw(st.integers(1, 4))
    batch = (draw(st.integers(1, 4)),) if draw(st.integers(0, 3)) > 0 else ()
    sides = [draw(st.integers(1, 6 if dims == 1 else 3)) for _ in range(dims)]
    if (training or not tracked) and torch.Size(sides).numel() == 1:
        sides[0] = 2  # one element has no statistics
    shape = (*batch, channels, *sides)
    return {
        "partition": draw(strategies.partitions(ranks, len(shape), whole=False)),
        "input_shape": shape,
        "dims": dims,
        "num_features": channels,
        "eps": draw(st.sampled_from((1e-5, 0.25))),
        "momentum": draw(st.sampled_from((0.1, 0.5, 0.0, 1.0))),
        "affine": draw(st.booleans()),
        "track_running_stats": tracked,
        "dtype": draw(dtypes),
        "training": training,
    }
