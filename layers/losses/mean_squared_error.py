"""The distributed mean squared error: l = Σ (x - t)² / n, of tensors that are cut alike."""

from __future__ import annotations

import torch
from torch import nn

from adjointlab.core.space import Space, Tensor
from adjointlab.layers.distributed import dtype_name
from adjointlab.layers.losses.reduction import SUMS, Loss
from adjointlab.layers.torch_modules import result_of

__all__ = ["MSELoss"]


class MSELoss(Loss, torch_classes=(nn.MSELoss,)):
    """`torch.nn.MSELoss` over `partition`, of the order of the inputs, which lie alike and are cut in any dimensions.

    Called with (input, target), two tensors of `input_shape`. With `reduction` "none" nothing is sent, and the loss lies
    as the inputs do. The arguments are those of :class:`Loss`.
    """

    argument_names = ("reduction",)

    def plan(self, module: nn.Module) -> None:
        result_of(module, torch.empty(0), torch.empty(0))
        name = dtype_name(self.dtype)
        self.domain = Space(Tensor(self.input_layout, name), Tensor(self.input_layout, name, name="target"))
        if self.reduction == "none":
            self.codomain = Space(self.input_layout, dtype=name, name="loss")
        else:
            self.codomain = self.reduced_to(2 if self.reduction == "mean" else 1)
        if self.reduction == "mean":
            # One quotient of exact numbers is torch's, but its gradient is a product of three factors.
            self.rounding = 4 * torch.finfo(self.dtype).eps

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The local tensor of the loss, from those of the input and of the target."""
        x, target = self.check_inputs(x, target)
        losses: torch.Tensor = (x - target) ** 2
        if self.reduction == "none":
            return losses
        total = losses.sum(dtype=SUMS)
        number = total.new_tensor(float(losses.numel())) if self.reduction == "mean" else None
        return self.reduced(total, number)
