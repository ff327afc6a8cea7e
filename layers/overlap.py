"""Convolution while its halo is exchanged [Kuehn20, section 3.2]: interior first, then the rim.

    forward    start H x    y of the interior    wait    y of the rim, joined
    adjoint    δx̂ = the data gradient    start H* δx̂    δw, the weight gradient    wait, and add the received halos

:mod:`adjointlab.layers.output_parts` defines interior and rim, with a picture.

In every pass the messages are the same as if the exchange and the convolution were separate: so a worker that has nothing to
convolve, or that gets another element type from autocast, may use these two while other workers overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

import torch
from torch.autograd.function import FunctionCtx

from adjointlab.layers.differentiable import PositionalFunction, anchor_of, applied, connected, end_of
from adjointlab.layers.output_parts import Part, parts_of_outputs, without_halo
from adjointlab.layers.torch_modules import function_of_dims
from adjointlab.primitives.halo_exchange import OverlappedHaloExchange
from adjointlab.typing import Array

__all__ = ["OverlappedConvolution"]

_Gradients: TypeAlias = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


class OverlappedConvolution:
    """y = Conv(H x): a convolution, without padding, of the windows that `exchange` returns.

    `kernel`, `stride` and `dilation` are those of the spatial dimensions, which follow the first two. The call is a
    differentiable function of (x, weight, bias), of any order and in forward mode too.
    """

    def __init__(
        self,
        exchange: OverlappedHaloExchange,
        kernel: Sequence[int],
        stride: Sequence[int],
        dilation: Sequence[int],
    ) -> None:
        self.exchange, self.stride, self.dilation = exchange, tuple(stride), tuple(dilation)
        reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
        self.interior: Part | None = None
        self.rim: tuple[Part, ...] = ()
        rank, windows = exchange.comm.Get_rank(), exchange.codomain.tensors[0].layout
        self.window_size = windows.local_size(rank)
        if (window := windows.window(rank)) is not None:
            outputs = [
                max(0, (stop - start - r) // s + 1)
                for (start, stop), r, s in zip(window[2:], reach, self.stride, strict=True)
            ]
            self.interior, self.rim = parts_of_outputs(
                outputs, without_halo(exchange, rank), reach, self.stride
            )

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, groups: int
    ) -> torch.Tensor:
        """The local tensor of y, from that of x; the result requires a gradient while gradients are recorded."""
        y, _, _ = _Overlapped.apply(anchor_of((x,)), self, groups, x, weight, bias)
        return cast("torch.Tensor", y)

    def convolve(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, groups: int
    ) -> torch.Tensor:
        """Return torch's convolution of a window, or of a part of one."""
        convolution: Callable[..., torch.Tensor] = function_of_dims("conv", len(self.stride))
        return convolution(x, weight, bias, self.stride, 0, self.dilation, groups)

    def forward(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, groups: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Collective: return y, and the window that it is computed from."""
        made: list[tuple[Part, torch.Tensor]] = []

        def convolve(part: Part, window: torch.Tensor) -> None:
            made.append(
                (part, self.convolve(window[(slice(None), slice(None), *part.inputs)], weight, bias, groups))
            )

        def convolve_interior(window: Array) -> None:
            if self.interior is not None:
                convolve(self.interior, cast("torch.Tensor", window))

        window = cast("torch.Tensor", self.exchange.forward_while(x, convolve_interior))
        for part in self.rim:
            convolve(part, window)
        if len(made) == 1:
            return made[0][1], window
        sides = [max(part.outputs[dim].stop for part, _ in made) for dim in range(len(self.stride))]
        y = window.new_empty(*made[0][1].shape[:2], *sides)
        for part, value in made:
            y[(slice(None), slice(None), *part.outputs)] = value
        return y, window

    def gradients(
        self,
        cotangent: torch.Tensor,
        window: torch.Tensor,
        weight: torch.Tensor,
        groups: int,
        wanted: tuple[bool, bool, bool],
    ) -> _Gradients:
        """Return the wanted gradients of window, weight and bias, by torch's backward convolution, which is differentiable again."""
        dims = len(self.stride)
        return cast(
            "_Gradients",
            torch.ops.aten.convolution_backward(
                cotangent, window, weight, [weight.shape[0]], self.stride, (0,) * dims, self.dilation, False,
                (0,) * dims, groups, wanted,
            ),
        )  # fmt: skip


class _Context(FunctionCtx):
    """State of one call between its forward and its backward pass."""

    convolution: OverlappedConvolution
    groups: int
    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[torch.Tensor, ...]


class _Overlapped(PositionalFunction):
    """One call. Outputs are y, the window, and the empty tensor that keeps all ranks in passes through a backward pass.

    Since the window is an output, the backward pass is a function of tensors in the graph, and so differentiable: a second
    derivative that reaches the window goes back through the exchange from here.
    """

    @staticmethod
    def forward(
        anchor: torch.Tensor | None,
        convolution: OverlappedConvolution,
        groups: int,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y, window = convolution.forward(x, weight, bias, groups)
        return y, window, end_of((x,))

    @staticmethod
    def setup_context(
        ctx: _Context,
        inputs: tuple[
            torch.Tensor | None, OverlappedConvolution, int, torch.Tensor, torch.Tensor, torch.Tensor | None
        ],
        output: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    ) -> None:
        _, ctx.convolution, ctx.groups, _, weight, _ = inputs
        _, window, end = output
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(window, weight, end)
        ctx.save_for_forward(window, weight, end)

    @staticmethod
    def backward(
        ctx: _Context, cotangent: torch.Tensor | None, of_window: torch.Tensor | None, _: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        window, weight, end = ctx.saved_tensors
        convolution, exchange = ctx.convolution, ctx.convolution.exchange
        wants_weight, wants_bias = ctx.needs_input_grad[4:]

        def gradients(of_x: bool, of_weight: bool, of_bias: bool) -> _Gradients:
            if cotangent is None:
                return None, None, None
            return convolution.gradients(cotangent, window, weight, ctx.groups, (of_x, of_weight, of_bias))

        def whole(of_y: torch.Tensor | None) -> torch.Tensor:
            """Return the cotangent of the window, the sum of at most two terms."""
            shares = [share for share in (of_y, of_window) if share is not None]
            return sum(shares[1:], start=shares[0]) if shares else torch.zeros_like(window)

        if torch.is_grad_enabled():
            # One step for all three gradients, as in torch's convolution: a further pass must go through the same steps on this rank
            # as on a rank that does not overlap.
            of_y, of_weight, of_bias = gradients(True, wants_weight, wants_bias)
            (of_x,) = applied(exchange.H, (whole(of_y),), end)
            # Even if only the gradient of the weight or bias is needed, as on a rank that does not overlap.
            of_weight, of_bias = (
                None if each is None else connected(each, of_x) for each in (of_weight, of_bias)
            )
            return None, None, None, of_x, of_weight, of_bias
        # The data gradient is computed on every rank, even if x requires none there: its halo belongs to other ranks.
        sent = whole(gradients(True, False, False)[0])
        # The other two are computed while it is sent. `sent` is not written before they are complete.
        learnt: list[_Gradients] = []
        own = exchange.adjoint_while(sent, lambda: learnt.append(gradients(False, wants_weight, wants_bias)))
        return None, None, None, cast("torch.Tensor", own), *learnt[0][1:]

    @staticmethod
    def jvp(
        ctx: _Context,
        anchor: torch.Tensor | None,
        convolution: None,
        groups: None,
        x: torch.Tensor | None,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        window, primal_weight, end = ctx.saved_tensors
        of_window = torch.zeros_like(window) if x is None else applied(ctx.convolution.exchange, (x,))[0]
        y = ctx.convolution.convolve(of_window, primal_weight, bias, ctx.groups)
        if weight is not None:
            y = y + ctx.convolution.convolve(window, weight, None, ctx.groups)
        return y, of_window, torch.zeros_like(end)
