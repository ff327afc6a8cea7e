"""Distributed pooling [Hewett21, figure 3 and appendix B]: y = POOL(x) over a partition P = P_n x P_c x P_spatial.

    forward    x ← H x                          halo exchange over P_spatial
               y = POOL(x)                       on each worker
    adjoint    δx = [δPOOL]*(δy)
               δx ← H* δx

The output is balanced, which determines the halos: if the stride is above the kernel size, or the cuts of output and input differ,
some halos are negative and the input is trimmed. With kernel and stride 2, ten elements over three workers
([Hewett21, appendix B]; | bulk, [ ] window):

        0  1  2  3 | 4  5  6 | 7  8  9
        [---------]                           outputs 0 and 1: no halo
                    [----------]              outputs 2 and 3: halo (0, 1), element 7 from the right
                                [---]         output 4: halo (-1, 0), without element 7
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

import torch

from adjointlab.core.layout import Layout, Window
from adjointlab.core.space import Space
from adjointlab.layers.distributed import TorchLayer
from adjointlab.layers.torch_modules import dtype_name, per_dim, result_of, spatial_dims
from adjointlab.primitives.halo_exchange import HaloExchange
from adjointlab.primitives.halo_geometry import HaloGeometry

__all__ = ["Pooling", "global_positions", "probe_of"]


class Pooling(TorchLayer):
    """Base class of max and average pooling: the geometry of the windows and their exchange.

    Input (n, channels, *sides), or (channels, *sides), and output lie over `partition`, whose order is that of the
    input; the input is balanced, and so is the output. A worker without outputs returns a tensor of zero volume.

    Raises `ValueError`, with torch's message, for arguments that torch rejects, and for a partition of another order.
    """

    holds_padding: ClassVar[bool]
    """True if the exchange fills the part of a window beyond the tensor with zeros, False if it leaves that part out."""

    def lay_out(self, module: Any) -> None:
        partition, shape = self.partition, self.input_shape
        dims = self.dims = spatial_dims(module)
        lengths = result_of(module, probe_of(shape, dims)).shape[-dims:]
        self.check_order(shape)
        self._take_sizes(module)
        name = dtype_name(self.dtype)
        x = Layout(shape, partition)
        geometry = self._geometry(x, lengths)
        assert geometry.output is not None
        y = geometry.output
        assert y.shape[-dims:] == lengths
        window = geometry.window if self.holds_padding else _within_the_tensor(geometry)
        self.exchange = HaloExchange(self.comm, x, window, dtype=name)
        self.local_output_shape = y.local_shape(self.rank)
        self.window: tuple[Window, ...] = ()
        """In the spatial dimensions, the elements of the tensor that this worker pools."""
        self.outside = ((0, 0),) * dims
        """The lengths by which its windows reach beyond the tensor, left and right."""
        self.outputs: tuple[Window, ...] = ((0, 0),) * dims
        if partition.is_active(self.rank):
            index = partition.index(self.rank)
            spatial = [(dim, index[dim]) for dim in range(len(shape) - dims, len(shape))]
            self.window = tuple(window.windows[dim][worker] for dim, worker in spatial)
            self.outside = tuple(geometry.padding(dim, worker) for dim, worker in spatial)
            self.outputs = tuple(y.windows[dim][worker] for dim, worker in spatial)
        self.domain, self.codomain = Space(x, dtype=name), Space(y, dtype=name, name="y")

    def _take_sizes(self, module: Any) -> None:
        """Read the sizes of windows from the module, each for all spatial dimensions."""
        self.kernel_size = per_dim("kernel_size", module.kernel_size, self.dims)
        # Torch treats an empty stride as None.
        has_stride = module.stride is not None and not (
            isinstance(module.stride, Sequence) and not module.stride
        )
        self.stride = per_dim("stride", module.stride, self.dims) if has_stride else self.kernel_size
        self.padding = per_dim("padding", getattr(module, "padding", 0), self.dims)
        self.dilation = per_dim("dilation", getattr(module, "dilation", 1), self.dims)

    def _geometry(self, x: Layout, lengths: Sequence[int]) -> HaloGeometry:
        """Return the windows of this number of outputs in each spatial dimension."""
        lead = len(x.shape) - self.dims
        # The length by which the last window reaches beyond the tensor; with ceil_mode it may exceed the padding.
        sizes = zip(self.kernel_size, self.stride, self.padding, self.dilation, strict=True)
        reach = [
            max(0, (length - 1) * stride - padding + dilation * (kernel - 1) + 1 - side)
            for (kernel, stride, padding, dilation), length, side in zip(
                sizes, lengths, x.shape[lead:], strict=True
            )
        ]
        return HaloGeometry.from_kernel(
            x,
            (*(1,) * lead, *self.kernel_size),
            stride=(*(1,) * lead, *self.stride),
            dilation=(*(1,) * lead, *self.dilation),
            padding=((0, 0),) * lead + tuple(zip(self.padding, reach, strict=True)),
            output_cuts=(*(x.ends(dim) for dim in range(lead)), *(None,) * self.dims),
        )

    def _has_outputs(self, x: torch.Tensor) -> bool:
        return 0 not in (*self.local_output_shape, x.numel())


def probe_of(shape: tuple[int, ...], dims: int) -> torch.Tensor:
    """Return a tensor without memory that torch pools, or rejects, like one of that shape."""
    # Torch accepts one leading dimension, channels, or two, batch and channels.
    is_legal = len(shape) - dims in (1, 2)
    return torch.empty(0, *shape[-dims - 1 :]) if is_legal else torch.empty(()).expand(shape)


@lru_cache(maxsize=64)  # linear in the number of workers, and called by every rank
def _within_the_tensor(geometry: HaloGeometry) -> Layout:
    """Return the windows of a geometry, clipped to the tensor."""
    bulk = geometry.bulk
    windows = [
        [geometry.filled(dim, worker) for worker in range(len(each_bulk))]
        for dim, each_bulk in enumerate(geometry.window.windows)
    ]
    return Layout(bulk.shape, bulk.partition, windows, bulk.axes)


def global_positions(
    positions: torch.Tensor, elements: Sequence[torch.Tensor], whole: Sequence[int]
) -> torch.Tensor:
    """Convert row-major positions in a local tensor, whose global indices are `elements`, to those in a tensor of sides `whole`."""
    result = torch.zeros_like(positions)
    sides = [len(each) for each in elements]
    for dim, each in enumerate(elements):
        local = positions // math.prod(sides[dim + 1 :]) % sides[dim]
        result += each.to(positions.device)[local] * math.prod(whole[dim + 1 :])
    return result
