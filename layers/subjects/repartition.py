"""Cases of the repartition as a layer."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn

from adjointlab.core import strategies
from adjointlab.core.layout import Layout
from adjointlab.layers.repartition import Repartition
from adjointlab.layers.subjects.common import Arguments, dtypes, layer_of, layer_subject, twin_of

__all__ = ["repartition_layers"]


def _layout_with_copies(draw: DrawFn, ranks: int, shape: tuple[int, ...]) -> tuple[Layout, tuple[str, ...]]:
    """Draw a layout in any cut, copied along an additional dimension of the workers, and the local types of such copies."""
    partition = draw(strategies.partitions(ranks, len(shape) + 1, whole=False))
    copy_axis = draw(st.integers(0, len(shape)))
    axes = [dim for dim in range(len(shape) + 1) if dim != copy_axis]
    ends = [
        draw(strategies.cuts(side, partition.shape[axis])) for side, axis in zip(shape, axes, strict=True)
    ]
    copies = draw(st.sampled_from(("invariant", "replicated", "partial")))
    types = tuple(copies if dim == copy_axis else "varying" for dim in range(len(shape) + 1))
    return Layout.cut(shape, partition, ends, axes), types


@layer_subject(layer=layer_of(Repartition), sequential=twin_of(nn.Identity), name="RepartitionLayer")
def repartition_layers(draw: DrawFn, ranks: int) -> Arguments:
    """Any cut to any cut, over other workers in another order; copies of each local type."""
    shape = draw(strategies.shapes(draw(st.sampled_from((1, 2, 3, 4, 0)))))
    dtype = draw(dtypes)
    (layout, types), (target, target_types) = (_layout_with_copies(draw, ranks, shape) for _ in range(2))
    return {"layout": layout, "target": target, "dtype": dtype, "types": types, "target_types": target_types}
