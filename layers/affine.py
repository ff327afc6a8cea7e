"""The composition that convolutions and affine layers share [Hewett21, figures 4 and 5].

P has a dimension for output features (fo), along which x is copied, and one for input features (fi), along which ŷ is
summed. x lies on the workers whose index along fo is 0, y on those whose index along fi is 0:

                  fi = 0      fi = 1
               +-----------+-----------+
        fo = 0 | x_0  y_0  | x_1       |      x_0 is copied down the first column, x_1 down the second;
               +-----------+-----------+
        fo = 1 |      y_1  |           |      y_0 is the sum over the first row, y_1 that over the second.
               +-----------+-----------+

The bias lies on the workers of y, so that the sum contains it once; a bias on every worker of a row would be added once
for each of them.
"""

from __future__ import annotations

import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.core.operator import LinearOperator
from adjointlab.core.space import Space
from adjointlab.layers.coalesced_broadcast import coalesced
from adjointlab.layers.differentiable import apply, carried
from adjointlab.layers.distributed import TorchLayer
from adjointlab.layers.torch_modules import dtype_name
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.halo_exchange import HaloExchange
from adjointlab.primitives.sum_reduce import SumReduce

__all__ = ["AffineModule"]


class AffineModule(TorchLayer):
    """A layer that is affine in its input, its weight and its bias; :meth:`summand` is the function on each worker."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    exchange: HaloExchange | None = None
    spread_both: LinearOperator | None = None
    """The broadcasts of weight and bias in one message, if that is possible and faster."""

    def compose(
        self,
        module: nn.Module,
        x: Layout,
        y: Layout,
        weight: Layout,
        bias: Layout,
        *,
        window: Layout | None = None,
    ) -> None:
        """Make the operators, and register the parameters of `module`.

        `x` and `y` lie on faces of the partition, `weight` and `bias` have no copies: the broadcasts send each part to
        all workers that use it, and their adjoints sum its gradients. With a `window`, an exchange turns each worker's
        part of x into its window, which is then broadcast.
        """
        dtype = dtype_name(self.dtype)
        windows = x if window is None else window
        summands = Layout(y.shape, self.partition, y.windows, y.axes)
        self.local_output_shape = summands.local_shape(self.rank)
        self.spread_x = Broadcast(self.comm, windows, self.partition, dtype=dtype, preserve_batch=False)
        self.spread_weight = Broadcast(self.comm, weight, self.partition, dtype=dtype, preserve_batch=False)
        self.sum_y = SumReduce(self.comm, summands, y.partition, dtype=dtype, preserve_batch=False)
        self.spread_bias: Broadcast | None = None
        layouts = {"weight": weight}
        if module.bias is not None:
            layouts["bias"] = bias
            self.spread_bias = Broadcast(self.comm, bias, y.partition, dtype=dtype, preserve_batch=False)
            self.spread_both = coalesced(self.spread_weight, self.spread_bias)
        self.domain, self.codomain = Space(x, dtype=dtype), Space(y, dtype=dtype, name="y")
        self.own(module, layouts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the local tensor of y, from that of x. Under autocast only the local products have the lower precision."""
        (x,) = self.check_inputs(x)
        if self.exchange is not None:
            x = carried(self.exchange, x)
        x = carried(self.spread_x, x)
        weight, bias = self._learnt()
        # Under autocast a summand has the lower precision; messages and their sums have the layer's element type.
        return carried(self.sum_y, self.summand(x, weight, bias).to(x.dtype))

    def _learnt(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Collective: return this worker's parts of weight and bias."""
        # Not as attributes: for a parameter, torch looks these up in a Python function.
        weight, bias = self._parameters["weight"], self._parameters.get("bias")
        assert weight is not None
        if self.spread_bias is None:  # and no parameter of that name
            return carried(self.spread_weight, weight), None
        assert bias is not None
        if self.spread_both is None:
            return carried(self.spread_weight, weight), carried(self.spread_bias, bias)
        both: tuple[torch.Tensor, torch.Tensor] = apply(self.spread_both, weight, bias)
        return both

    def ranks_of_weight(self) -> tuple[int, ...]:
        """Return the ranks whose gradients of this rank's part of the weight are summed [Kuehn20, section 3.1]; () for a single one."""
        groups = self.spread_weight.pattern.groups
        ranks = next((group.many for group in groups if self.rank in group.many), ())
        return tuple(ranks) if len(ranks) > 1 else ()

    def bytes_of_gradients(self) -> int:
        """Return the size of this rank's gradients of weight and bias before they are summed [Kuehn20, section 3.1]."""
        spread = (self.spread_weight, self.spread_bias)
        return sum(self._bytes(each.codomain) for each in spread if each is not None)

    def bytes_of_tensors(self) -> tuple[int, int]:
        """Return the sizes of this rank's local tensors of input and output [Kuehn20, section 3.1]."""
        return self._bytes(self.domain), self._bytes(self.codomain)

    def _bytes(self, space: Space) -> int:
        return sum(tensor.layout.local_size(self.rank) * tensor.element.itemsize for tensor in space.tensors)

    def summand(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return this worker's summand of y. If the bias has no elements, another worker of the same sum adds it."""
        raise NotImplementedError
