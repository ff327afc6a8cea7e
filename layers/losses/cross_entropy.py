"""The distributed cross-entropy, also over classes that are cut, P_c of them [Hewett21, section 4.3 for the reduction].

    forward    x̂ ← x̂ - max_{P_c} max x̂                 no gradient: the loss does not depend on the maximum
               s = 𝒜_{P_c} Σ exp x̂
               l̂ = Σ a ∘ (log s - x̂)                     a: the weights of the worker's classes, mostly 0
               l = R_{P→root} l̂
    adjoint    that of each step in the reverse order, with 𝒜* = 𝒜

A target counts once: it is broadcast to all workers along P_c, but picks a logit from the only one whose classes it is
among. So no worker counts a weight, or an ignored target, a second time.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import nn

from adjointlab.core import arrays
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.space import Space, Tensor
from adjointlab.layers.differentiable import apply, connected
from adjointlab.layers.distributed import dtype_name, with_index_zero
from adjointlab.layers.losses.reduction import SUMS, Loss
from adjointlab.layers.torch_modules import result_of
from adjointlab.primitives import groups
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.sum_reduce import SumReduce
from adjointlab.typing import Communicator

__all__ = ["CrossEntropyLoss"]


class CrossEntropyLoss(Loss, torch_classes=(nn.CrossEntropyLoss,)):
    """`torch.nn.CrossEntropyLoss` over `partition` = P_n x P_c x P_1 x ..., for logits of `input_shape` (n, C, d_1, ...).

    Called with (logits, targets): the logits are cut over any dimensions, the classes too. The targets are class indices
    (n, d_1, ...), of element type int64, and each lies on one worker: they are cut as the logits are, on the workers whose
    index along P_c is 0, and of zero volume elsewhere. So is the loss with `reduction` "none". Logits (C,) with a target of
    order 0 are legal, as they are in torch; targets of class probabilities are not.

    `weight` are the C weights, a buffer that every rank has the whole of. The arguments are those of :class:`Loss`;
    `dtype` is by default that of `weight`.

    A mean divides by the sum of the weights of all targets but the ignored ones, over all ranks; of none it is NaN, as
    torch's is.

    Raises `ValueError`, in torch's words, for weights that are not C, a label smoothing outside of [0, 1], and in a call
    for targets out of bounds, whichever rank has them: the same on every rank, and before anything else is sent.
    """

    argument_names = ("weight", "ignore_index", "reduction", "label_smoothing")
    weight: torch.Tensor | None

    def plan(self, module: nn.Module) -> None:
        order = len(self.input_shape)
        self.class_dim = class_dim = min(1, order - 1)
        if order == 0 or self.input_shape[class_dim] == 0:
            raise ValueError(
                f"input_shape: {self.input_shape} is neither (classes,) nor (batch, classes, ...)"
            )
        self.classes = self.input_shape[class_dim]
        loss = cast(nn.CrossEntropyLoss, module)
        given = loss.weight
        element = torch.get_default_dtype() if given is None else given.dtype
        result_of(module, torch.empty(0, self.classes, dtype=element), torch.empty(0, dtype=torch.int64))
        self.ignore_index, self.label_smoothing = loss.ignore_index, loss.label_smoothing
        # Normwise: some ten roundings of logits and of their exponentials, in another order than torch's. What a loss and a
        # gradient are differences of is of the order of 1, with the lab's small integers, also where hardly anything is left.
        self.rounding, self.reach = 2.0**-44 if self.dtype == torch.float64 else 2.0**-17, 1.0
        self._make_operators(self.input_layout, class_dim)
        whole = nn.CrossEntropyLoss(None if given is None else given.detach().to(self.dtype))
        everyone = Partition((self.comm.Get_size(),))
        self.own(whole, {"weight": Layout((self.classes,), everyone, axes=(None,))})

    def _make_operators(self, x: Layout, class_dim: int) -> None:
        """Collective: make the operators between the workers that have the same targets, and all of them."""
        comm, partition, name = self.comm, self.partition, dtype_name(self.dtype)
        others = tuple(dim for dim in range(x.order) if dim != class_dim)
        shape, windows = tuple(x.shape[dim] for dim in others), [x.windows[dim] for dim in others]
        # One number for each target: on all workers along P_c, and on the first of them.
        per_target = Layout(shape, partition, windows, others)
        targets = Layout(shape, with_index_zero(partition, class_dim), windows, others)
        self.targets_shape = per_target.local_shape(self.rank)
        self.spread_targets = Broadcast(comm, targets, partition, dtype="int64", preserve_batch=False)
        self.sum_exponentials = AllSumReduce(comm, per_target, (class_dim,), dtype=name)
        self.class_comm: Communicator | None = None
        """The workers with the other classes of the same targets, where there are both such workers and targets."""
        self.class_window = (0, 0)
        """The classes that this worker holds."""
        if partition.is_active(self.rank):
            self.class_window = x.windows[class_dim][partition.index(self.rank)[class_dim]]
            # Workers along P_c have the same targets, so either all of a group make its communicator or none does.
            if partition.shape[class_dim] > 1 and per_target.local_size(self.rank) > 0:
                others_ranks = partition.subpartition((class_dim,), self.rank).ranks
                self.class_comm = groups.communicator(comm, others_ranks)
        if self.reduction == "none":
            self.sum_targets = SumReduce(
                comm, per_target, targets.partition, dtype=name, preserve_batch=False
            )
            self.codomain = Space(targets, dtype=name, name="loss")
        else:
            self.codomain = self.reduced_to(2 if self.reduction == "mean" else 1)
        self.domain = Space(Tensor(x, name), Tensor(targets, "int64", name="targets"))

    def sequential(self) -> nn.CrossEntropyLoss:
        """`torch.nn.CrossEntropyLoss` with the same arguments, and a copy of the weights that the layer has now."""
        module = cast(nn.CrossEntropyLoss, super().sequential())
        module.weight = None if self.weight is None else self.weight.detach().clone()
        return module

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The local tensor of the loss, from those of the logits and of the targets."""
        x, targets = self.check_inputs(x, targets)
        targets = cast("torch.Tensor", self.spread_targets.forward(targets))
        active = self.partition.is_active(self.rank)
        if active:
            # Differences of logits: of large ones, the sum with the logarithm would lose its digits.
            x = x - self._largest(x).unsqueeze(self.class_dim)
            local = torch.exp(x).sum(self.class_dim)
        else:
            local = connected(x.new_zeros(self.targets_shape), x)
        sums = apply(self.sum_exponentials, local)
        if active:
            losses, weights = self._losses(x, targets, torch.log(sums))
        else:
            losses = weights = sums
        if self.reduction == "none":
            result: torch.Tensor = apply(self.sum_targets, losses)
            return result
        is_mean = self.reduction == "mean"
        return self.reduced(losses.sum(dtype=SUMS), weights.detach().sum(dtype=SUMS) if is_mean else None)

    def _check_inputs(self, x: tuple[torch.Tensor, ...]) -> None:
        super()._check_inputs(x)
        judged = x[1].detach()
        judged = judged[judged != self.ignore_index]
        wrong = judged[(judged < 0) | (judged >= self.classes)]
        if wrong.numel():
            raise ValueError(f"Target {int(wrong[0])} is out of bounds.")

    def _largest(self, x: torch.Tensor) -> torch.Tensor:
        """The largest logit for each target, over all workers that hold its classes."""
        x = x.detach()
        if x.shape[self.class_dim] == 0:
            # A worker without classes takes part in the reduction, with a number that is never the largest.
            largest = x.new_full(self.targets_shape, -torch.inf)
        else:
            largest = x.amax(self.class_dim)
        if self.class_comm is None:
            return largest
        own = arrays.summable(largest)
        # Gathered, not reduced: MPI leaves open what its maximum makes of NaN.
        every = np.empty((self.class_comm.Get_size(), *own.shape), own.dtype)
        self.class_comm.Allgather(own, every)
        maxima = every.max(axis=0)
        result = cast("torch.Tensor", arrays.from_summable(maxima, dtype_name(self.dtype), largest))
        return result

    def _losses(
        self, x: torch.Tensor, targets: torch.Tensor, log_sums: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The contributions of this worker's classes to the loss of each target, and to the divisor of a mean.

        `x` are the logits, and `log_sums` log-sum-exp, both less the largest logit.
        """
        start, stop = self.class_window
        judged = targets != self.ignore_index
        own = judged & (targets >= start) & (targets < stop)
        zero = x.new_zeros(())
        if start == stop:
            losses = weights = connected(x.new_zeros(self.targets_shape), x, log_sums)
            return losses, weights
        # Targets of other workers, and ignored ones, pick any logit, and the outermost `where` drops it: it comes last,
        # so that no infinite cotangent of an excluded class gets through, which times zero would be NaN.
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
