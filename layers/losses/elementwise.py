"""Distributed losses of two tensors with the same cut: l = Σ L(x, t), element by element, or the mean."""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.space import Space, Tensor
from adjointlab.layers.differentiable import in_graph
from adjointlab.layers.losses.reduction import SUMS, Loss
from adjointlab.layers.torch_modules import dtype_name, result_of

__all__ = [
    "BCEWithLogitsLoss",
    "ElementwiseLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "MSELoss",
    "SmoothL1Loss",
]


class ElementwiseLoss(Loss):
    """A loss over `partition`, of the order of the inputs, which have the same layout and are cut in any dimensions.

    Called with (input, target), two tensors of `input_shape`. With `reduction` "none" nothing is sent, and the loss has the
    layout of the inputs. The arguments are those of :class:`Loss`.
    """

    def plan(self, module: nn.Module) -> None:
        self.check_with(module)
        name = dtype_name(self.dtype)
        self.domain = Space(Tensor(self.input_layout, name), Tensor(self.input_layout, name, name="target"))
        self.codomain = self.space_of_loss(self.input_layout)
        # Small integers have exact losses, except for a quotient; other functions round as they do in torch.
        self.rounding = None
        each = copy.copy(cast(nn.MSELoss, module))
        each.reduction = "none"
        self._each = (each,)  # in a tuple: torch would register a module as a submodule

    def check_with(self, module: nn.Module) -> None:
        """Raise `ValueError`, with torch's message, for arguments that torch rejects only in a call."""
        result_of(module, torch.empty(0, dtype=self.dtype), torch.empty(0, dtype=self.dtype))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The local tensor of the loss, from those of the input and of the target."""
        x, target = self.check_inputs(x, target)
        if self.reduction == "none":
            return self.losses(in_graph(x), target)
        losses = self.losses(x, target)
        total = losses.sum(dtype=SUMS)
        if self.reduction == "batchmean":
            return self.reduced(total / self.input_shape[0])
        number = total.new_tensor(float(losses.numel())) if self.reduction == "mean" else None
        return self.reduced(total, number)

    def losses(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return L(x, t) for each element."""
        # `forward`, since hooks on the module that this layer was made from are not meant for this call.
        result: torch.Tensor = self._each[0].forward(x, target)
        return result


class MSELoss(ElementwiseLoss, torch_classes=(nn.MSELoss,)):
    """`torch.nn.MSELoss`: (x - t)²; see :class:`ElementwiseLoss`."""

    argument_names = ("reduction",)

    def plan(self, module: nn.Module) -> None:
        super().plan(module)
        # The value is one quotient of exact numbers, as in torch, but its gradient is a product of three factors.
        self.rounding = 4 * torch.finfo(self.dtype).eps if self.reduction == "mean" else 0.0


class L1Loss(ElementwiseLoss, torch_classes=(nn.L1Loss,)):
    """`torch.nn.L1Loss`, the absolute difference; see :class:`ElementwiseLoss`."""

    argument_names = ("reduction",)


class SmoothL1Loss(ElementwiseLoss, torch_classes=(nn.SmoothL1Loss,)):
    """`torch.nn.SmoothL1Loss`, with the argument `beta`; see :class:`ElementwiseLoss`."""

    argument_names = ("reduction", "beta")


class HuberLoss(ElementwiseLoss, torch_classes=(nn.HuberLoss,)):
    """`torch.nn.HuberLoss`, with the argument `delta`; see :class:`ElementwiseLoss`."""

    argument_names = ("reduction", "delta")


class KLDivLoss(ElementwiseLoss, torch_classes=(nn.KLDivLoss,)):
    """`torch.nn.KLDivLoss`: t (log t - x), and with `log_target` eᵗ (t - x); see :class:`ElementwiseLoss`.

    `reduction` may be "batchmean" too: the sum divided by the global length of the first dimension.
    """

    reduction_names = (*Loss.reduction_names, "batchmean")
    argument_names = ("reduction", "log_target")

    def check_with(self, module: nn.Module) -> None:
        super().check_with(module)
        if self.reduction == "batchmean" and not self.input_shape:
            raise ValueError(
                f"reduction: batchmean divides by the first dimension, but the input has shape {self.input_shape}"
            )


class BCEWithLogitsLoss(ElementwiseLoss, torch_classes=(nn.BCEWithLogitsLoss,)):
    """`torch.nn.BCEWithLogitsLoss`: binary cross-entropy of logits; see :class:`ElementwiseLoss`.

    `weight` and `pos_weight` are broadcast to the global input, as in torch; they are buffers that every rank has as a whole.

    Raises `ValueError` for a weight that cannot be broadcast to the input.
    """

    argument_names = ("weight", "reduction", "pos_weight")
    weight: torch.Tensor | None
    pos_weight: torch.Tensor | None

    def plan(self, module: nn.Module) -> None:
        super().plan(module)
        everyone = Partition((self.comm.Get_size(),))
        layouts = {
            name: Layout(tuple(value.shape), everyone, axes=(None,) * value.ndim)
            for name, value in module.named_buffers()
        }
        self.own(module, layouts)

    def check_with(self, module: nn.Module) -> None:
        # Not by a call, as for other losses: the weights belong to the global input, for which a rank may not have the memory, and
        # a call on the device "meta" imports torch's compiler, which takes longer than a second.
        for name, weight in module.named_buffers():
            try:
                weight.expand(self.input_shape)
            except RuntimeError:
                raise ValueError(
                    f"{name}: shape {tuple(weight.shape)} cannot be broadcast to the input, which has shape {self.input_shape}"
                ) from None

    def losses(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.binary_cross_entropy_with_logits(
            x, target, self._part(self.weight), reduction="none", pos_weight=self._part(self.pos_weight)
        )

    def _part(self, weight: torch.Tensor | None) -> torch.Tensor | None:
        """Return the part of a weight that belongs to this worker's part of the input."""
        window = self.input_layout.window(self.rank)
        if weight is None or window is None:
            return None
        for dim, side in enumerate(weight.shape):
            if side > 1:
                start, stop = window[dim + len(window) - weight.ndim]
                weight = weight.narrow(dim, start, stop - start)
        return weight
