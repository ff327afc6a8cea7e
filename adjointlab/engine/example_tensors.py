"""Tensors that a call is given as examples of inputs: the shapes to draw, and what drawn numbers must become."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from hypothesis.strategies import DrawFn

from adjointlab.checks.layers.drawn_values import LARGEST
from adjointlab.core import arrays
from adjointlab.core.layer import LegalIndices, Prepare, elementwise
from adjointlab.engine.adapters import Parameters
from adjointlab.spelling import described_type

if TYPE_CHECKING:
    import torch

__all__ = ["Inputs", "entries_of", "listed", "listed_target", "preparation"]

Inputs: TypeAlias = "torch.Tensor | Sequence[torch.Tensor] | Callable[[DrawFn, int], Parameters]"


def listed(inputs: Any) -> list[torch.Tensor]:
    """The examples as a list; `TypeError` for anything that is not one tensor or several."""
    import torch

    listed = [inputs] if isinstance(inputs, torch.Tensor) else inputs
    is_list = isinstance(listed, Sequence) and bool(listed)
    if not is_list or not all(isinstance(each, torch.Tensor) for each in listed):
        raise TypeError(
            f"inputs: {described_type(inputs)} is not a torch.Tensor, a list of them, or a strategy inputs(draw, ranks)"
        )
    return list(listed)


def listed_target(target: torch.Tensor | None) -> list[torch.Tensor]:
    """The example of a target; by default one of floating-point numbers."""
    import torch

    if not isinstance(target, torch.Tensor | None):
        raise TypeError(f"target: {described_type(target)} is not a torch.Tensor, an example of targets")
    return [torch.zeros(()) if target is None else target]


def entries_of(inputs: Inputs) -> dict[str, object]:
    """The shapes of examples, and their element types if one is complex, as entries of a case."""
    examples = listed(inputs)
    types = ["complex128" if example.is_complex() else "float64" for example in examples]
    of_types = {"input_dtypes": types} if "complex128" in types else {}
    return {"inputs": [tuple(example.shape) for example in examples], **of_types}


def preparation(inputs: Inputs, targets: Sequence[torch.Tensor], prepare: Prepare | None) -> Prepare:
    """The given preparation, applied to drawn numbers of the examples' element types; by default one that makes legal integers."""
    if callable(inputs):
        return prepare or elementwise
    examples = [*listed(inputs), *targets]
    if all(map(arrays.is_differentiable, examples)):
        return prepare or elementwise
    converted = [_converter(example, is_legal=prepare is None) for example in examples]

    def prepared_as_examples(*drawn: Any) -> Sequence[Any]:
        like_examples = [convert(x) for convert, x in zip(converted, drawn, strict=True)]
        return like_examples if prepare is None else prepare(*like_examples)

    # A user's preparation gets small integers, as documented.
    indices = [position for position, example in enumerate(examples) if not arrays.is_differentiable(example)]
    return LegalIndices(prepared_as_examples, frozenset(indices if prepare is None else ()))


def _converter(example: torch.Tensor, *, is_legal: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function that turns drawn numbers into integers, such as indices, if the example holds integers.

    Legal ones lie between 0 and the example's largest, or are one of its negative values, such as -100 as the `ignore_index` of a loss.
    """
    if arrays.is_differentiable(example):
        return lambda drawn: drawn
    if not is_legal:
        return lambda drawn: drawn.to(example.dtype)
    own = np.unique(example.numpy(force=True)).tolist() or [0]
    negative = [each for each in own if each < 0]
    number = max(int(own[-1]) + 1, 0)

    def legal(drawn: torch.Tensor) -> torch.Tensor:
        index = _partly_small(drawn.long()).remainder(number + len(negative))
        for position, value in enumerate(negative):
            index = index.masked_fill(index == number + position, value)
        return index.to(example.dtype)

    return legal


def _partly_small(whole: torch.Tensor) -> torch.Tensor:
    """Replace half of the large integers by small ones: otherwise hardly any of many indices would occur twice."""
    half = whole // 2
    small = half % (2 * LARGEST + 1) - LARGEST
    return whole.where(whole.abs() <= 2 * LARGEST, small.where(whole % 2 == 0, half))
