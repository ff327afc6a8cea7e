"""Distributed losses [Hewett21, section 4.3]: point-wise, up to a sum over the partition.

    forward    l̂ = Σ L(x̂, t̂)                   on each worker, over what it holds
               l = R_{P→root} l̂                  the loss, a tensor of order 0, on one worker
    adjoint    δl̂ = R* δl                        the cotangent, on every worker
               (δx̂, δt̂) = [δL]*(δl̂)

The broadcast that an all-reduction would perform in the forward pass comes by itself in the adjoint. A mean divides on the
root by what it is a mean over, summed alike: parts of different sizes weigh what they hold.

With `all_reduce` every worker of the partition has the loss, and it is one value, not one for each of them: its local type
is invariant. So the adjoint of the all-reduction Σ, of varying summands to one invariant value, moves nothing:

    forward    l = Σ_{P} l̂
    adjoint    δl̂ = δl

(an all-reduction to varying copies would sum their cotangents, and P calls of ``loss.backward()`` would give P times the
gradient; docs/local-types.md has both).

Cross-entropy has a sum of its own, where the classes are cut, P_c of them:

    forward    x̂ ← x̂ - max_{P_c} max x̂                 no gradient: the loss does not depend on the maximum
               s = 𝒜_{P_c} Σ exp x̂
               l̂ = Σ a ∘ (log s - x̂)                     a: the weights of the worker's classes, mostly 0
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from torch import nn

from adjointlab import MPI
from adjointlab.core import arrays
from adjointlab.core.layout import Layout
from adjointlab.core.operator import LinearOperator
from adjointlab.core.partition import Partition
from adjointlab.core.space import LocalType, Space, Tensor
from adjointlab.layers.differentiable import apply
from adjointlab.layers.distributed import DistributedModule, connected, dtype_name, face
from adjointlab.primitives import groups
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.sum_reduce import SumReduce
from adjointlab.primitives.validation import check_ranks
from adjointlab.worlds.constants import to_mpi4py

__all__ = ["CrossEntropyLoss", "Loss", "MSELoss", "SharedSum"]

_SUMS = torch.float64
"""Losses and counts are summed in double precision, in which counts are exact."""


class Loss(DistributedModule):
    """What losses share: the reduction to one value.

    With `reduction` "mean" or "sum" the loss is a tensor of order 0 on the rank `root`, which may be any rank of `comm`,
    and a tensor of zero volume, of shape (0,), elsewhere. Backward is called on every rank:
    ``loss.backward(torch.ones_like(loss))``. With `all_reduce` every worker of `partition` has the loss, as an invariant
    value: ``loss.backward()`` there, and as before where it is of zero volume; every worker gives the same cotangent, and
    it counts once. `root` is then of no meaning, and neither has a meaning with `reduction` "none".

    `cuts` are the boundaries of the input in each dimension (default, and for `None` in one: balanced).

    Raises `ValueError`, with torch's words where torch has some, for an unknown reduction, a `root` that is no rank, and a
    partition of another order than the input; and in a call, on every rank, for an input or a target that is not what
    `domain` says on some: nothing is broadcast.
    """

    reduction_names: ClassVar[tuple[str, ...]] = ("none", "mean", "sum")

    def __init__(
        self,
        comm: Any,
        partition: Partition,
        input_shape: Sequence[int],
        reduction: str,
        *,
        root: int,
        all_reduce: bool,
        dtype: torch.dtype,
        cuts: Sequence[Sequence[int] | None] | None,
    ) -> None:
        super().__init__(comm, partition)
        shape = tuple(input_shape)
        if reduction not in self.reduction_names:
            raise ValueError(f"{reduction} is not a valid value for reduction")
        if not 0 <= root < comm.Get_size():
            raise ValueError(f"root: {root} is none of the ranks 0 to {comm.Get_size() - 1}")
        self.check_order(shape)
        self.shape, self.reduction, self.root, self.all_reduce = shape, reduction, root, all_reduce
        self.dtype = dtype
        self.input_layout = Layout.cut(shape, partition, (None,) * len(shape) if cuts is None else cuts)

    def reduced_to(self, parts: int) -> Space:
        """Collective: plan the sum of `parts` numbers of each worker; the space of the loss."""
        summands = Layout((parts,), self.partition, [((0, parts),)], (None,))
        name, order = dtype_name(self.dtype), self.partition.order
        self.sum_parts: LinearOperator
        if self.all_reduce:
            self.sum_parts = SharedSum(self.comm, summands, dtype=dtype_name(_SUMS))
            types = (LocalType.INVARIANT,) * order
            return Space(Layout((), self.partition, [], ()), dtype=name, types=types, name="loss")
        one = Partition((1,) * order, [self.root])
        self.sum_parts = SumReduce(self.comm, summands, one, dtype=dtype_name(_SUMS), preserve_batch=False)
        return Space(Layout((), one, [], ()), dtype=name, name="loss")

    def reduced(self, parts: torch.Tensor) -> torch.Tensor:
        """The loss, from this worker's summands: that of the loss, and, if there is a second, of what divides it."""
        sums: torch.Tensor = apply(self.sum_parts, parts)
        if sums.numel() == 0:
            return sums.reshape(-1).to(self.dtype)
        loss = sums[0] if len(sums) == 1 else sums[0] / sums[1].detach()
        return loss.to(self.dtype)


