"""PlantedBug bugs of distributed layers: each one slip in a layer of the library, or in a small loss as a user writes one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import adjointlab as al
from adjointlab.core.layout import Layout, Window
from adjointlab.engine.subject import Subject
from adjointlab.layers.attention import Attention
from adjointlab.layers.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d, BatchNormalisation
from adjointlab.layers.convolution import Conv1d, Convolution
from adjointlab.layers.differentiable import _Apply, anchor_of, applied, apply, connected
from adjointlab.layers.distributed import DistributedModule
from adjointlab.layers.dropout import Dropout
from adjointlab.layers.embedding import Embedding
from adjointlab.layers.grids import with_index_zero
from adjointlab.layers.group_norm import GroupNorm
from adjointlab.layers.instance_norm import (
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    InstanceNormalisation,
)
from adjointlab.layers.joining import Chunk, Concatenation, Split, Stack
from adjointlab.layers.layer_norm import LayerNorm, RMSNorm
from adjointlab.layers.linear import Linear
from adjointlab.layers.losses import CrossEntropyLoss, KLDivLoss, NLLLoss
from adjointlab.layers.losses.classes import ClassLoss
from adjointlab.layers.matrix_product import MatrixProduct
from adjointlab.layers.normalisation import ChannelNormalisation
from adjointlab.layers.padding import Padding
from adjointlab.layers.pooling import (
    AdaptiveAveragePooling,
    AdaptiveMaxPooling,
    AveragePooling,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    LPPool1d,
    LPPool2d,
    LPPool3d,
    LPPooling,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    MaxPooling,
    MaxUnpool1d,
    MaxUnpool2d,
    MaxUnpool3d,
    MaxUnpooling,
)
from adjointlab.layers.resampling import Resampling
from adjointlab.layers.reshape import Reshape, Unflatten
from adjointlab.layers.shuffle import ChannelShuffle, PixelShuffle, PixelUnshuffle
from adjointlab.layers.softmax import LogSoftmax, Softmax
from adjointlab.layers.stationary_convolution import StationaryConv1d, StationaryConvolution
from adjointlab.layers.subjects import installed as subjects
from adjointlab.layers.subjects.class_losses import class_loss
from adjointlab.layers.subjects.class_probabilities import probability_loss
from adjointlab.layers.subjects.embedding import with_legal_indices
from adjointlab.layers.subjects.losses import with_legal_target
from adjointlab.layers.subjects.pooling import unpool
from adjointlab.layers.transposed_convolution import (
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    TransposedConvolution,
)
from adjointlab.layers.upsampling import Upsample
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.halo_exchange import HaloExchange
from adjointlab.primitives.sum_reduce import SumReduce
from tests.planted import small_layers
from tests.planted.altered import Altered, averaged, not_reduced
from tests.planted.bug import PlantedBug
from tests.planted.matrix_products import (
    OwnSummandForTheProduct,
    PanelGradientNotSummed,
    PanelOfAnotherStep,
)
from tests.planted.stationary import (
    BiasBeforeTheSum,
    GatheredFromTheOtherSubgrid,
    InputGradientNotScattered,
    OutputOnTheGridOfTheInput,
    PartsInTheOrderOfRanks,
    SliceInPlaceOfTheSum,
    StationaryWeightGradientAveraged,
    WeightOnTheExchangedGrid,
    stationary_lines,
)

# Convolution.


class BiasOnEveryChannelWorker(Convolution):
    """Every worker along P_ci adds the bias to its summand."""

    def __init__(self, comm: Any, partition: al.Partition, *arguments: Any, **named: Any) -> None:
        super().__init__(comm, partition, *arguments, **named)
        if self.spread_bias is not None:
            (bias,) = self.spread_bias.domain.tensors
            self.spread_bias = Broadcast(comm, bias.layout, partition, dtype=bias.dtype, preserve_batch=False)


class WeightGradientNotSummed(Convolution):
    """Takes the root's own gradient for that of all spatial workers and parts of the batch."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.spread_both = None
        self.spread_weight = not_reduced(self.spread_weight)


class WeightGradientAveraged(Convolution):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.spread_both = None
        self.spread_weight = averaged(self.spread_weight)


class BiasGradientNotSummed(Convolution):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.spread_both = None
        if self.spread_bias is not None:
            self.spread_bias = not_reduced(self.spread_bias)


class JoinedGradientsSwapped(Convolution):
    """Takes the bias's gradient from before the weight's in the message of both."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        both = self.spread_both
        if both is not None:
            self.spread_both = Altered(both, adjoint=lambda *y: self.in_the_wrong_order(both.adjoint(*y)))

    def in_the_wrong_order(self, of_both: Any) -> tuple[torch.Tensor, ...]:
        joined, start = torch.cat([each.reshape(-1) for each in reversed(of_both)]), 0
        results = []
        for each in of_both:
            results.append(joined[start : start + each.numel()].reshape(each.shape))
            start += each.numel()
        return tuple(results)


class InputGradientNotReduced(Convolution):
    """Forgets that every worker along P_co has used the input."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.spread_x = not_reduced(self.spread_x)


