"""Other forms of an operator: into memory given as `out`, in place, and the ways in which torch may differentiate it.

:class:`adjointlab.core.operator.LinearOperator` defines the first two conventions. Their results are read where a caller would read
them, from that memory. A function of torch tensors may take another path if no input, or only some, require a gradient; if a loss
depends on only some of its outputs; and if its graph is used again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from adjointlab.core import arrays
from adjointlab.core.operator import Direction, LinearOperator, as_tuple, results_in
from adjointlab.typing import Array

__all__ = ["Form", "FormRefused", "other_forms", "plain_form"]


class FormRefused(Exception):
    """The function under test does not have the form that the message names, at least on this rank."""


class _OfTorch(NamedTuple):
    """A form of a function of torch tensors; the plain form that it is compared with; and the method, which returns None if it does not exist.

    The function does not have the form either if it raises an exception on some rank that `refuses` classifies as a refusal.
    """

    name: str
    plain: str
    method: str
    refuses: Callable[[Exception], bool]


def _asks_for_a_gradient(error: Exception) -> bool:
    """Return True for errors about a missing gradient, by torch, as for a hook, or by the function itself.

    Judged by the text, because torch raises the same class for nearly everything, such as mismatched shapes.
    """
    return isinstance(error, RuntimeError) and "grad" in str(error).lower()


def _has_no_forward_mode(error: Exception) -> bool:
    """Return True for torch's errors if a part has no forward mode, or if the function itself uses forward mode."""
    return isinstance(error, NotImplementedError) or "Nested forward mode" in str(error)


def _is_any(error: Exception) -> bool:
    """Return True: a function that frees its saved tensors, or needs a gradient of each output, may raise anything."""
    return True


_OF_TORCH: Final = {
    Direction.FORWARD: (
        _OfTorch("under torch.no_grad()", "with gradients", "without_gradients", _asks_for_a_gradient),
        # A linear function is its own derivative.
        _OfTorch("in forward mode (its jvp)", "in a plain call", "in_forward_mode", _has_no_forward_mode),
    ),
    Direction.ADJOINT: (
        _OfTorch(
            "where one input at a time requires a gradient",
            "where all do",
            "one_gradient_at_a_time",
            _asks_for_a_gradient,
        ),
        _OfTorch(
            "where the loss depends on one output at a time",
            "where it depends on all",
            "one_output_at_a_time",
            _is_any,
        ),
        _OfTorch("the second time through one graph", "the first time", "second_time", _is_any),
    ),
}
_PLAIN_OF_TORCH: Final = {form.name: form.plain for forms in _OF_TORCH.values() for form in forms}


def plain_form(name: str) -> str:
    """Description of the form with which the one of this `name` is compared."""
    return _PLAIN_OF_TORCH.get(name, "in fresh memory")


@dataclass(frozen=True)
class Form:
    """One form as observed on a rank: the contents of the memory afterwards, and whether that memory was returned.

    If the form was not applied, or not with memory, `result` is that of the plain form.
    """

    name: str
    result: tuple[Array, ...]
    is_returned: bool
    is_applied: bool


def other_forms(
    operator: LinearOperator,
    direction: Direction,
    arguments: Sequence[Array],
    plain: Sequence[Array],
    left_out: Collection[str] = (),
) -> list[Form]:
    """Apply each other form of a direction to `arguments`, for which the plain form returned `plain`. Collective.

    Forms of torch functions that are `left_out` count as not applied. Raises :class:`FormRefused` for one that this rank refuses:
    others may be waiting for it in a collective, so this run is over, and the case runs again without the form.

    Memory for results is filled with NaN, or the largest integer, so that elements that are not written show.
    """
    forms = []
    target = operator.codomain if direction is Direction.FORWARD else operator.domain
    rank = operator.comm.Get_rank()
    if _takes_out(type(operator), direction, len(plain) == 1):
        if all(tensor.layout.partition.is_active(rank) for tensor in target.tensors):
            memory = tuple(map(_poisoned, plain))
            out = memory if len(memory) > 1 else memory[0]
            returned = getattr(operator, direction)(*arguments, out=out)
            forms.append(Form("into `out`", memory, _are(returned, memory), is_applied=True))
        else:
            # By convention an inactive rank passes no `out`; it still takes part in the call.
            getattr(operator, direction)(*arguments)
            forms.append(Form("into `out`", tuple(plain), is_returned=True, is_applied=True))
    if _works_in_place(operator):
        memory = tuple(map(arrays.copy, arguments))
        returned = getattr(operator, f"{direction}_")(*memory)
        forms.append(Form("in place", memory, returned is None or _are(returned, memory), is_applied=True))
    for form in _OF_TORCH[direction]:
        apply = getattr(operator, form.method, None)
        if apply is None:
            continue
        applied = None if form.name in left_out else _applied(form, apply, arguments)
        result = tuple(plain)
        if applied is not None:
            result = results_in(target, as_tuple(applied), rank, arguments, f"{direction} {form.name}")
        forms.append(Form(form.name, result, is_returned=True, is_applied=applied is not None))
    return forms


def _applied(form: _OfTorch, apply: Callable[..., object], arguments: Sequence[Array]) -> object:
    try:
        return apply(*arguments)
    except Exception as error:
        if form.refuses(error):
            raise FormRefused(form.name) from error
        raise


@cache
def _takes_out(kind: type[LinearOperator], direction: Direction, is_one: bool) -> bool:
    """Return True if both directions follow the convention of `out`."""
    # An `out` that is required, or has another default, means something else than the convention.
    for name in Direction:
        parameter = inspect.signature(getattr(kind, name)).parameters.get("out")
        if parameter is None or parameter.kind is parameter.POSITIONAL_ONLY or parameter.default is not None:
            return False
    # With one result and any number of arguments, it is unclear whether `out` is an array or a sequence.
    parameters = inspect.signature(getattr(kind, direction)).parameters.values()
    return not (is_one and any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters))


def _works_in_place(operator: LinearOperator) -> bool:
    """Return True if both directions have a form in place, and both spaces have the same layouts and element types."""
    return all(callable(getattr(operator, name, None)) for name in ("forward_", "adjoint_")) and [
        (tensor.layout, tensor.dtype) for tensor in operator.domain.tensors
    ] == [(tensor.layout, tensor.dtype) for tensor in operator.codomain.tensors]


def _poisoned(like: Array) -> Array:
    element = arrays.dtype_of(like)
    memory: Array = arrays.empty(tuple(like.shape), element.name, like)
    memory[...] = element.undefined
    return memory


def _are(returned: object, memory: Sequence[Array]) -> bool:
    """Return True if the returned arrays are the memory, or views of it."""
    results = as_tuple(returned)
    return len(results) == len(memory) and all(map(_is, results, memory))


def _is(result: object, memory: Array) -> bool:
    return result is memory or (
        arrays.is_array(result)
        and tuple(result.shape) == tuple(memory.shape)
        and (0 in memory.shape or arrays.may_share_memory(result, memory))
    )
