"""Planted bugs of convolutions, transposed ones too: halos, strides, groups, and who gets which gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.core.layout import Layout, Window
from adjointlab.layers.convolution import Convolution
from adjointlab.layers.subjects import installed as subjects
from adjointlab.layers.transposed_convolution import TransposedConvolution
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.halo_exchange import HaloExchange
from tests.planted.altered import Altered, averaged, layers_of, not_reduced


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


@layers_of(subjects.convolutions, "Conv1d")
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
