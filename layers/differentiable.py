"""The bridge to torch: every linear operator is a differentiable function.

The operator is its own Jacobian [Hewett21, section 3.3], so backward is its adjoint and the forward-mode product is the
operator itself. Both are again such functions: reverse mode, forward mode and double backward go through any
composition of operators.

What a rank sends, in a backward pass and in one through a backward pass, must not depend on what it holds, nor on what
requires a gradient there. Two empty tensors see to that:

- each application takes one that always requires a gradient, so that it stands in the graph of every rank, and its
  backward communicates whether or not anybody wants the result;
- each application makes one, which is what the adjoint's application in the backward pass takes. So a pass through the latter
  goes on through the former, on every rank. Of the functions between two operators some are linear where a worker holds
  nothing (it returns zeros) and not linear elsewhere, and in a graph of torch's alone only the latter lead back to
  their arguments.

Torch runs a graph in the reverse order of its making; so the same applications are the same messages in the same order. A
worker that holds nothing of a tensor has an empty one, which keeps its graph connected: it calls ``backward`` as the others do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import Function

from adjointlab.core.arguments import check_argument
from adjointlab.core.operator import LinearOperator, apply_forward

__all__ = ["apply", "carried", "connected", "differentiable", "of_nothing"]


def apply(operator: LinearOperator, *x: torch.Tensor) -> Any:
    """F x as a differentiable function of this rank's local tensors: collective, and so is its backward pass.

    Returns a tensor, or a tuple where the codomain has several. Raises what the operator raises, and
    :class:`adjointlab.core.operator.NotInSpace` for results that are not in the codomain.
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


def connected(result: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """`result`, which as far as the graph is concerned also depends on `others`, but on none of their elements.

    So a worker that computes nothing with a tensor takes part in its backward pass. The dependence is linear; where other
    workers apply a function, :func:`of_nothing` has that function's.
    """
    for other in others:
        result = result + other.reshape(-1)[:0].sum().to(result.dtype)
    return result


def of_nothing(
    shape: Sequence[int], function: Callable[..., torch.Tensor], *tensors: torch.Tensor
) -> torch.Tensor:
    """Zeros, on a worker that has nothing to apply `function` to, where others have applied it to `tensors`.

    The function is applied all the same, to a single zero in the place of each tensor. So in passes back and forth of any
    order, and in a checkpoint's, this worker comes by the same operators as the others, and sends what they wait for.
    """
    zeros = [connected(tensor.new_zeros((1,) * tensor.ndim), tensor) for tensor in tensors]
    return connected(tensors[0].new_zeros(shape), function(*zeros))


def _applied(
    operator: LinearOperator, x: tuple[torch.Tensor, ...], anchor: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:
    *outputs, _ = _Apply.apply(_anchor(x) if anchor is None else anchor, operator, *x)  # type: ignore[no-untyped-call]
    return tuple(outputs)


def _anchor(x: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """What makes a rank take part in the backward pass, whatever requires a gradient here."""
    device = x[0].device if x else None
    return torch.zeros(0, device=device, requires_grad=torch.is_grad_enabled())


class _Apply(Function):
    """One application. Its last output is empty: saved, it leads from the application of the adjoint back to this one.

    Every rank saves it, so that every rank computes a checkpointed function again.
    """

    @staticmethod
    def forward(anchor: torch.Tensor, operator: LinearOperator, *x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return *apply_forward(operator, x), torch.zeros_like(anchor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.operator = inputs[1]
        ctx.save_for_backward(output[-1])

    @staticmethod
    def backward(ctx: Any, *y: torch.Tensor) -> Any:
        adjoint: LinearOperator = ctx.operator.H
        (anchor,) = ctx.saved_tensors
        return None, None, *_applied(adjoint, y[:-1], anchor)

    @staticmethod
    def jvp(ctx: Any, anchor: Any, operator: Any, *x: torch.Tensor) -> Any:
        return *_applied(ctx.operator, x), torch.zeros_like(x[0].reshape(-1)[:0])
