"""Interior and rim of a worker's outputs of a convolution.

An output is in the interior if its window does not read the halo. With kernel 3, stride 1, padding 1, on the middle worker of three:

                 halo                 halo
        window  [  a  |  b  c  d  e  |  f  ]         b to e are its bulk
        output        b  c  d  e                     c and d are its interior, b and e its rim

In two dimensions the rim consists of disjoint slabs: whole rows above and below the interior, and the remaining outputs left and
right of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from adjointlab.core.layout import Window
from adjointlab.primitives.halo_exchange import HaloExchange

__all__ = ["Part", "parts_of_outputs", "without_halo"]


@dataclass(frozen=True)
class Part:
    """A box of outputs, and the box of the window that they are computed from."""

    outputs: tuple[slice, ...]
    inputs: tuple[slice, ...]


def parts_of_outputs(
    outputs: Sequence[int], own: Sequence[Window], reach: Sequence[int], stride: Sequence[int]
) -> tuple[Part | None, tuple[Part, ...]]:
    """Return the interior, `None` if it has no outputs, and the slabs of the rim: each output is in exactly one of these parts.

    Output i of a dimension reads `reach` cells, from i * stride on; outputs of the interior read only cells in the interval `own`.
    """
    inner = [
        (min(-(-start // s), count), max(0, min((stop - r) // s + 1, count)))
        for (start, stop), count, r, s in zip(own, outputs, reach, stride, strict=True)
    ]

    def part(ranges: Sequence[Window]) -> Part:
        cells = [
            slice(first * s, (last - 1) * s + r)
            for (first, last), r, s in zip(ranges, reach, stride, strict=True)
        ]
        return Part(tuple(slice(*each) for each in ranges), tuple(cells))

    if any(first >= last for first, last in inner):
        return None, (part([(0, count) for count in outputs]),)

    def slabs() -> Iterator[Part]:
        for dim, (first, last) in enumerate(inner):
            for low, high in pairwise((0, first, last, outputs[dim])):
                if low < high and (low, high) != (first, last):
                    after = [(0, count) for count in outputs[dim + 1 :]]
                    yield part([*inner[:dim], (low, high), *after])

    return part(inner), tuple(slabs())


def without_halo(exchange: HaloExchange, rank: int) -> list[Window]:
    """Return, for each spatial dimension, the interval of the window that needs no message: own cells, and padding beyond the tensor."""
    layout, geometry = exchange.domain.tensors[0].layout, exchange.geometry
    bulk, window = layout.window(rank), exchange.codomain.tensors[0].layout.window(rank)
    assert bulk is not None
    assert window is not None
    intervals = []
    for dim in range(2, layout.order):
        (first, last), (start, stop), side = bulk[dim], window[dim], layout.shape[dim]
        is_periodic = dim in geometry.periodic
        low = 0 if first == 0 and not is_periodic else max(0, first - start)
        high = stop - start if last == side and not is_periodic else min(stop, last) - start
        intervals.append((low, high))
    return intervals
