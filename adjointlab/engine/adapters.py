"""Functions as operators: a plain pair, or one that torch differentiates. Modules as layers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from adjointlab.core.layer import Layer, Prepare
from adjointlab.core.operator import LinearOperator
from adjointlab.core.space import Space

__all__ = ["Differentiable", "FunctionPair", "make_layer", "make_twin"]

_LABS = (
    "domain",
    "codomain",
    "parameter_space",
    "buffer_space",
    "rounding",
    "reach",
    "overwrites_inputs",
    "training",
)
"""What a layer's case may hold beside the layer's arguments."""


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
            torch.zeros(
                tensor.layout.local_shape(rank), dtype=getattr(torch, tensor.dtype), requires_grad=True
            )
            for tensor in self.domain.tensors
        )
        outputs = self._call(x)
        outputs = tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)
        # Every rank runs backward, whatever requires a gradient here: the messages of the others depend on it.
        reached = [(out, cotangent) for out, cotangent in zip(outputs, y, strict=True) if out.requires_grad]
        if reached:
            torch.autograd.backward([out for out, _ in reached], [cotangent for _, cotangent in reached])
        return tuple(torch.zeros_like(entry) if entry.grad is None else entry.grad for entry in x)


def make_layer(build: Callable[..., Any], prepare: Prepare, comm: Any, **parameters: Any) -> Layer:
    """The layer of a case on this rank. Raises `TypeError` for a module that does not say where its tensors lie."""
    module = build(comm, **_arguments(parameters))
    if "training" in parameters:
        module.train(parameters["training"])

    def declared(name: str, default: Any) -> Any:
        value = parameters.get(name, getattr(module, name, default))
        if value is None:
            raise TypeError(
                f"the module has no `{name}`; set self.{name} = adjointlab.Space(layout), or give `{name}` in the "
                "strategy's dictionary"
            )
        return value

    return Layer(
        comm,
        module,
        declared("domain", None),
        declared("codomain", None),
        declared("parameter_space", Space()),
        declared("buffer_space", Space()),
        float(declared("rounding", 0.0)),
        prepare,
        float(declared("reach", 0.0)),
        bool(declared("overwrites_inputs", False)),
    )


def make_twin(build: Callable[..., Any], **parameters: Any) -> Any:
    """The sequential twin of a case."""
    module = build(**_arguments(parameters))
    if "training" in parameters:
        module.train(parameters["training"])
    return module


def _arguments(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in parameters.items() if key not in _LABS}
