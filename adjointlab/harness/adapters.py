"""Functions as operators: a plain pair, or one that torch differentiates."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from adjointlab import arrays
from adjointlab.operator import LinearOperator
from adjointlab.space import Space

__all__ = ["Differentiable", "FunctionPair"]


class FunctionPair(LinearOperator):
    """``forward(comm, *x, **arguments)`` and ``adjoint(comm, *y, **arguments)`` as an operator."""

    def __init__(
        self,
        comm: Any,
        forward: Callable[..., Any],
        adjoint: Callable[..., Any],
        domain: Space,
        codomain: Space,
        arguments: Mapping[str, Any],
    ) -> None:
        self.comm, self.domain, self.codomain = comm, domain, codomain
        self._forward, self._adjoint, self._arguments = forward, adjoint, arguments

    def forward(self, *x: Any) -> Any:
        return self._forward(self.comm, *x, **self._arguments)

    def adjoint(self, *y: Any) -> Any:
        return self._adjoint(self.comm, *y, **self._arguments)


class Differentiable(LinearOperator):
    """A linear function of torch tensors; its adjoint is what reverse mode gives.

    The graph is made with the very inputs of the last forward pass replaced by zeros: a linear function's gradient
    does not depend on them, and the operator keeps no state.
    """

    def __init__(
        self, comm: Any, function: Any, domain: Space, codomain: Space, arguments: Mapping[str, Any]
    ) -> None:
        self.comm, self.domain, self.codomain = comm, domain, codomain
        self._function, self._arguments = function, arguments

    def _call(self, x: tuple[Any, ...]) -> Any:
        if inspect.isclass(self._function):
            function: Any = self._function
            return function.apply(*x, self.comm, *self._arguments.values())
        return self._function(self.comm, *x, **self._arguments)

    def forward(self, *x: Any) -> Any:
        result = self._call(tuple(tensor.detach().requires_grad_() for tensor in x))
        return tuple(r.detach() for r in result) if isinstance(result, tuple | list) else result.detach()

    def adjoint(self, *y: Any) -> Any:
        import torch

        rank = self.comm.Get_rank()
        x = tuple(
            arrays.zeros(tensor.layout.local_shape(rank), tensor.dtype, "torch").requires_grad_()
            for tensor in self.domain.tensors
        )
        outputs = self._call(x)
        outputs = tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)
        # Every rank runs backward, whatever requires a gradient here: the messages of the others depend on it.
        reached = [(out, cotangent) for out, cotangent in zip(outputs, y, strict=True) if out.requires_grad]
        if reached:
            torch.autograd.backward([out for out, _ in reached], [cotangent for _, cotangent in reached])
        return tuple(torch.zeros_like(entry) if entry.grad is None else entry.grad for entry in x)
