"""The other forms that an operator may have: into memory that is given as `out`, and in place.

:class:`adjointlab.core.operator.LinearOperator` says what they are. Their result is looked for where a caller would look: in
the memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from adjointlab.core import arrays
from adjointlab.core.operator import LinearOperator

__all__ = ["Form", "other_forms"]


@dataclass(frozen=True)
class Form:
    """One form as a rank saw it: what the memory holds afterwards, and whether that memory is what was returned."""

    name: str
    result: tuple[Any, ...]
    is_returned: bool


def other_forms(
    operator: LinearOperator, direction: str, arguments: Sequence[Any], fresh: Sequence[Any]
) -> list[Form]:
    """Collective: apply each other form of a direction to `arguments`, of which `fresh` are the results.

    Memory for results starts with NaN, or the largest integer, everywhere.
    """
    found = []
    if _takes_out(type(operator), direction, len(fresh) == 1):
        target = operator.codomain if direction == "forward" else operator.domain
        rank = operator.comm.Get_rank()
        if all(tensor.layout.partition.is_active(rank) for tensor in target.tensors):
            memory = tuple(map(_poisoned, fresh))
            out = memory if len(memory) > 1 else memory[0]
            returned = getattr(operator, direction)(*arguments, out=out)
            found.append(Form("into `out`", memory, _are(returned, memory)))
        else:
            getattr(operator, direction)(*arguments)
            found.append(Form("into `out`", tuple(fresh), True))
    if _works_in_place(operator):
        memory = tuple(map(arrays.copy, arguments))
        returned = getattr(operator, f"{direction}_")(*memory)
        found.append(Form("in place", memory, returned is None or _are(returned, memory)))
    return found


@cache
def _takes_out(kind: type[LinearOperator], direction: str, is_one: bool) -> bool:
    for name in ("forward", "adjoint"):
        parameter = inspect.signature(getattr(kind, name)).parameters.get("out")
        if parameter is None or parameter.kind is parameter.POSITIONAL_ONLY or parameter.default is not None:
            return False
    # One result of any number of arguments: nobody knows whether `out` is an array or a sequence.
    parameters = inspect.signature(getattr(kind, direction)).parameters.values()
    return not (is_one and any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters))


def _works_in_place(operator: LinearOperator) -> bool:
    """Whether there are both forms in place, and spaces that they could work between."""
    return all(callable(getattr(operator, name, None)) for name in ("forward_", "adjoint_")) and [
        (tensor.layout, tensor.dtype) for tensor in operator.domain.tensors
    ] == [(tensor.layout, tensor.dtype) for tensor in operator.codomain.tensors]


def _poisoned(like: Any) -> Any:
    element = arrays.dtype_of(like)
    memory = arrays.empty(tuple(like.shape), element.name, like)
    memory[...] = np.iinfo(element.name).max if element.is_integer else np.nan
    return memory


def _are(returned: Any, memory: Sequence[Any]) -> bool:
    """Whether what was returned is the memory, or views of it."""
    results = returned if isinstance(returned, tuple | list) else (returned,)
    return len(results) == len(memory) and all(map(_is, results, memory))


def _is(result: Any, memory: Any) -> bool:
    return result is memory or (
        arrays.is_array(result)
        and tuple(result.shape) == tuple(memory.shape)
        and (0 in memory.shape or np.may_share_memory(arrays.message(result), arrays.message(memory)))
    )
