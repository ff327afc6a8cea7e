"""Does an instance keep nothing between calls?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from adjointlab.checks.check import Check, Spaces
from adjointlab.checks.compare import Local, Tolerance, first_difference
from adjointlab.checks.context import CheckContext
from adjointlab.checks.finite import not_finite
from adjointlab.checks.schedule_invariant import ElementResult, ScheduleInvariant
from adjointlab.checks.verdict import Verdict, coherent, incoherent
from adjointlab.core import arrays
from adjointlab.core.operator import LinearOperator

__all__ = ["ReentrancyCheck"]

_CALLS = 4
_AFTER = {_CALLS - 1: " (after one with NaN)"}


@dataclass(frozen=True)
class Observation:
    """For both directions and each call: the outputs of a fresh instance and, by circumstance, of the used one."""

    forward: tuple[dict[str, Local], ...]
    adjoint: tuple[dict[str, Local], ...]
    tolerance: Tolerance


class ReentrancyCheck(Check):
    """Three calls with new data, both directions; two instances interleaved; one instance in two places.

    Every call must give what a fresh instance gives, and what it returned must still stand after the later calls.
    The adjoints are called in the opposite order, as a backward pass does. A fourth call follows one on NaN: an
    overflow passes, but what clears its memory by arithmetic keeps it for ever.
    """

    name = "reentrancy"

    def observe(self, context: CheckContext) -> Observation:
        bound = context.integers()
        used, other = context.operator, context.fresh()
        forward = _calls(context, context.forward, lambda call: context.primal(call, bound), used, other)
        adjoint = _calls(
            context, context.adjoint, lambda call: context.dual(_CALLS - call, bound), used, other
        )
        return Observation(forward, adjoint, context.tolerance)

    def judge(self, spaces: Spaces, observations: Sequence[Observation]) -> Verdict:
        first = observations[0]
        for direction, _, space in spaces.sides():
            for call in range(_CALLS):
                seen: list[dict[str, Local]] = [getattr(one, direction)[call] for one in observations]
                want = [one["fresh"] for one in seen]
                # Of a fresh instance, and before the NaN that comes from here: its own, and not what it has kept.
                if (
                    call < _CALLS - 1
                    and (verdict := not_finite(direction, space, want))
                    and not_finite(direction, space, [one["on return"] for one in seen])
                ):
                    return verdict
                for circumstance in seen[0]:
                    got = [one[circumstance] for one in seen]
                    if difference := first_difference(space, got, want, first.tolerance):
                        where, actual, expected = difference
                        return incoherent(
                            f"{direction} depends on earlier calls",
                            ("call", f"{call + 1} of {_CALLS}{_AFTER.get(call, '')}, {circumstance}"),
                            ("element", where),
                            ("fresh", expected),
                            ("here", actual),
                        )
        return coherent()

    def schedule_invariants(
        self, spaces: Spaces, observations: Sequence[Observation]
    ) -> Mapping[str, ScheduleInvariant]:
        tolerance = observations[0].tolerance
        return {
            f"{direction}, call {call + 1}": ElementResult(
                space, [getattr(seen, direction)[call]["on return"] for seen in observations], tolerance
            )
            for direction, _, space in spaces.sides()
            for call in range(_CALLS)
        }


def _calls(
    context: CheckContext,
    apply: Callable[[Sequence[Any], LinearOperator], tuple[Any, ...]],
    argument: Callable[[int], tuple[Any, ...]],
    used: LinearOperator,
    other: LinearOperator,
) -> tuple[dict[str, Local], ...]:
    results: list[dict[str, Local]] = []
    returned = []
    for call in range(_CALLS):
        if call == _CALLS - 1:
            _overflow(apply, argument(call), used)
        output = apply(argument(call), used)
        returned.append(output)
        results.append({"on return": context.numpy(output)})
        # The other instance works on other data in between.
        apply(argument((call + 1) % _CALLS), other)
    for entry, output in zip(results, returned, strict=True):
        entry["after later calls"] = context.numpy(output)
    for call, entry in enumerate(results):
        # Drawn anew: an operator that spoils its argument is the purity check's matter.
        entry["fresh"] = context.numpy(apply(argument(call), context.fresh()))
    return tuple(results)


def _overflow(
    apply: Callable[[Sequence[Any], LinearOperator], tuple[Any, ...]],
    argument: tuple[Any, ...],
    used: LinearOperator,
) -> None:
    """A call whose values do not matter and whose result is dropped."""
    for array in argument:
        if not arrays.dtype_of(array).is_integer:
            array[...] = np.nan
    # An operator may refuse NaN.
    with np.errstate(all="ignore"), suppress(ValueError, ArithmeticError):
        apply(argument, used)
