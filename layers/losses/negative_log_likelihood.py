"""The distributed negative log-likelihood: cross-entropy of inputs that are logarithms of probabilities already."""

from __future__ import annotations

from torch import nn

from adjointlab.layers.losses.classes import ClassLoss

__all__ = ["NLLLoss"]


class NLLLoss(ClassLoss, torch_classes=(nn.NLLLoss,)):
    """`torch.nn.NLLLoss`; see :class:`ClassLoss`. Only targets and the reduction are sent."""

    argument_names = ("weight", "ignore_index", "reduction")

    def plan(self, module: nn.Module) -> None:
        super().plan(module)
        self.rounding = None