class OtherWindows(Convolution):
    """A convolution whose workers get other windows of the input, of the right shapes."""

    def __init__(self, comm: Any, *arguments: Any, **named: Any) -> None:
        super().__init__(comm, *arguments, **named)
        bulk, window = (space.tensors[0].layout for space in (self.exchange.domain, self.exchange.codomain))
        windows = [
            [self.other(dim, *pair) for pair in zip(wanted, owned, strict=True)] if dim >= 2 else wanted
            for dim, (wanted, owned) in enumerate(zip(window.windows, bulk.windows, strict=True))
        ]
        self.exchange = HaloExchange(
            comm,
            bulk,
            al.Layout(window.shape, window.partition, windows, window.axes),
            periodic=self.exchange.geometry.periodic,
            dtype=self.domain.tensors[0].dtype,
        )

    def other(self, dim: int, window: Window, bulk: Window) -> Window:
        raise NotImplementedError


class HaloOfTheWrongSide(OtherWindows):
    """Takes the right halo's width for the left one, and the left one's for the right."""

    def other(self, dim: int, window: Window, bulk: Window) -> Window:
        return sum(bulk) - window[1], sum(bulk) - window[0]


class StridePhaseFromTheLocalStart(OtherWindows):
    """The first output of a worker is where its own input begins, whatever the stride says of the global tensor."""

    def other(self, dim: int, window: Window, bulk: Window) -> Window:
        start = bulk[0] - self.padding[dim - 2][0]
        return start, start + window[1] - window[0]