class CrossEntropyLoss(Loss):
    """`torch.nn.CrossEntropyLoss` over `partition` = P_b x P_c x P_1 x ..., for logits of `input_shape` (n, C, d_1, ...).

    Called with (logits, targets): the logits are cut over any dimensions, the classes too. The targets are class indices
    (n, d_1, ...), of element type int64, and each is in one place: they are cut as the logits are, on the workers whose
    index along P_c is 0, and of zero volume elsewhere. So is the loss with `reduction` "none". Logits (C,) with a target of
    order 0 are legal, as they are in torch; targets of class probabilities are not.

    `weight` are the C weights, a buffer that every rank has the whole of. The other arguments are torch's, and those of
    :class:`Loss`.

    A mean divides by the sum of the weights of all targets but the ignored ones, over all ranks; of none it is NaN, as
    torch's is.

    Raises `ValueError`, with torch's words, for weights that are not C, a label smoothing outside of [0, 1], and in a call
    for targets out of bounds, whichever rank has them: the same on every rank, and before anything else is sent.
    """

    weight: torch.Tensor | None

    def __init__(
        self,
        comm: Any,
        partition: Partition,
        input_shape: Sequence[int],
        weight: torch.Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        root: int = 0,
        all_reduce: bool = False,
        dtype: torch.dtype | None = None,
        cuts: Sequence[Sequence[int] | None] | None = None,
    ) -> None:
        if dtype is None:
            dtype = torch.get_default_dtype() if weight is None else weight.dtype
        super().__init__(
            comm,
            partition,
            input_shape,
            reduction,
            root=root,
            all_reduce=all_reduce,
            dtype=dtype,
            cuts=cuts,
        )
        x, order = self.input_layout, len(self.shape)
        if order == 0 or self.shape[min(1, order - 1)] == 0:
            raise ValueError(f"input_shape: {self.shape} is neither (classes,) nor (batch, classes, ...)")
        self.dim = along = min(1, order - 1)
        self.classes = self.shape[along]
        if not 0.0 <= label_smoothing <= 1.0:
            raise ValueError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing:g}")
        if weight is not None and tuple(weight.shape) != (self.classes,):
            raise ValueError(
                f"weight tensor should be defined either for all {self.classes} classes or no classes but got weight "
                f"tensor of shape: {list(weight.shape)}"
            )
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing
        # Normwise: some ten roundings of logits and of their exponentials, in another order than torch's. What a loss and a
        # gradient are differences of is of the order of 1, with the lab's small integers, also where hardly anything is left.
        self.rounding, self.reach = 2.0**-44 if dtype == torch.float64 else 2.0**-17, 1.0

        name = dtype_name(dtype)
        others = tuple(dim for dim in range(order) if dim != along)
        places = tuple(self.shape[dim] for dim in others)
        windows = [x.windows[dim] for dim in others]
        held = Layout(places, partition, windows, others)
        targets = Layout(places, face(partition, along), windows, others)
        self.held = held.local_shape(self.rank)
        self.spread_targets = Broadcast(comm, targets, partition, dtype="int64", preserve_batch=False)
        self.sum_exponentials = AllSumReduce(comm, held, (along,), dtype=name)
        self.along: Any = (
            None  # the workers with the other classes of the same places, where there is something to ask
        )
        self.window = (0, 0)
        """The classes that this worker holds."""
        if partition.is_active(self.rank):
            self.window = x.windows[along][partition.index(self.rank)[along]]
            if partition.shape[along] > 1 and held.local_size(self.rank) > 0:
                self.along = groups.communicator(comm, partition.subpartition((along,), self.rank).ranks)
        if reduction == "none":
            self.sum_places = SumReduce(comm, held, targets.partition, dtype=name, preserve_batch=False)
            self.codomain = Space(targets, dtype=name, name="loss")
        else:
            self.codomain = self.reduced_to(2 if reduction == "mean" else 1)
        self.domain = Space(Tensor(x, name), Tensor(targets, "int64", name="targets"))
        everyone = Partition((comm.Get_size(),))
        whole = self._sequential(None if weight is None else weight.detach().to(dtype))
        self.own(whole, {"weight": Layout((self.classes,), everyone, axes=(None,))})

    @classmethod
    def from_sequential(
        cls,
        module: nn.CrossEntropyLoss,
        comm: Any,
        partition: Partition,
        input_shape: Sequence[int],
        **given: Any,
    ) -> Self:
        """The distributed loss with the arguments of `module`; `given` are those that it has not, from `root` on.

        Raises `ValueError` for a module of another class.
        """
        cls.check_sequential(module, nn.CrossEntropyLoss)
        layer = cls(
            comm,
            partition,
            input_shape,
            module.weight,
            module.ignore_index,
            module.reduction,
            module.label_smoothing,
            **given,
        )
        return layer.train(module.training)

    def sequential(self) -> nn.CrossEntropyLoss:
        """`torch.nn.CrossEntropyLoss` with the same arguments, and a copy of the weights that the layer has now."""
        return self._sequential(None if self.weight is None else self.weight.detach().clone())

    def _sequential(self, weight: torch.Tensor | None) -> nn.CrossEntropyLoss:
        return nn.CrossEntropyLoss(
            weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The local tensor of the loss, from those of the logits and of the targets."""
        x, targets = self.check_inputs(x, targets)
        targets = self.spread_targets.forward(targets)
        active = self.partition.is_active(self.rank)
        if active:
            # Differences of logits: of large ones, the sum with the logarithm would lose its digits.
            x = x - self._largest(x).unsqueeze(self.dim)
            local = torch.exp(x).sum(self.dim)
        else:
            local = connected(x.new_zeros(self.held), x)
        sums = apply(self.sum_exponentials, local)
        if active:
            losses, weights = self._losses(x, targets, torch.log(sums))
        else:
            losses = weights = sums
        if self.reduction == "none":
            result: torch.Tensor = apply(self.sum_places, losses)
            return result
        parts = [losses.sum(dtype=_SUMS)]
        if self.reduction == "mean":
            parts.append(weights.detach().sum(dtype=_SUMS))
        stacked = torch.stack(parts)
        return self.reduced(stacked if active else stacked[:0])

    def _check_inputs(self, x: tuple[Any, ...]) -> None:
        super()._check_inputs(x)
        judged = x[1].detach()
        judged = judged[judged != self.ignore_index]
        wrong = judged[(judged < 0) | (judged >= self.classes)]
        if wrong.numel():
            raise ValueError(f"Target {int(wrong[0])} is out of bounds.")

    def _largest(self, x: torch.Tensor) -> torch.Tensor:
        """The largest logit of each place, over all workers that hold its classes."""
        x = x.detach()
        if x.shape[self.dim] == 0:
            largest = x.new_full(self.held, -torch.inf)
        else:
            largest = x.amax(self.dim)
        if self.along is None:
            return largest
        maxima = _maxima(self.along, arrays.summable(largest))
        return cast("torch.Tensor", arrays.from_summable(maxima, dtype_name(self.dtype), largest))

    def _losses(
        self, x: torch.Tensor, targets: torch.Tensor, log_sums: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What this worker's classes contribute to the loss of each place, and to what a mean divides by.

        `x` are the logits, and `log_sums` log-sum-exp, both less the largest logit.
        """
        start, stop = self.window
        judged = targets != self.ignore_index
        own = judged & (targets >= start) & (targets < stop)
        zero = x.new_zeros(())
        if start == stop:
            losses = weights = connected(x.new_zeros(self.held), x, log_sums)
            return losses, weights
        # Of what is no target here, or ignored, the outermost `where` lets no infinite cotangent through.
        index = torch.where(own, targets - start, 0)
        picked = x.gather(self.dim, index.unsqueeze(self.dim)).squeeze(self.dim)
        own_weights = x.new_ones(stop - start) if self.weight is None else self.weight[start:stop]
        weights = own_weights[index]
        losses = torch.where(own, (log_sums - picked) * weights, zero)
        if self.label_smoothing:
            differences = log_sums.unsqueeze(self.dim) - x
            after = (1,) * (x.dim() - self.dim - 1)
            even = torch.where(judged, (differences * own_weights.reshape(-1, *after)).sum(self.dim), zero)
            losses = (1 - self.label_smoothing) * losses + self.label_smoothing / self.classes * even
        return losses, torch.where(own, weights, zero)


class MSELoss(Loss):
    """`torch.nn.MSELoss` over `partition`, of the order of the inputs, which lie alike and are cut in any dimensions.

    Called with (input, target), two tensors of `input_shape`. With `reduction` "none" nothing is sent, and the loss lies
    as the inputs do. The other arguments are those of :class:`Loss`.
    """

    def __init__(
        self,
        comm: Any,
        partition: Partition,
        input_shape: Sequence[int],
        reduction: str = "mean",
        *,
        root: int = 0,
        all_reduce: bool = False,
        dtype: torch.dtype | None = None,
        cuts: Sequence[Sequence[int] | None] | None = None,
    ) -> None:
        super().__init__(
            comm,
            partition,
            input_shape,
            reduction,
            root=root,
            all_reduce=all_reduce,
            dtype=dtype or torch.get_default_dtype(),
            cuts=cuts,
        )
        name = dtype_name(self.dtype)
        self.domain = Space(Tensor(self.input_layout, name), Tensor(self.input_layout, name, name="target"))
        if reduction == "none":
            self.codomain = Space(self.input_layout, dtype=name, name="loss")
        else:
            self.codomain = self.reduced_to(2 if reduction == "mean" else 1)
        if reduction == "mean":
            # One quotient of exact numbers is torch's, but its gradient is a product of three factors.
            self.rounding = 4 * torch.finfo(self.dtype).eps

    @classmethod
    def from_sequential(
        cls, module: nn.MSELoss, comm: Any, partition: Partition, input_shape: Sequence[int], **given: Any
    ) -> Self:
        """The distributed loss with the arguments of `module`; `given` are those that it has not, from `root` on.

        Raises `ValueError` for a module of another class.
        """
        cls.check_sequential(module, nn.MSELoss)
        return cls(comm, partition, input_shape, module.reduction, **given).train(module.training)

    def sequential(self) -> nn.MSELoss:
        """`torch.nn.MSELoss` with the same arguments."""
        return nn.MSELoss(reduction=self.reduction)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The local tensor of the loss, from those of the input and of the target."""
        x, target = self.check_inputs(x, target)
        losses: torch.Tensor = (x - target) ** 2
        if self.reduction == "none":
            return losses
        parts = [losses.sum(dtype=_SUMS)]
        if self.reduction == "mean":
            parts.append(parts[0].new_tensor(float(losses.numel())))
        stacked = torch.stack(parts)
        return self.reduced(stacked if self.partition.is_active(self.rank) else stacked[:0])


class SharedSum(LinearOperator):
    """Σ: varying local tensors over the same window are summed to one invariant value, which every worker has.

    ``forward(x)`` is the all-reduction over all dimensions of the partition. ``adjoint(y)`` moves nothing: each summand's
    cotangent is that of the sum. Raises what :class:`AllSumReduce` raises.
    """

    symbol = "Σ"
    batched = True

    def __init__(self, comm: Any, layout: Layout, *, dtype: str = "float64") -> None:
        check_ranks("layout", layout.partition, comm.Get_size())
        order = layout.partition.order
        self.comm = comm
        self._sum = AllSumReduce(comm, layout, range(order), dtype=dtype)
        self.gain = self.fan_in = self._sum.gain
        self.domain = Space(layout, dtype=dtype, name="x")
        self.codomain = Space(layout, dtype=dtype, types=(LocalType.INVARIANT,) * order, name="y")

    def forward(self, x: Any) -> Any:
        """The sum, on every worker."""
        return self._sum.forward(x)

    def adjoint(self, y: Any) -> Any:
        """This worker's copy of y."""
        return arrays.copy(y)


def _maxima(comm: Any, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Collective: element by element the largest that any rank of `comm` has."""
    mpi4py = sys.modules.get("mpi4py.MPI")
    largest = to_mpi4py(MPI.MAX) if mpi4py is not None and isinstance(comm, mpi4py.Comm) else MPI.MAX
    result = np.empty_like(values)
    comm.Allreduce(values, result, op=largest)
    return result
