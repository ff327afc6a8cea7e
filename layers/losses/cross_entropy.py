"""The distributed cross-entropy, also over classes that are cut, P_c of them [Hewett21, section 4.3 for the reduction].

forward    x̂ ← x̂ - max_{P_c} max x̂                 no gradient: the loss does not depend on the maximum
           s = 𝒜_{P_c} Σ exp x̂
           l̂ = Σ a ∘ (log s - x̂)                     as all losses over classes (classes.py)
           l = R_{P→root} l̂
adjoint    that of each step in the reverse order, with 𝒜* = 𝒜
"""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.layers.differentiable import apply, connected
from adjointlab.layers.distributed import dtype_name
from adjointlab.layers.largest import Largest
from adjointlab.layers.losses.classes import ClassLoss
from adjointlab.primitives.all_sum_reduce import AllSumReduce

__all__ = ["CrossEntropyLoss"]


class CrossEntropyLoss(ClassLoss, torch_classes=(nn.CrossEntropyLoss,)):
    """`torch.nn.CrossEntropyLoss` of logits; see :class:`ClassLoss`. Targets of class probabilities are not legal.

    Raises `ValueError` for a label smoothing outside of [0, 1] too.
    """

    argument_names = ("weight", "ignore_index", "reduction", "label_smoothing")

    def plan(self, module: nn.Module) -> None:
        super().plan(module)
        self.label_smoothing = cast(nn.CrossEntropyLoss, module).label_smoothing
        # Normwise: some ten roundings of logits and of their exponentials, in another order than torch's. What a loss and a
        # gradient are differences of is of the order of 1, with the lab's small integers, also where hardly anything is left.
        self.rounding, self.reach = 2.0**-44 if self.dtype == torch.float64 else 2.0**-17, 1.0

    def make_operators(self, x: Layout) -> None:
        super().make_operators(x)
        self.sum_exponentials = AllSumReduce(
            self.comm, self.per_target, (self.class_dim,), dtype=dtype_name(self.dtype)
        )
        self.largest = Largest(self.comm, x, self.class_dim)

    def normalised(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.partition.is_active(self.rank):
            return x, apply(self.sum_exponentials, connected(x.new_zeros(self.targets_shape), x))
        # Differences of logits: of large ones, the sum with the logarithm would lose its digits.
        x = x - self.largest.of(x).unsqueeze(self.class_dim)
        sums = apply(self.sum_exponentials, torch.exp(x).sum(self.class_dim))
        return x, torch.log(sums)
