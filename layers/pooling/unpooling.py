"""Distributed unpooling: each element of x goes to the position of its index in the global output, which may be anywhere.

    forward    (x, i) ← T (x, i)                 every worker gets the whole of each plane that it has a part of
               y = Σ_k x_k e(i_k)                 on each worker, over the k whose index lies in its part
    adjoint    δx_k = δy[i_k] on the one worker that has it; δx ← T* δx, a sum over the workers that got x

Messages do not depend on the indices, so every rank knows those of every other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from adjointlab.core.layout import Layout, Window
from adjointlab.core.partition import integers
from adjointlab.core.space import Space, Tensor
from adjointlab.layers.differentiable import carried, connected, without_gradient
from adjointlab.layers.distributed import TorchLayer
from adjointlab.layers.pooling.windows import probe_of
from adjointlab.layers.torch_modules import dtype_name, result_of, spatial_dims
from adjointlab.primitives.repartition import Repartition

__all__ = ["MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d", "MaxUnpooling"]


class MaxUnpooling(TorchLayer, torch_classes=(nn.MaxUnpool1d, nn.MaxUnpool2d, nn.MaxUnpool3d)):
    """`torch.nn.MaxUnpool1d`, `2d` or `3d` over `partition`, of the order of the input, which is cut in any dimensions.

    Called with (input, indices), which have the same layout, like the two results of our max pooling with `return_indices`: the
    indices are those in the global output. `output_size`, which torch takes in a call, is an argument here. Input and output are
    balanced. If several elements have the same index, it is undefined which one the output has, as in torch.

    Raises `ValueError`, with torch's message, for arguments that torch rejects, and for a partition of another order; and in a
    call for indices out of bounds, whichever rank has them: the same on every rank, and before anything else is sent.
    """

    options = ("output_size",)

    def lay_out(self, module: nn.Module, output_size: Sequence[int] | None = None) -> None:
        shape, dims = self.input_shape, spatial_dims(module)
        self.dims = dims
        probe = probe_of(shape, dims)
        wanted = None if output_size is None else integers("output_size", output_size)
        result = result_of(module, probe, probe.to(torch.int64), wanted)
        self.check_order(shape)
        lead = len(shape) - dims
        self.sides = tuple(result.shape[-dims:])
        x, y = (Layout((*shape[:lead], *sides), self.partition) for sides in (shape[lead:], self.sides))
        planes = Layout(
            shape,
            self.partition,
            [*x.windows[:lead], *(((0, side),) for side in shape[lead:])],
            [*range(lead), *(None,) * dims],
        )
        name = dtype_name(self.dtype)
        self.gather = Repartition(self.comm, x, planes, dtype=name)
        self.gather_indices = Repartition(self.comm, x, planes, dtype="int64")
        self.local_output_shape = y.local_shape(self.rank)
        self.window: tuple[Window, ...] = (y.window(self.rank) or ())[lead:]
        """In the spatial dimensions, the part of the output that this worker has."""
        self.domain = Space(Tensor(x, name), Tensor(x, "int64", name="indices"))
        self.codomain = Space(y, dtype=name, name="y")

    def forward(self, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """The local tensor of y, from those of the input and of the indices."""
        x, indices = self.check_inputs(x, indices)
        x = carried(self.gather, x)
        indices = without_gradient(self.gather_indices, indices)
        if 0 in self.local_output_shape:
            return connected(x.new_zeros(self.local_output_shape), x)
        # Elements of other workers go to an additional position.
        elements = math.prod(self.local_output_shape[-self.dims :])
        places = self.local_places(indices, elements).flatten(-self.dims)
        zeros = x.new_zeros(*places.shape[:-1], elements + 1)
        y = zeros.scatter(-1, places, x.flatten(-self.dims))
        return y[..., :elements].reshape(self.local_output_shape)

    def local_places(self, indices: torch.Tensor, elsewhere: int) -> torch.Tensor:
        """Convert row-major positions in the global output to those in this worker's part; `elsewhere` for those outside it."""
        places, is_own = torch.zeros_like(indices), torch.ones_like(indices, dtype=torch.bool)
        for dim, (start, stop) in enumerate(self.window):
            index = indices // math.prod(self.sides[dim + 1 :]) % self.sides[dim]
            is_own &= (index >= start) & (index < stop)
            after = math.prod(last - first for first, last in self.window[dim + 1 :])
            places += (index - start) * after
        return torch.where(is_own, places, elsewhere)

    def _check_inputs(self, x: tuple[torch.Tensor, ...]) -> None:
        super()._check_inputs(x)
        wrong = x[1][(x[1] < 0) | (x[1] >= math.prod(self.sides))]
        if wrong.numel():
            # Torch treats a line as a plane of width 1.
            sides = "x".join(map(str, (*self.sides, 1) if self.dims == 1 else self.sides))
            raise ValueError(
                f"Found an invalid max index: {int(wrong[0])} (output volumes are of size {sides})"
            )


class MaxUnpool1d(MaxUnpooling, torch_classes=(nn.MaxUnpool1d,)):
    """`torch.nn.MaxUnpool1d`; see :class:`MaxUnpooling`."""


class MaxUnpool2d(MaxUnpooling, torch_classes=(nn.MaxUnpool2d,)):
    """`torch.nn.MaxUnpool2d`; see :class:`MaxUnpooling`."""


class MaxUnpool3d(MaxUnpooling, torch_classes=(nn.MaxUnpool3d,)):
    """`torch.nn.MaxUnpool3d`; see :class:`MaxUnpooling`."""