class GroupsFromTheWrongChannels(Convolution):
    """Every worker along P_co takes the first channels for those of its groups."""

    def summand(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self.groups > 1 and self.partition.shape[1] > 1 and self.partition.is_active(self.rank):
            first, _ = self.local_groups[self.partition.index(self.rank)[1]]
            x = x.roll(first * (self.in_channels // self.groups), 1)
        return super().summand(x, weight, bias)


class IdleWorkerLeavesTheGraph(Convolution):
    """A worker without anything to convolve returns a new tensor."""

    def summand(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if 0 in (x.numel(), weight.numel(), *self.local_output_shape):
            return x.new_zeros(self.local_output_shape)
        return super().summand(x, weight, bias)


# Linear.


class OwnLinear(Linear):
    """A linear layer with a way of its own to make operators differentiable."""

    def differentiable(self, operator: al.LinearOperator, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = apply(operator, x)
        return result

    def product(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.differentiable(self.spread_x, x)
        weight = self.differentiable(self.spread_weight, self.weight)
        if self.partition.is_active(self.rank):
            y = self.product(x, weight)
        else:
            y = connected(x, weight)
        if self.spread_bias is not None and self.bias is not None:
            bias = self.differentiable(self.spread_bias, self.bias)
            y = y + bias if bias.numel() else connected(y, bias)
        return self.differentiable(self.sum_y, y)


class BackwardOnlyWhereAGradientIsAskedFor(OwnLinear):
    """Nothing but the input puts the operator into the graph: where that requires no gradient, nobody sends."""

    def differentiable(self, operator: al.LinearOperator, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Apply.apply(torch.zeros(0), operator, x)[0]  # type: ignore[no-untyped-call]
        return result


class _TangentsNotMoved(_Apply):
    @staticmethod
    def jvp(ctx: Any, anchor: Any, operator: Any, *x: torch.Tensor) -> Any:
        layout, rank = ctx.operator.codomain.tensors[0].layout, ctx.operator.comm.Get_rank()
        own = x[0].clone() if layout.partition.is_active(rank) else x[0].new_zeros(layout.local_shape(rank))
        _, *rest = _Apply.jvp(ctx, anchor, operator, *x)
        return own, *rest


class TangentsNotSummed(OwnLinear):
    """Reverse mode is right, but forward mode leaves the sum over P_fi out."""

    def differentiable(self, operator: al.LinearOperator, x: torch.Tensor) -> torch.Tensor:
        if operator is not self.sum_y:
            return super().differentiable(operator, x)
        result: torch.Tensor = _TangentsNotMoved.apply(anchor_of((x,)), operator, x)[0]  # type: ignore[no-untyped-call]
        return result


class CotangentSharedOut(Linear):
    """Backward gives each worker along P_fi its share of the cotangent, not all of it."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        workers, right = self.partition.shape[-1], self.sum_y
        self.sum_y = Altered(right, adjoint=lambda y: right.adjoint(y) / workers)  # type: ignore[assignment]


class _Product(torch.autograd.Function):
    """x Wᵀ, as a function of one's own."""

    @staticmethod
    def forward(ctx: Any, layer: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.layer = layer
        ctx.save_for_backward(x, weight)
        return torch.nn.functional.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        x, weight = ctx.layer.saved(*ctx.saved_tensors)
        leading = list(range(x.dim() - 1))
        return None, g @ weight, torch.tensordot(g, x, (leading, leading))


class OwnProduct(OwnLinear):
    """A linear layer whose local product is differentiated by hand."""

    forward_mode = False

    def product(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return _Product.apply(self, x, weight)  # type: ignore[no-any-return, no-untyped-call]

    def saved(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, weight


class InputSavedOnTheModule(OwnProduct):
    """The backward pass takes the input of the last forward pass for its own."""

    def product(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        self.last = x.detach()
        return super().product(x, weight)

    def saved(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.last, weight


class GradientsWithoutAGraph(OwnProduct):
    """The gradients are right, but cut off from what they depend on."""

    def saved(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.detach(), weight.detach()


class OutputBufferReused(Linear):
    """Every call returns the same memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        if not hasattr(self, "memory"):
            self.memory = torch.empty_like(y)
        return Returned.apply(y, self.memory)  # type: ignore[no-any-return, no-untyped-call]

    forward_mode = False


class Returned(torch.autograd.Function):
    """y, in memory that is given."""

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        return memory.copy_(y).view_as(y)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g, None


class OwnCotangent(Linear):
    """A linear layer that does something with the cotangent first; a rank without any leaves it as it is."""

    forward_mode = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return _Taken.apply(y, self.taken) if y.numel() else y  # type: ignore[no-any-return, no-untyped-call]

    def taken(self, g: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class _Taken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, taken: Any) -> torch.Tensor:
        ctx.taken = taken
        return y.clone()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return ctx.taken(g), None


class CotangentTakenForContiguous(OwnCotangent):
    """Reads the cotangent's memory from the first element on."""

    def taken(self, g: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(g, g.shape, torch.empty(g.shape).stride())


class CotangentZeroed(OwnCotangent):
    """Clears the cotangent's memory for the next time, though another branch of the graph may share it."""

    def taken(self, g: torch.Tensor) -> torch.Tensor:
        mine = g.clone()
        g.detach().zero_()
        return mine


class AccumulatedGradientLost(Linear):
    """A hook that clears the gradient before the new one arrives, so that there is nothing to add it to."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.weight.register_hook(self.clear)

    def clear(self, g: torch.Tensor) -> None:
        self.weight.grad = None


class InputOverwritten(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        x.detach().mul_(2)
        return y


class BiasNotDeclared(Linear):
    """The space of the parameters names the weight alone, so that nobody would look at the bias."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.parameter_space = al.Space(self.parameter_space.tensors[0])


class HaloWithoutDilation(TransposedConvolution):
    """The inputs that a worker fetches reach as far as the kernel, but not as far as its dilation puts it."""

    def inputs_of(self, outputs: Sequence[tuple[Window, ...]], x: Layout) -> Layout:
        reach = self.kernel_reach
        self.kernel_reach = tuple(each // d for each, d in zip(reach, self.dilation, strict=True))
        needed = super().inputs_of(outputs, x)
        self.kernel_reach = reach
        return needed


class OutputsPlacedFromTheFirstInput(TransposedConvolution):
    """The padding is taken off at every part's border."""

    def _trims(self, dim: int, inputs: Window, outputs: Window) -> tuple[int, int]:
        left, right = super()._trims(dim, inputs, outputs)
        shift = self.padding[dim] if inputs[0] > 0 else 0
        return left - shift, right + shift


# Batch normalisation.


class LocalStatistics(BatchNormalisation):
    """Normalises by what the worker itself holds."""

    def _measured(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        if not x.numel():
            return x, x.new_ones(x.shape[1])
        others = self.moments.dims
        mean, variance = x.mean(others), x.var(others, unbiased=False)
        if self.training:
            self._track(mean.detach(), variance.detach())
        return x - self._along(mean), variance


def average_parts(layer: BatchNormalisation | GroupNorm) -> None:
    """Have the layer take the mean of the workers' mean squares, as if all of them held as much."""
    (x,), moments = layer.domain.tensors, layer.moments
    summed, shape = moments.sum_pairs, x.layout.local_shape(layer.rank)
    of_each = math.prod(shape[dim] for dim in moments.dims)
    workers = math.prod(layer.partition.shape[dim] for dim in moments.dims)
    share = moments.count / (of_each * workers) if of_each else 0.0
    moments.sum_pairs = Altered(  # type: ignore[assignment]
        summed, forward=lambda s: summed.forward(s * share), adjoint=lambda t: summed.adjoint(t) * share
    )


class VariancesAveraged(BatchNormalisation):
    """Takes the mean of the workers' mean squares, as if all of them held as much."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        average_parts(self)


class RunningVarianceBiased(BatchNormalisation):
    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        super()._track(mean, variance * ((self.moments.count - 1) / self.moments.count))


class RunningStatisticsUpdatedInEvaluation(BatchNormalisation):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training and self.track_running_stats and self.moments.count > 1:
            self.training = True
            with torch.no_grad():
                self._measured(x)
            self.training = False
        return super().forward(x)


class StatisticsGradientNotReduced(BatchNormalisation):
    """All-reduces whose backward pass is the identity."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        moments = self.moments
        moments.sum = Altered(moments.sum, adjoint=torch.clone)  # type: ignore[assignment]
        moments.sum_pairs = Altered(moments.sum_pairs, adjoint=torch.clone)  # type: ignore[assignment]


# The other normalisations.


class GroupVariancesAveraged(GroupNorm):
    """As :class:`VariancesAveraged`, over the spatial parts of a group."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        average_parts(self)


class GroupsCountedLocally(GroupNorm):
    """Takes the first channel that the worker holds for the first of the tensor."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        groups = self.moments._group_of
        if groups is not None and groups.numel():
            self.moments._group_of = groups - groups[0]


class NormWeightGradientNotReduced(LayerNorm):
    """Each worker along the sequence keeps the gradient of its own part, as without Megatron's all-reduction of such weights."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.spread = not_reduced(self.spread)  # type: ignore[assignment]


class RootMeanSquareOfTheOwnPart(RMSNorm):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        parts = math.prod(self.partition.shape[dim] for dim in self.moments.dims)
        summed = self.moments.sum
        self.moments.sum = Altered(summed, forward=lambda s: s * parts, adjoint=lambda t: t * parts)  # type: ignore[assignment]


class RunningStatisticsOfTheLocalBatch(InstanceNormalisation):
    """Updates the running statistics with the samples of this worker alone."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        summed, batch = self.sum_batch, self.domain.tensors[0].layout.local_shape(self.rank)[0]
        if self.channel_dim:
            share = self.batch / batch if batch else 0.0
            self.sum_batch = Altered(summed, forward=lambda s: s * share)  # type: ignore[assignment]


# Resampling.


class InterpolatesTheOwnPart(Upsample):
    """Each worker interpolates what it holds, as if it were the whole: corners and centres are those of the part."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held, sides = x, self.local_output_shape[2:]
        y = super().forward(x)
        if 0 in held.shape or 0 in y.shape:
            return y
        aligned = None if self.mode == "nearest" else self.align_corners
        return functional.interpolate(held, size=sides, mode=self.mode, align_corners=aligned) + 0 * y

    def lay_out(self, module: nn.Module) -> None:
        super().lay_out(module)
        given = cast(nn.Upsample, module)
        self.mode, self.align_corners = given.mode, given.align_corners


class AveragesTheOwnPart(AdaptiveAveragePooling):
    """Each worker spreads its outputs over what it holds itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, dims = super().forward(x), len(self.taps)
        if 0 in x.shape or 0 in y.shape:
            return y
        pool = getattr(functional, f"adaptive_avg_pool{dims}d")
        own: torch.Tensor = pool(x, self.local_output_shape[-dims:])
        return own + 0 * y


class ConstantAtEveryBorder(Padding):
    """Each worker sets its own first output to the constant, where only the tensor's border is padded."""

    def lay_out(self, module: nn.Module) -> None:
        super().lay_out(module)
        if self.value and self.taps and self.padding[0] > 0:
            self.outside = torch.arange(self.local_output_shape[-1]) == 0


# Dropout.


class MaskByLocalIndex(Dropout):
    """The mask of a tensor that begins where the worker's part does."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.window = tuple((0, stop - start) for start, stop in self.window)


class MaskScaledByTheOwnShare(Dropout):
    """Divides by the share of its own elements that a worker has kept."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        kept = y.detach() != 0
        share = float(kept.sum()) / max(1, int((x.detach() != 0).sum()))
        return y * ((1 - self.p) / share) if self.training and 0 < self.p < 1 and share else y


# Attention.


class StaleBlock(Attention):
    """In the second step of the ring a worker still uses the keys and values of the first."""

    def _attended(self, state: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: Window) -> Any:
        before = getattr(self, "before", None)
        self.before = None if before is not None else (k, v)
        if before is not None and before[0].shape == k.shape and len(self.key_windows) > 1:
            return super()._attended(state, q, *before, window)
        return super()._attended(state, q, k, v, window)


class MaskByLocalPositions(Attention):
    """The causal mask compares positions in the worker's part with positions in the block."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        start, stop = self.query_window
        self.query_window = (0, stop - start)
        self.key_windows = [(0, stop - start) for start, stop in self.key_windows]


class GradientsOfBlocksStayWhereTheyAre(Attention):
    """The backward pass of a step of the ring leaves the gradient of a block with the worker that used it."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        rank = self.rank
        for number, step in enumerate(self.steps):
            shape = step.domain.tensors[0].layout.local_shape(rank)

            def kept(y: torch.Tensor, shape: tuple[int, ...] = shape) -> torch.Tensor:
                return y.clone() if y.shape == shape else y.new_zeros(shape)

            self.steps[number] = Altered(step, adjoint=kept)  # type: ignore[call-overload]


# Joining.


class JoinedOnEachWorker(Concatenation):
    """Each worker joins what it holds of the tensors, which along a cut is not what it holds of the result."""

    def forward(self, *x: torch.Tensor) -> torch.Tensor:
        y, own = super().forward(*x), torch.cat(x, self.dim)
        return own + 0 * y if own.shape == y.shape else y


class PartsInTheWrongOrder(Split):
    """Every part but the first begins where the one before it does."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = super().forward(x)
        return tuple(
            before + 0 * part if before.shape == part.shape else part
            for before, part in zip((parts[0], *parts), parts, strict=False)
        )


# Embedding.


class RowsOfOtherWorkersKept(Embedding):
    """A worker that lacks an index gives its own nearest row, where it has to give zeros."""

    def _own_rows(self, indices: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        start, stop = self.window
        if start == stop:
            return super()._own_rows(indices, weight)
        return super()._own_rows(indices.clamp(start, stop - 1), weight)


class PaddingRowOfEveryWorker(Embedding):
    """The padding row is counted from the worker's own first row."""

    def _own_rows(self, indices: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        padding, start = self.padding_idx, self.window[0]
        self.padding_idx = None if padding is None else padding + start
        rows = super()._own_rows(indices, weight)
        self.padding_idx = padding
        return rows


# Softmax and losses over classes.


class SumsOfTheOwnPart(Softmax):
    """Divides by the sum of the worker's own exponentials."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.sum = Altered(self.sum, forward=torch.clone, adjoint=torch.clone)  # type: ignore[assignment]


class LargestOfTheOwnPart(LogSoftmax):
    """Each worker subtracts the largest of its own elements before they are summed."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.largest._gather = Altered(self.largest._gather, forward=torch.clone, adjoint=torch.clone)  # type: ignore[assignment]


class SmoothedOverTheOwnClasses(CrossEntropyLoss):
    """Divides the label smoothing by the number of the worker's own classes."""

    def _losses(
        self, x: torch.Tensor, targets: torch.Tensor, log_sums: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        whole, (start, stop) = self.classes, self.class_window
        self.classes = max(1, stop - start)
        losses = super()._losses(x, targets, log_sums)
        self.classes = whole
        return losses


class DividedByOwnWeights(NLLLoss):
    """A mean that each worker divides by the weights of its own targets, as many as there are workers too large."""

    def reduced_over_targets(self, losses: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        own = weights.sum()
        if self.reduction == "mean" and float(own.detach()) > 0:
            return super().reduced_over_targets(losses / own, torch.ones_like(own) / self.partition.size)
        return super().reduced_over_targets(losses, weights)


class BatchMeanOfTheOwnPart(KLDivLoss):
    """Divides by the number of samples that the worker holds."""

    def losses(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        share = self.input_shape[0] / max(1, x.shape[0]) if self.reduction == "batchmean" else 1.0
        return super().losses(x, target) * share


# Pooling.


class AverageCountsPadding(AveragePooling):
    """Divides by the whole window at the border, asked to or not."""

    def lay_out(self, module: Any) -> None:
        asked, module.count_include_pad = module.count_include_pad, True
        super().lay_out(module)
        self.count_include_pad = module.count_include_pad = asked


class MaximumOfZeros(MaxPooling):
    """Pads with the zeros that a halo exchange leaves beyond the tensor, which are larger than what is negative."""

    holds_padding = True

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.outside = ((0, 0),) * self.dims


class IndicesInTheLocalTensor(MaxPooling):
    def _globally(self, indices: torch.Tensor, sides: Sequence[int]) -> torch.Tensor:
        return indices


class GradientsOfUnpooledElementsStay(MaxUnpooling):
    """Each worker keeps the gradients of its own elements, and drops those of elements that it was given."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        gather, dims = self.gather, self.dims
        (x,) = gather.domain.tensors

        def own(y: torch.Tensor) -> torch.Tensor:
            window = x.layout.window(self.rank)
            if window is None:
                return y.new_zeros(x.layout.local_shape(self.rank))
            return y[(..., *(slice(start, stop) for start, stop in window[-dims:]))].clone()

        self.gather = Altered(gather, adjoint=own)  # type: ignore[assignment]


# A loss.


class MeanSquaredError(DistributedModule):
    """The mean over all elements of (x - target)², on the first worker; x and target are cut in any way."""

    rounding = 2.0**-48  # normwise: a quotient by the number of elements, and products with it

    def __init__(self, comm: Any, layout: al.Layout) -> None:
        super().__init__(comm, layout.partition)
        workers, order = layout.partition, layout.partition.order
        self.domain = al.Space(al.Tensor(layout, name="x"), al.Tensor(layout, name="target"))
        y = al.Layout((), with_index_zero(workers, *range(order)), [], ())
        self.codomain = al.Space(y, name="y")
        self.sum_y = SumReduce(comm, al.Layout((), workers, [], ()), y.partition, preserve_batch=False)
        self.elements = math.prod(layout.shape)

    def summand(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return ((x - target) ** 2).sum() / self.elements

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if self.partition.is_active(self.rank):
            y = self.summand(x, target)
        else:
            layout = self.sum_y.domain.tensors[0].layout
            y = connected(x.new_zeros(layout.local_shape(self.rank)), x, target)
        result: torch.Tensor = apply(self.sum_y, y)
        return result


class MeanOfLocalMeans(MeanSquaredError):
    """The mean over the workers of the mean of each."""

    def summand(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return ((x - target) ** 2).sum() / max(1, x.numel()) / self.partition.size


class _WithoutAWayBack(_Apply):
    """Nothing leads from the application of the adjoint back to that of the operator."""

    @staticmethod
    def backward(ctx: Any, *y: torch.Tensor) -> Any:
        return None, None, *applied(ctx.operator.H, y[:-1])


class QuotientOnTheRootAlone(MeanSquaredError):
    """Divides two sums where they arrive, and nowhere else: a second derivative leads the root alone back to them."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        y = ((x - target) ** 2).sum()
        if not self.partition.is_active(self.rank):
            y = connected(x.new_zeros(self.sum_y.domain.tensors[0].layout.local_shape(self.rank)), x, target)
        total, number = (
            self.summed(each) for each in (y, torch.full_like(y, x.numel(), requires_grad=False))
        )
        return total / number if total.numel() else connected(total, number)

    def summed(self, y: torch.Tensor) -> torch.Tensor:
        return _WithoutAWayBack.apply(anchor_of((y,)), self.sum_y, y)[0]  # type: ignore[no-any-return, no-untyped-call]


def _mean_squared_error(**_: Any) -> torch.nn.Module:
    return torch.nn.MSELoss()


@al.subject(layer=MeanSquaredError, sequential=_mean_squared_error, twice_differentiable=True)
def errors(draw: Any, ranks: int) -> dict[str, Any]:
    """Tensors with elements, cut unevenly, so that workers hold none."""
    shape = [draw(st.integers(1, 6)) for _ in range(draw(st.integers(1, 2)))]
    return {"layout": draw(al.strategies.layouts(ranks, whole=False, shape=shape))}


# The built-in strategies and sequential twins, with another layer.


@al.subject(
    layer=subjects.convolutions.build.args[0],  # type: ignore[attr-defined]
    sequential=subjects.convolutions.reference.args[0],  # type: ignore[union-attr]
    twice_differentiable=True,
    name="Conv1d",
)
def lines(draw: Any, ranks: int) -> dict[str, Any]:
    """Convolutions in one dimension: all that the bugs need, and small enough to be shrunk in a test."""
    kernel, stride = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    padding = draw(st.integers(0, kernel - 1)), draw(st.integers(0, kernel - 1))
    groups = draw(st.integers(1, 3))
    channels = [groups * draw(st.integers(1, 2)) for _ in range(2)]
    batch, side = draw(st.integers(1, 2)), draw(st.integers(kernel, 9))
    bias = draw(st.sampled_from((True, True, False)))
    # Fewer workers are fewer draws: so this shrinks to fewer.
    size = draw(st.integers(1, ranks))
    shape = draw(st.sampled_from(al.strategies.grids(size, 3)))
    left = list(range(ranks))
    partition = al.Partition(
        (1, *shape), [left.pop(draw(st.integers(0, len(left) - 1))) for _ in range(size)]
    )
    return {
        "dims": 1,
        "partition": partition,
        "input_shape": (batch, channels[0], side),
        "in_channels": channels[0],
        "out_channels": channels[1],
        "kernel_size": (kernel,),
        "stride": (stride,),
        "padding": (padding,),
        "dilation": (1,),
        "groups": groups if 1 in partition.shape[1:3] else 1,
        "bias": bias,
        "padding_mode": "zeros",
        "dtype": "float64",
    }


MOVED: tuple[tuple[type[DistributedModule], tuple[Any, ...], Subject], ...] = (
    (Unflatten, (), subjects.unflattenings),
    (Reshape, (), subjects.reshapes),
    (Stack, (), subjects.stacks),
    (Chunk, (), subjects.chunks),
    (PixelShuffle, (), subjects.pixel_shuffles),
    (PixelUnshuffle, (), subjects.pixel_unshuffles),
    (ChannelShuffle, (), subjects.channel_shuffles),
    (AdaptiveMaxPooling, (), subjects.adaptive_max_pools),
    (LPPooling, (LPPool1d, LPPool2d, LPPool3d), subjects.power_average_pools),
    (MaxUnpooling, (MaxUnpool1d, MaxUnpool2d, MaxUnpool3d), subjects.max_unpools),
    (small_layers.OfProbabilities, (), subjects.probability_cross_entropies),
)
"""Families of small layers, before the classes that they derive from; the right ones are in tests/subjects/test_layers.py alone."""

FAMILIES: tuple[tuple[type[DistributedModule], tuple[Any, ...], Subject], ...] = (
    (Convolution, (Conv1d,), lines),
    (StationaryConvolution, (StationaryConv1d,), stationary_lines),
    (
        TransposedConvolution,
        (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d),
        subjects.transposed_convolutions,
    ),
    (Linear, (), subjects.linears),
    (MatrixProduct, (), subjects.matrix_products),
    (BatchNormalisation, (BatchNorm1d, BatchNorm2d, BatchNorm3d), subjects.batch_norms),
    (GroupNorm, (), subjects.group_norms),
    (LayerNorm, (), subjects.layer_norms),
    (RMSNorm, (), subjects.rms_norms),
    (InstanceNormalisation, (InstanceNorm1d, InstanceNorm2d, InstanceNorm3d), subjects.instance_norms),
    (Upsample, (), subjects.upsamplings),
    (AdaptiveAveragePooling, (), subjects.adaptive_average_pools),
    (Padding, (), subjects.paddings),
    (Dropout, (), subjects.dropouts),
    (Attention, (), subjects.attentions),
    (Concatenation, (), subjects.concatenations),
    (Split, (), subjects.splits),
    (Embedding, (), subjects.embeddings),
    (Softmax, (), subjects.softmaxes),
    (LogSoftmax, (), subjects.log_softmaxes),
    (CrossEntropyLoss, (), subjects.cross_entropies),
    (NLLLoss, (), subjects.negative_log_likelihoods),
    (KLDivLoss, (), subjects.divergences),
    (AveragePooling, (AvgPool1d, AvgPool2d, AvgPool3d), subjects.average_pools),
    (MaxPooling, (MaxPool1d, MaxPool2d, MaxPool3d), subjects.max_pools),
    (MeanSquaredError, (), errors),
)
"""A family, its classes for one to three dimensions, and the subject whose strategy and twin its bugs share."""


def with_layer(kind: type[DistributedModule]) -> Subject:
    """The subject of the family of `kind`, with `kind` in the place of the layer."""
    bases, right = next(
        (bases, right) for family, bases, right in (*MOVED, *FAMILIES) if issubclass(kind, family)
    )
    (_, prepare, _), (sequential,) = right.build.args, right.reference.args  # type: ignore[attr-defined, union-attr]
    kinds = [type(f"{kind.__name__}{dims}d", (kind, base), {}) for dims, base in enumerate(bases, start=1)]

    def layer(comm: Any, *, dims: int = 0, **arguments: Any) -> DistributedModule:
        given = (
            {**arguments, "dtype": getattr(torch, arguments["dtype"])} if "dtype" in arguments else arguments
        )
        if issubclass(kind, small_layers.OfProbabilities):
            return cast(CrossEntropyLoss, probability_loss(comm, kind=kind, **arguments))
        if issubclass(kind, MaxUnpooling):
            return cast(MaxUnpooling, unpool(comm, kinds=kinds, dims=dims, **arguments))
        if issubclass(kind, ClassLoss):
            return cast(ClassLoss, class_loss(comm, kind=kind, **arguments))
        if issubclass(kind, KLDivLoss):
            return cast(KLDivLoss, with_legal_target(kind(comm, **given), arguments["log_target"]))
        if issubclass(kind, Embedding):
            return cast(Embedding, with_legal_indices(kind(comm, **given), given["num_embeddings"]))
        if issubclass(kind, Resampling):
            shape, module = given["input_shape"], sequential(**arguments)
            return kind(comm, given["partition"], shape, module, dtype=given["dtype"])
        if not kinds:
            return kind(comm, **given)
        made: DistributedModule = kinds[(dims or max(1, len(given["input_shape"]) - 2)) - 1](comm, **given)
        if isinstance(made, ChannelNormalisation):
            of_dims = {"dims": dims} if dims else {}
            made.load_sequential(sequential(**arguments, **of_dims))  # the running statistics
        return made

    return al.subject(
        layer=layer, sequential=sequential, prepare=prepare, twice_differentiable=True, name=kind.__name__
    )(right.draws)


def planted(bug: str, kind: type[DistributedModule], check: str, least_ranks: int = 2) -> PlantedBug:
    """A bug with the strategy and the sequential twin of the right layer."""
    return PlantedBug(bug, with_layer(kind), check, least_ranks)


PLANTED = (
    planted("bias added on every worker along P_ci", BiasOnEveryChannelWorker, "sequential"),
    planted("weight gradient not summed over the spatial workers", WeightGradientNotSummed, "gradients"),
    planted("weight gradient averaged", WeightGradientAveraged, "gradients"),
    planted("gradients of weight and bias in the wrong order", JoinedGradientsSwapped, "gradients"),
    planted("bias gradient not summed", BiasGradientNotSummed, "gradients"),
    planted("input gradient not reduced over P_co", InputGradientNotReduced, "gradients"),
    planted("left and right halo swapped", HaloOfTheWrongSide, "sequential", 1),
    planted("stride counted from the local start", StridePhaseFromTheLocalStart, "sequential"),
    planted("groups take the wrong channels", GroupsFromTheWrongChannels, "sequential"),
    planted("idle worker leaves the graph", IdleWorkerLeavesTheGraph, "gradients"),
    planted(
        "no backward where the input requires no gradient", BackwardOnlyWhereAGradientIsAskedFor, "gradients"
    ),
    planted("forward mode without the sum", TangentsNotSummed, "jacobian"),
    planted("cotangent divided among the summands", CotangentSharedOut, "gradients"),
    planted("stationary weight on the exchanged grid", WeightOnTheExchangedGrid, "sequential", 4),
    planted("stationary output on the input's grid", OutputOnTheGridOfTheInput, "sequential", 4),
    planted(
        "stationary input gathered from the other sub-grid", GatheredFromTheOtherSubgrid, "sequential", 4
    ),
    planted("gathered channels in the order of ranks", PartsInTheOrderOfRanks, "sequential"),
    planted("gathered input's gradient not summed", InputGradientNotScattered, "gradients"),
    planted("slice in place of a reduce-scatter", SliceInPlaceOfTheSum, "sequential"),
    planted("bias added before a reduce-scatter", BiasBeforeTheSum, "sequential"),
    planted("stationary weight's gradient averaged", StationaryWeightGradientAveraged, "gradients"),
    planted("panel of another step", PanelOfAnotherStep, "sequential", 1),
    planted("panel's gradient not summed", PanelGradientNotSummed, "gradients"),
    planted("own summand taken for the product", OwnSummandForTheProduct, "sequential"),
    planted("transposed convolution's halo without dilation", HaloWithoutDilation, "sequential"),
    planted("transposed convolution pads every part", OutputsPlacedFromTheFirstInput, "sequential"),
    planted("local statistics", LocalStatistics, "sequential"),
    planted("variance averaged over uneven parts", VariancesAveraged, "sequential"),
    planted("running variance biased", RunningVarianceBiased, "sequential", 1),
    planted(
        "running statistics updated in evaluation", RunningStatisticsUpdatedInEvaluation, "sequential", 1
    ),
    planted("identity as the statistics' backward", StatisticsGradientNotReduced, "gradients"),
    planted("group's variance averaged over uneven parts", GroupVariancesAveraged, "sequential"),
    planted("groups counted from the worker's first channel", GroupsCountedLocally, "sequential"),
    planted("norm's weight gradient not reduced", NormWeightGradientNotReduced, "gradients"),
    planted("root mean square of the own part", RootMeanSquareOfTheOwnPart, "sequential"),
    planted("running statistics of the local batch", RunningStatisticsOfTheLocalBatch, "sequential"),
    planted("interpolation of the own part", InterpolatesTheOwnPart, "sequential"),
    planted("adaptive average of the own part", AveragesTheOwnPart, "sequential"),
    planted("constant padding at every part's border", ConstantAtEveryBorder, "sequential"),
    planted("dropout mask by local index", MaskByLocalIndex, "sequential"),
    planted("dropout scaled by the own share", MaskScaledByTheOwnShare, "sequential", 1),
    planted("joined on each worker", JoinedOnEachWorker, "sequential"),
    planted("parts of a split in the wrong place", PartsInTheWrongOrder, "sequential", 1),
    planted("ring attention with a stale block", StaleBlock, "sequential"),
    planted("causal mask by local positions", MaskByLocalPositions, "sequential"),
    planted("gradients of a ring's blocks stay", GradientsOfBlocksStayWhereTheyAre, "gradients"),
    planted("rows of other workers' vocabulary kept", RowsOfOtherWorkersKept, "sequential"),
    planted("padding row counted from the own vocabulary", PaddingRowOfEveryWorker, "gradients"),
    planted("softmax divides by the own part's sum", SumsOfTheOwnPart, "sequential"),
    planted("softmax subtracts the own part's largest", LargestOfTheOwnPart, "sequential"),
    planted("label smoothing over the own classes", SmoothedOverTheOwnClasses, "sequential"),
    planted("mean over the own weights", DividedByOwnWeights, "sequential"),
    planted("batch mean of the own part", BatchMeanOfTheOwnPart, "sequential"),
    planted("reshaped on each worker", small_layers.ReshapedLocally, "sequential"),
    planted("unflattened in the other order", small_layers.UnflattenedInTheOtherOrder, "sequential", 1),
    planted("stacked along another dimension", small_layers.StackedAlongAnotherDimension, "sequential", 1),
    planted("chunks of the own part", small_layers.ChunksOfTheOwnPart, "sequential"),
    planted("pixels of an uneven channel cut", small_layers.PixelsOfAnUnevenChannelCut, "sequential"),
    planted("blocks of pixels from the own first one", small_layers.PixelsOfTheOwnPart, "sequential"),
    planted("channels left where they are cut", small_layers.ChannelsLeftWhereTheyAreCut, "sequential"),
    planted("adaptive maximum of the own part", small_layers.AdaptiveMaximaOfTheOwnPart, "sequential"),
    planted("adaptive indices in the own part", small_layers.AdaptiveIndicesInTheOwnPart, "sequential"),
    planted("clipped windows of a power average", small_layers.ClippedWindowsCountedWhole, "sequential", 1),
    planted("unpooled by local index", small_layers.UnpooledByLocalIndex, "sequential"),
    planted("unpooled elements' gradients stay", GradientsOfUnpooledElementsStay, "gradients"),
    planted(
        "probabilities smoothed over the own classes",
        small_layers.ProbabilitiesSmoothedOverTheOwnClasses,
        "sequential",
    ),
    planted("positions counted by every worker", small_layers.PositionsCountedByEveryWorker, "sequential"),
    planted("average counts padding", AverageCountsPadding, "sequential", 1),
    planted("maximum pads with zero", MaximumOfZeros, "sequential", 1),
    planted("indices in the local tensor", IndicesInTheLocalTensor, "sequential"),
    planted("mean of local means under uneven cuts", MeanOfLocalMeans, "sequential"),
    planted("input saved on the module", InputSavedOnTheModule, "gradients", 1),
    planted("output buffer reused", OutputBufferReused, "sequential", 1),
    planted("cotangent taken for contiguous", CotangentTakenForContiguous, "gradients", 1),
    planted("cotangent zeroed", CotangentZeroed, "gradients", 1),
    planted("accumulated gradient lost", AccumulatedGradientLost, "gradients", 1),
    planted("input overwritten", InputOverwritten, "sequential", 1),
    planted("parameter not declared", BiasNotDeclared, "gradients", 1),
    planted("gradients without a graph", GradientsWithoutAGraph, "double_backward", 1),
    planted("quotient on the root alone", QuotientOnTheRootAlone, "double_backward"),
)

RIGHT = (lines, stationary_lines, errors, with_layer(OwnLinear), with_layer(OwnProduct))
"""The right layers that are no built-in subjects, all of whose checks `tests/subjects` runs."""
