"""Losses over classes: one target for each position, on workers that hold different classes.

    forward    l̂ = Σ a ∘ (z - x̂)             a: the weights of the worker's classes, mostly 0; z: the logarithm of the exponentials' sum,
               l = R_{P→root} l̂               or 0 if the inputs are logarithms of probabilities
    adjoint    that of each step in the reverse order

A target counts once: it is broadcast to all workers along P_c, but selects a logit only on the one that has its class. So no
weight, and no ignored target, is counted a second time.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.space import Space, Tensor
from adjointlab.layers.differentiable import apply, connected, without_gradient
from adjointlab.layers.grids import with_index_zero, without_dims
from adjointlab.layers.half_precision import accumulation_dtype
from adjointlab.layers.losses.reduction import SUMS, Loss
from adjointlab.layers.torch_modules import device_of, dtype_name, result_of
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.sum_reduce import SumReduce

__all__ = ["ClassLoss"]


class ClassLoss(Loss):
    """A loss over `partition` = P_n x P_c x P_1 x ..., for inputs of `input_shape` (n, C, d_1, ...).

    Called with (input, targets): the input is cut over any dimensions, the classes too. The targets are class indices
    (n, d_1, ...), of element type int64, and each lies on one worker: they are cut as the input is, on the workers whose
    index along P_c is 0, and of zero volume elsewhere. So is the loss with `reduction` "none". An input (C,) with a target of
    order 0 is legal, as in torch.

    `weight` has the C weights, a buffer that every rank has as a whole. The arguments are those of :class:`Loss`;
    `dtype` is by default that of `weight`.

    A mean divides by the sum of the weights of all targets except the ignored ones, over all ranks; without such targets it is
    NaN, as in torch.

    Raises `ValueError`, with torch's message, for weights that are not C, and in a call for targets out of bounds, whichever rank has
    them: the same on every rank, and before anything else is sent.
    """

    weight: torch.Tensor | None
    label_smoothing = 0.0

    def plan(self, module: nn.Module) -> None:
        order = len(self.input_shape)
        self.class_dim = class_dim = min(1, order - 1)
        if order == 0 or self.input_shape[class_dim] == 0:
            raise ValueError(
                f"input_shape: {self.input_shape} is neither (classes,) nor (batch, classes, ...)"
            )
        self.classes = self.input_shape[class_dim]
        loss = cast(nn.NLLLoss, module)
        given = loss.weight
        element = torch.get_default_dtype() if given is None else given.dtype
        nothing = torch.empty(0, self.classes, dtype=element)
        result_of(module, *(each.to(device_of(module)) for each in (nothing, self.no_targets(element))))
        self.ignore_index = loss.ignore_index
        self.make_operators(self.input_layout)
        whole = type(loss)(None if given is None else given.detach().to(self.dtype))
        everyone = Partition((self.comm.Get_size(),))
        self.own(whole, {"weight": Layout((self.classes,), everyone, axes=(None,))})

    def no_targets(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the targets for an input without positions, of that element type."""
        return torch.empty(0, dtype=torch.int64)

    def make_operators(self, x: Layout) -> None:
        """Collective: make the operators between the workers that have the same targets, and all of them."""
        comm, partition, name, class_dim = self.comm, self.partition, dtype_name(self.dtype), self.class_dim
        # One number for each target: on all workers along P_c, and on the first of them.
        self.per_target = without_dims(x, class_dim)
        first = with_index_zero(partition, class_dim)
        targets = Layout(self.per_target.shape, first, self.per_target.windows, self.per_target.axes)
        self.targets_shape = self.per_target.local_shape(self.rank)
        self.spread_targets = Broadcast(comm, targets, partition, dtype="int64", preserve_batch=False)
        self.class_window = (0, 0)
        """The classes that this worker holds."""
        if partition.is_active(self.rank):
            self.class_window = x.windows[class_dim][partition.index(self.rank)[class_dim]]
        if self.reduction == "none":
            self.sum_targets = SumReduce(
                comm,
                self.per_target,
                targets.partition,
                dtype=dtype_name(accumulation_dtype(self.dtype)),
                preserve_batch=False,
            )
        self.codomain = self.space_of_loss(targets)
        self.domain = Space(Tensor(x, name), Tensor(targets, "int64", name="targets"))

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The local tensor of the loss, from those of the input and of the targets."""
        x, targets = self.check_inputs(x, targets)
        targets = without_gradient(self.spread_targets, targets)
        x, log_sums = self.normalised(x.to(accumulation_dtype(self.dtype)))
        if self.partition.is_active(self.rank):
            losses, weights = self._losses(x, targets, log_sums)
        else:
            losses = weights = log_sums
        return self.reduced_over_targets(losses, weights)

    def normalised(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the input minus a number for each target, and the logarithm of the sum of its exponentials; 0 if that sum is 1."""
        return x, connected(x.new_zeros(self.targets_shape), x)

    def reduced_over_targets(self, losses: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the loss, from this worker's contributions to that of each target and to the divisor of a mean."""
        if self.reduction == "none":
            result: torch.Tensor = apply(self.sum_targets, losses)
            return result.to(self.dtype)
        is_mean = self.reduction == "mean"
        return self.reduced(losses.sum(dtype=SUMS), weights.detach().sum(dtype=SUMS) if is_mean else None)

    def _check_inputs(self, x: tuple[torch.Tensor, ...]) -> None:
        super()._check_inputs(x)
        self.check_targets(x[1].detach())

    def check_targets(self, judged: torch.Tensor) -> None:
        """Raise `ValueError`, with torch's message, for targets of this rank that are not classes."""
        judged = judged[judged != self.ignore_index]
        wrong = judged[(judged < 0) | (judged >= self.classes)]
        if wrong.numel():
            raise ValueError(f"Target {int(wrong[0])} is out of bounds.")

    def _losses(
        self, x: torch.Tensor, targets: torch.Tensor, log_sums: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the contributions of this worker's classes to the loss of each target, and to the divisor of a mean.

        `x` and `log_sums` are the results of :meth:`normalised`.
        """
        start, stop = self.class_window
        judged = targets != self.ignore_index
        own = judged & (targets >= start) & (targets < stop)
        zero = x.new_zeros(())
        if start == stop:
            losses = weights = connected(x.new_zeros(self.targets_shape), x, log_sums)
            return losses, weights
        # Targets of other workers, and ignored ones, select any logit, which the outermost `where` drops. That comes last, so
        # that it blocks the cotangent of an excluded class: this may be infinite, and NaN after a product with zero.
        index = torch.where(own, targets - start, 0)
        picked = x.gather(self.class_dim, index.unsqueeze(self.class_dim)).squeeze(self.class_dim)
        own_weights = x.new_ones(stop - start) if self.weight is None else self.weight[start:stop]
        weights = own_weights[index]
        losses = torch.where(own, (log_sums - picked) * weights, zero)
        if self.label_smoothing:
            differences = log_sums.unsqueeze(self.class_dim) - x
            after = (1,) * (x.dim() - self.class_dim - 1)
            even = torch.where(
                judged, (differences * own_weights.reshape(-1, *after)).sum(self.class_dim), zero
            )
            losses = (1 - self.label_smoothing) * losses + self.label_smoothing / self.classes * even
        return losses, torch.where(own, weights, zero)
