"""The distributed cross-entropy, also over classes that are cut, P_c of them [Hewett21, section 4.3 for the reduction].

forward    x̂ ← x̂ - max_{P_c} max x̂                 no gradient: the loss does not depend on the maximum
           s = 𝒜_{P_c} Σ exp x̂
           l̂ = Σ a ∘ (log s - x̂)                     as in all losses over classes (classes.py); for probabilities t, a = w ∘ t
           l = R_{P→root} l̂
adjoint    that of each step in the reverse order, with 𝒜* = 𝒜
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.core.space import Space, Tensor
from adjointlab.layers.differentiable import apply, connected
from adjointlab.layers.half_precision import accumulation_dtype
from adjointlab.layers.largest import Largest
from adjointlab.layers.losses.classes import ClassLoss
from adjointlab.layers.torch_modules import dtype_name
from adjointlab.primitives.all_sum_reduce import AllSumReduce

__all__ = ["CrossEntropyLoss"]


class CrossEntropyLoss(ClassLoss, torch_classes=(nn.CrossEntropyLoss,)):
    """`torch.nn.CrossEntropyLoss` of logits; see :class:`ClassLoss`.

    With `probabilities` the targets are numbers for each class, of the input's element type, shape and layout: a worker has those of
    the classes whose logits it has. Torch recognises such targets by their shape; here it is an argument of the layer.
    A mean then divides by the number of positions, whatever the weights.

    Also raises `ValueError` for a label smoothing outside [0, 1], and for an `ignore_index` of at least 0 with probabilities.
    """

    argument_names = ("weight", "ignore_index", "reduction", "label_smoothing")
    options = (*ClassLoss.options, "probabilities")

    def lay_out(
        self,
        module: nn.modules.loss._Loss,
        root: int = 0,
        all_reduce: bool = False,
        cuts: Sequence[Sequence[int] | None] | None = None,
        probabilities: bool = False,
    ) -> None:
        self.probabilities = probabilities
        super().lay_out(module, root, all_reduce, cuts)

    def plan(self, module: nn.Module) -> None:
        super().plan(module)
        self.label_smoothing = cast(nn.CrossEntropyLoss, module).label_smoothing
        # Normwise: some ten roundings of logits and of their exponentials, in another order than torch's. With the lab's small
        # integers, a loss and a gradient are differences of terms of the order of 1, even if hardly anything is left.
        self.rounding, self.reach = 2.0**-44 if self.dtype == torch.float64 else 2.0**-17, 1.0

    def no_targets(self, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(0, self.classes, dtype=dtype) if self.probabilities else super().no_targets(dtype)

    def make_operators(self, x: Layout) -> None:
        super().make_operators(x)
        wide = accumulation_dtype(self.dtype)
        self.sum_exponentials = AllSumReduce(
            self.comm, self.per_target, (self.class_dim,), dtype=dtype_name(wide)
        )
        self.largest = Largest(self.comm, x, self.class_dim, wide)
        if self.probabilities:
            name = dtype_name(self.dtype)
            self.domain = Space(Tensor(x, name), Tensor(x, name, name="targets"))

    def normalised(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.partition.is_active(self.rank):
            return x, apply(self.sum_exponentials, connected(x.new_zeros(self.targets_shape), x))
        # Differences of logits: if these are large, their sum with the logarithm would lose its digits.
        x = x - self.largest.of(x)
        sums = apply(self.sum_exponentials, torch.exp(x).sum(self.class_dim))
        return x, torch.log(sums)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The local tensor of the loss, from those of the input and of the targets."""
        if not self.probabilities:
            return super().forward(x, targets)
        x, targets = (each.to(accumulation_dtype(each.dtype)) for each in self.check_inputs(x, targets))
        x, log_sums = self.normalised(x)
        losses = numbers = connected(log_sums, targets)
        if self.partition.is_active(self.rank):
            losses = self.expected(x, targets, log_sums)
            is_first = self.partition.index(self.rank)[self.class_dim] == 0
            numbers = torch.full_like(log_sums, float(is_first), requires_grad=False)
        return self.reduced_over_targets(losses, numbers)

    def expected(self, x: torch.Tensor, targets: torch.Tensor, log_sums: torch.Tensor) -> torch.Tensor:
        """Return the contributions of this worker's classes to the loss of each position.

        `x` and `log_sums` are the results of :meth:`normalised`.
        """
        if self.label_smoothing:
            targets = targets * (1 - self.label_smoothing) + self.label_smoothing / self.classes
        terms = (log_sums.unsqueeze(self.class_dim) - x) * targets
        if self.weight is not None:
            own = self.weight[slice(*self.class_window)]
            terms = terms * own.reshape(-1, *(1,) * (x.dim() - self.class_dim - 1))
        return terms.sum(self.class_dim)

    def check_targets(self, judged: torch.Tensor) -> None:
        if not self.probabilities:
            super().check_targets(judged)
