"""The bridge to torch: every linear operator is a differentiable function.

The operator is its own Jacobian (seed paper, section 3.3), so backward is its adjoint and the forward-mode product is the
operator itself. Both are again such functions: reverse mode, forward mode and double backward go through any
composition of operators.

What is sent must not depend on what requires a gradient on one rank. Each application therefore also takes an empty tensor
that always requires one, so that it stands in the graph of every rank, and its backward communicates whether or not
anybody wants the result. A worker that holds nothing of a tensor has an empty one, which keeps its graph connected: it calls
``backward`` as the others do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import FunctionCtx

from adjointlab.arguments import check_argument
from adjointlab.operator import LinearOperator, apply_forward

__all__ = ["apply", "carried", "differentiable"]


def apply(operator: LinearOperator, *x: torch.Tensor) -> Any:
    """F x as a differentiable function of this rank's local tensors: collective, and so is its backward pass.

    Returns a tensor, or a tuple where the codomain has several. Raises what the operator raises, and
    :class:`adjointlab.operator.NotInSpace` for results that are not in the codomain.
    """
    result = _applied(operator, x)
    return result if len(operator.codomain.tensors) > 1 else result[0]


def carried(operator: LinearOperator, x: torch.Tensor) -> torch.Tensor:
    """F x as :func:`apply` has it, or x itself where F is the identity: for inside a layer, which copies nothing for nothing.

    The result requires a gradient on every rank while gradients are recorded, as that of :func:`apply` does.
    """
    if operator.is_identity and (x.requires_grad or not torch.is_grad_enabled()):
        check_argument(operator.domain.tensors[0], x, operator.comm.Get_rank())
        return x
    result: torch.Tensor = apply(operator, x)
    return result


def differentiable(operator: LinearOperator) -> Any:
    """The function ``x -> apply(operator, *x)``."""
    return lambda *x: apply(operator, *x)


def _applied(operator: LinearOperator, x: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    outputs: tuple[torch.Tensor, ...] = _Apply.apply(_anchor(x), operator, *x)  # type: ignore[no-untyped-call]
    return outputs


def _anchor(x: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """What makes a rank take part in the backward pass, whatever requires a gradient here."""
    device = x[0].device if x else None
    return torch.zeros(0, device=device, requires_grad=torch.is_grad_enabled())


class _Apply(Function):
    """One application. Nothing is saved: the adjoint of a linear map does not depend on where it is taken."""

    @staticmethod
    def forward(anchor: torch.Tensor, operator: LinearOperator, *x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(apply_forward(operator, x))

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.operator = inputs[1]  # type: ignore[attr-defined]

    @staticmethod
    def backward(ctx: Any, *y: torch.Tensor) -> Any:
        adjoint: LinearOperator = ctx.operator.H
        return None, None, *_applied(adjoint, y)

    @staticmethod
    def jvp(ctx: Any, anchor: Any, operator: Any, *x: torch.Tensor) -> Any:
        return _applied(ctx.operator, x)
