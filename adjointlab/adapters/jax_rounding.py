"""Evaluation of a JAX function step by step, with errors in the last digits of each operation.

JAX compiles functions, so their operations are visible only in the program that it makes from a function, the jaxpr. Loops and
branches of that program count as one operation each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from adjointlab.adapters.jax_arrays import Global, from_jax, in_jax
from adjointlab.core.rounding import Perturb

__all__ = ["rounded_otherwise"]

_CALLS: Final = frozenset(
    ["jit", "pjit", "closed_call", "core_call", "remat", "checkpoint", "custom_jvp_call", "custom_vjp_call"]
)
"""Primitives that call an inner program once."""

_MOVES: Final = frozenset(
    name
    for line in (
        "abs and argmax argmin broadcast_in_dim ceil clamp concatenate convert_element_type copy device_put dynamic_slice",
        "dynamic_update_slice eq expand_dims floor gather ge gt imag iota is_finite le lt max min ne neg not or pad real",
        "reduce_and reduce_max reduce_min reduce_or reduce_precision reshape rev round scatter select_n sign slice sort squeeze",
        "stop_gradient transpose",
    )
    for name in line.split()
)
"""Primitives that move or select values, or make constants."""


def rounded_otherwise(
    function: Callable[..., tuple[Global, ...]], arguments: Sequence[Any], perturb: Perturb
) -> tuple[Global, ...]:
    """``function(*arguments)``, whose arguments may be tuples of arrays, with the arguments and results of each operation perturbed."""
    import jax

    program = jax.make_jaxpr(function)(*arguments)
    return tuple(_evaluated(program.jaxpr, program.consts, jax.tree.leaves(arguments), perturb))


def _evaluated(
    program: Any, constants: Sequence[Any], arguments: Sequence[Any], perturb: Perturb
) -> list[Any]:
    from jax.extend.core import ClosedJaxpr, Literal

    known = dict(zip((*program.constvars, *program.invars), (*constants, *arguments), strict=True))

    def value(of: Any) -> Any:
        return of.val if isinstance(of, Literal) else known[of]

    for step in program.eqns:
        given, primitive = [value(each) for each in step.invars], step.primitive
        if primitive.name in _CALLS:
            called = next(
                step.params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in step.params
            )
            is_closed = isinstance(called, ClosedJaxpr)
            inner, held = (called.jaxpr, called.consts) if is_closed else (called, ())
            found = _evaluated(inner, held, given, perturb)
        else:
            found = _rounded(step, given, None if primitive.name in _MOVES else perturb)
        known |= zip(step.outvars, found, strict=True)
    return [value(each) for each in program.outvars]


def _rounded(step: Any, given: Sequence[Any], perturb: Perturb | None) -> list[Any]:
    """The results of one operation."""
    bound = step.primitive.get_bind_params(step.params)
    functions, options = bound if isinstance(bound, tuple) else ((), bound)  # older JAX returns both
    if perturb is None:
        found = step.primitive.bind(*functions, *given, **options)
        return list(found) if step.primitive.multiple_results else [found]
    shapes = {each.aval.shape for each in (*step.invars, *step.outvars)}
    elementwise = len(shapes - {()}) < 2

    def perturbed(value: Any) -> Any:
        import jax

        if not jax.numpy.issubdtype(jax.numpy.result_type(value), jax.numpy.floating):
            return value
        array = jax.numpy.asarray(value)
        tensor: Any = from_jax(array, array.dtype.name, "torch")
        return in_jax(perturb(tensor, elementwise=elementwise))

    found = step.primitive.bind(*functions, *map(perturbed, given), **options)
    return [perturbed(each) for each in (found if step.primitive.multiple_results else [found])]
