"""Linear resampling of a cut tensor, dimension by dimension: y = (A_1 ⊗ ... ⊗ A_d) x over P_n x P_c x P_spatial.

    forward    x ← H x                              halo exchange: each worker's window has the inputs of its outputs
               y = (Â_1 ⊗ ... ⊗ Â_d) x              on each worker, the rows of its outputs
    adjoint    δx = (Â_1* ⊗ ... ⊗ Â_d*) δy
               δx ← H* δx

The matrices are torch's own: its function for one dimension is applied to unit vectors when the layer is made. So interpolation,
padding and adaptive averages need no formula here, and have torch's coordinates and weights to the last digit. Unit vectors with
NaN in place of 1 show the elements that an output depends on, even those with the weight 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from adjointlab.core.layout import Layout, Window
from adjointlab.core.space import Space
from adjointlab.layers.differentiable import carried, of_nothing
from adjointlab.layers.distributed import TorchLayer
from adjointlab.layers.half_precision import accumulation_dtype
from adjointlab.layers.torch_modules import dtype_name, result_of
from adjointlab.primitives.halo_exchange import HaloExchange

__all__ = ["AlongDim", "Resampling", "Taps", "first_elements"]

AlongDim = Callable[[torch.Tensor], torch.Tensor]
"""A torch function from (1, channels, side) to (1, channels, new side), linear and the same in every channel."""

_BLOCK = 64
"""The number of unit vectors at a time, so that only this many rows are in memory, not the whole matrix."""


class Taps(NamedTuple):
    """A sparse matrix by rows: row i is Σ_k weight[i, k] e(element[i, k]) over the `used` k."""

    element: torch.Tensor
    weight: torch.Tensor
    used: torch.Tensor

    @staticmethod
    def of(function: AlongDim, side: int, dtype: torch.dtype) -> Taps:
        """Return the matrix of a function on vectors of length `side`."""
        none = torch.zeros(0, dtype=torch.int64)
        found = [(none, none, torch.zeros(0, dtype=dtype))]  # the only entry for a side without elements
        rows = function(torch.zeros(1, 1, side, dtype=dtype)).shape[-1]
        for first in range(0, side, _BLOCK):
            unit = torch.eye(side, dtype=dtype)[first : first + _BLOCK]
            weights = function(unit.unsqueeze(0))[0]
            seen = function(torch.where(unit > 0, torch.nan, 0.0).to(dtype).unsqueeze(0))[0].isnan()
            column, row = seen.nonzero(as_tuple=True)
            found.append((row, column + first, weights[column, row]))
        row, column, weight = (torch.cat(parts) for parts in zip(*found, strict=True))
        order = torch.argsort(row, stable=True)
        row, column, weight = row[order], column[order], weight[order]
        counts = torch.bincount(row, minlength=rows)
        most = int(counts.max()) if rows else 0
        at = torch.arange(len(row)) - (counts.cumsum(0) - counts)[row]
        taps = Taps(
            torch.zeros(rows, most, dtype=torch.int64),
            torch.zeros(rows, most, dtype=dtype),
            torch.zeros(rows, most, dtype=torch.bool),
        )
        for kept, value in zip(
            taps, (column, weight, torch.ones_like(column, dtype=torch.bool)), strict=True
        ):
            kept[row, at] = value
        return taps

    def needed(self, outputs: Window) -> Window:
        """Return the smallest window with all elements that a range of rows depends on."""
        used = self.used[slice(*outputs)]
        if not used.any():
            return 0, 0
        index = self.element[slice(*outputs)][used]
        return int(index.min()), int(index.max()) + 1

    def part(self, outputs: Window) -> Taps:
        """Return a range of rows, for a vector that begins with the first element that they need."""
        start, _ = self.needed(outputs)
        index, weight, used = (each[slice(*outputs)] for each in self)
        return Taps(torch.where(used, index - start, 0), weight, used)

    def applied(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """Return the matrix times x along a dimension, on the device of x; the matrix lies on the host, which reads it."""
        shape = [1] * (x.ndim + 1)
        shape[dim : dim + 2] = self.element.shape
        on_device = [each.to(x.device) for each in self]
        if self.element.shape[1] == 1 and bool(self.used.all()) and bool((self.weight == 1).all()):
            return x.index_select(dim, on_device[0][:, 0])  # values are only moved, not rounded
        # All taps at once: the backward pass of each selection fills a tensor of the size of x, and there may be as many taps as elements.
        element, weight, used = on_device
        terms = x.index_select(dim, element.flatten()).reshape(
            *x.shape[:dim], *element.shape, *x.shape[dim + 1 :]
        )
        # `where`, not the weight 0: an infinite element that an output does not depend on must not make it NaN.
        return (torch.where(used.reshape(shape), terms, x.new_zeros(())) * weight.reshape(shape)).sum(dim + 1)


class Resampling(TorchLayer):
    """Base class of linear resamplings: an exchange and local matrices, for inputs (n, channels, *sides) or (channels, *sides).

    Input and output lie over `partition`, whose order is that of the input, and are balanced. A worker without outputs returns a
    tensor of zero volume.

    Raises `ValueError`, with torch's message, for arguments that torch rejects, and for a partition of another order.
    """

    def lay_out(self, module: torch.nn.Module) -> None:
        shape = self.input_shape
        y_shape = self.output_shape(module)
        self.check_order(shape)
        functions = self.along_dims(module, len(shape))
        lead = len(shape) - len(functions)
        x = Layout(shape, self.partition)
        y_whole = Layout(y_shape, self.partition)
        y = Layout(y_shape, self.partition, [*x.windows[:lead], *y_whole.windows[lead:]])
        try:
            taps = [
                Taps.of(function, side, accumulation_dtype(self.dtype))
                for function, side in zip(functions, shape[lead:], strict=True)
            ]
        except RuntimeError as error:  # torch's checks that need elements
            raise ValueError(str(error)) from None
        needed = [
            [each.needed(outputs) for outputs in y.windows[lead + dim]] for dim, each in enumerate(taps)
        ]
        name = dtype_name(self.dtype)
        self.exchange = HaloExchange(
            self.comm, x, Layout(shape, self.partition, [*x.windows[:lead], *needed]), dtype=name
        )
        self.rounding = None
        self.local_output_shape = y.local_shape(self.rank)
        self.taps: list[tuple[int, Taps]] = []
        """The matrices of this worker's outputs, with their dimensions."""
        window = y.window(self.rank)
        if window is not None and 0 not in self.local_output_shape:
            self.taps = [(lead + dim, each.part(window[lead + dim])) for dim, each in enumerate(taps)]
        self.domain, self.codomain = Space(x, dtype=name), Space(y, dtype=name, name="y")

    def output_shape(self, module: torch.nn.Module) -> tuple[int, ...]:
        """Return the shape of the result. Raises `ValueError`, with torch's message, if there is none."""
        return tuple(result_of(module, torch.empty(self.input_shape, device="meta")).shape)

    def along_dims(self, module: torch.nn.Module, order: int) -> Sequence[AlongDim]:
        """Return the function of each spatial dimension, for an input of that order."""
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The local tensor of y, from that of x."""
        (x,) = self.check_inputs(x)
        x = carried(self.exchange, x)
        if 0 in (*self.local_output_shape, *x.shape):  # no outputs, or outputs that depend on no element
            return of_nothing(self.local_output_shape, first_elements, x)
        x = x.to(accumulation_dtype(x.dtype))
        for dim, taps in self.taps:
            x = taps.applied(x, dim)
        return x.to(self.dtype)


def first_elements(x: torch.Tensor) -> torch.Tensor:
    """Return the first element along the last dimension, so that a worker without outputs has the same kind of graph as others."""
    return x.index_select(-1, torch.zeros(1, dtype=torch.int64, device=x.device))
