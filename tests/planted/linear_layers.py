"""Planted bugs of linear layers: of the graph, the modes of differentiation, the memory and what is declared."""

from __future__ import annotations

from typing import Any

import torch

import adjointlab as al
from adjointlab.layers.differentiable import _Apply, anchor_of, apply, connected
from adjointlab.layers.linear import Linear
from tests.planted.altered import Altered


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
