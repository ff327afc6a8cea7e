"""Functions of global arrays that JAX differentiates, compiled once for each case."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final, Protocol, TypeAlias

import msgspec
import numpy as np

from adjointlab.adapters.jax_arrays import Global, in_jax, in_library, precision
from adjointlab.adapters.jax_rounding import rounded_otherwise
from adjointlab.core import arrays
from adjointlab.core.declaration import require_accepts
from adjointlab.core.operator import as_tuple
from adjointlab.core.rounding import current_perturbation
from adjointlab.engine.adapters import UserFunction
from adjointlab.engine.case_data import from_data, to_data
from adjointlab.typing import Array

__all__ = ["Program", "Whole", "as_module", "gradients_of", "is_shape", "returned"]

_OF_ARRAYS: Final = frozenset({"mesh", "devices", "inputs", "specs", "dtype"})
"""Entries of a case that are not arguments of its function."""

_OfArrays: TypeAlias = Callable[..., tuple[Global, ...]]


@dataclass(frozen=True)
class Program:
    """A function with the arguments of a case as JSON, so that equal programs are compiled once."""

    function: UserFunction
    arguments: bytes
    mesh: Any = None  # for a sharded function

    @classmethod
    def of(cls, function: UserFunction, parameters: Mapping[str, Any], mesh: Any = None) -> Program:
        arguments = {name: value for name, value in parameters.items() if name not in _OF_ARRAYS}
        inputs = parameters["inputs"]
        tensors = [f"x{number or ''}" for number in range(1 if is_shape(inputs) else len(inputs))]
        role, leading = ("the reference", []) if mesh is None else ("the function", ["mesh"])
        require_accepts(role, function, (*leading, *tensors), arguments, _OF_ARRAYS)
        return cls(function, msgspec.json.encode(to_data(arguments)), mesh)

    def __call__(self, *x: Global) -> tuple[Global, ...]:
        mesh = () if self.mesh is None else (self.mesh,)
        return returned(
            self.function, self.function(*mesh, *x, **from_data(msgspec.json.decode(self.arguments)))
        )

    def results(self, x: Sequence[Global]) -> tuple[Global, ...]:
        found: tuple[Global, ...] = _compiled()[0](self, tuple(x))
        return found

    def gradients(self, x: Sequence[Global], y: Sequence[Global]) -> tuple[Global, ...]:
        """The gradients at `x` for cotangents `y` (:func:`gradients_of`)."""
        found: tuple[Global, ...] = _compiled()[1](self, tuple(x), tuple(y))
        return found


def is_shape(given: Any) -> bool:
    """Return True for the shape of a single array, as opposed to a list of shapes."""
    return all(isinstance(side, int) for side in given)


def returned(function: UserFunction, result: Any) -> tuple[Global, ...]:
    """The arrays that a function returned. Raises `TypeError` if there are none, or other objects among them."""
    arrays_of = as_tuple(result)
    if not arrays_of or not all(hasattr(each, "dtype") for each in arrays_of):
        raise TypeError(
            f"{getattr(function, '__name__', function)} returned {result!r}, and has to return an array or a tuple of some"
        )
    return arrays_of


@cache
def _compiled() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The results of a program, and its gradients, each compiled."""
    import jax

    def results(program: Program, x: tuple[Global, ...]) -> tuple[Global, ...]:
        return program(*x)

    return jax.jit(results, static_argnums=0), jax.jit(gradients_of, static_argnums=0)


def gradients_of(
    function: Callable[..., Any], x: Sequence[Global], y: Sequence[Global]
) -> tuple[Global, ...]:
    """The gradients at `x` for cotangents `y` of a function that returns a tuple; zero for integers.

    A function of integers only is assumed to be linear, and transposed as such.
    """
    import jax
    from jax import numpy as jnp

    def is_inexact(array: Global) -> bool:
        return bool(jnp.issubdtype(array.dtype, jnp.inexact))

    if not any(map(is_inexact, x)):
        return tuple(jax.linear_transpose(function, *x)(tuple(y)))
    outputs, pullback = jax.vjp(function, *x)
    # JAX transposes without conjugation, and the cotangents of integers are of type float0.
    cotangents = tuple(
        entry.conj() if is_inexact(out) else np.zeros(out.shape, jax.dtypes.float0)
        for out, entry in zip(outputs, y, strict=True)
    )
    found = zip(x, pullback(cotangents), strict=True)
    return tuple(entry.conj() if is_inexact(at) else jnp.zeros_like(at) for at, entry in found)


class _Applied(Protocol):
    """A function of arrays of any library, and its gradients."""

    def forward(self, *x: Array) -> tuple[Array, ...]: ...

    def pullback(self, x: Sequence[Array], y: Sequence[Array]) -> tuple[Array, ...]: ...


def as_module(applied: _Applied) -> Any:
    """A torch module that calls `applied`, and has its gradients."""
    import torch
    from torch.autograd.function import once_differentiable

    class Apply(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *x: Any) -> Any:
            ctx.save_for_backward(*x)
            y = applied.forward(*x)
            ctx.mark_non_differentiable(*(each for each in y if arrays.dtype_of(each).is_integer))
            return y

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *y: Any) -> Any:
            found = zip(applied.pullback(ctx.saved_tensors, y), ctx.needs_input_grad, strict=True)
            return tuple(gradient if is_needed else None for gradient, is_needed in found)

    class Module(torch.nn.Module):
        forward_mode = False  # custom_vjp does not support it

        def forward(self, *x: Any) -> Any:
            function: Any = Apply
            return function.apply(*x)

    return Module()


class Whole:
    """A sequential function."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def forward(self, *x: Array) -> tuple[Array, ...]:
        with precision(*x):
            found = self._computed(self._program.results, lambda x: self._program(*x), [*map(in_jax, x)])
            return in_library(x[0], found, [each.dtype.name for each in found])

    def pullback(self, x: Sequence[Array], y: Sequence[Array]) -> tuple[Array, ...]:
        with precision(*x, *y):
            found = self._computed(
                self._program.gradients,
                partial(gradients_of, self._program),
                [*map(in_jax, x)],
                [*map(in_jax, y)],
            )
            return in_library(x[0], found, [each.dtype.name for each in found])

    @staticmethod
    def _computed(compiled: _OfArrays, function: _OfArrays, *given: Sequence[Global]) -> tuple[Global, ...]:
        """The results of a function: `compiled`, or step by step if rounding is being measured."""
        perturb = current_perturbation()
        return compiled(*given) if perturb is None else rounded_otherwise(function, given, perturb)
