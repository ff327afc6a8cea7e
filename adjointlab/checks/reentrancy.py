"""Reentrancy: a call of an instance does not affect other calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from adjointlab.checks.check import BothDirections, Check, Spaces
from adjointlab.checks.context import CheckContext
from adjointlab.checks.elements import Local, Tolerance, first_difference, not_finite_verdict
from adjointlab.checks.hints import FaultKind, Hint
from adjointlab.checks.schedule_invariant import ElementResult, ScheduleInvariant
from adjointlab.checks.verdict import Inapplicable, Verdict, coherent, incoherent
from adjointlab.core import arrays
from adjointlab.core.operator import Direction, LinearOperator
from adjointlab.core.space import Space
from adjointlab.typing import Array
from adjointlab.worlds.randomness import own_streams

__all__ = ["REENTRANCY", "ReentrancyCheck"]

_CALLS = 4

_IN_THE_SAME_ARRAY = "one more, with other values in the array that the call before was given"

_KEPT = Hint(
    FaultKind.KEPT,
    "a fresh instance gives another value: something is kept from earlier calls, the order of messages matters, or instances draw "
    "numbers from generators of their own that have no seed",
)
_OVERWRITTEN = Hint(
    FaultKind.KEPT, "the call returned the right value: a later one has written into the same memory"
)


@dataclass(frozen=True)
class CallOutputs:
    """One rank's outputs of one call."""

    on_return: Local  # copied at once
    after_later_calls: Local  # the same arrays, copied at the end
    fresh: Local  # outputs of a fresh instance for the same argument


@dataclass(frozen=True)
class ReentrancyObservation:
    """One rank's outputs of all calls in both directions."""

    calls: BothDirections[tuple[CallOutputs, ...]]
    tolerance: Tolerance
    after_nan: int | None  # index of the call that follows one on NaN


class ReentrancyCheck(Check[ReentrancyObservation]):
    """Calls with new data, on two instances in turn. Each returns what a fresh instance returns, and later calls do not change
    that result.

    One adjoint comes before any forward; the others are called in the opposite order, as a backward pass does. In every other case
    the last call follows one on NaN: an overflow ends with its call, but NaN stays for ever in a buffer that is
    cleared by arithmetic (0 * NaN is NaN). Right code may refuse NaN, as a solver that does not converge; then the case is not
    judged. Cases without NaN end with a call on the same array as the call before, with other values in it: a result that is cached
    for an array object is then wrong.
    """

    name = "reentrancy"
    share = 0.3
    order = 80

    def observe(self, context: CheckContext) -> ReentrancyObservation:
        bound, after_nan = context.arithmetic.integers(), _after_nan(context)
        used, other = _instance(context), _instance(context)
        # Before any forward, so that an adjoint that receives messages from a forward finds none. Later it would find some: there
        # are as many calls of each, and an MPI library may buffer messages.
        context.adjoint(context.dual(0, bound), used)
        forward, adjoint = (
            _calls(context, apply, argument, used, other, after_nan)
            for apply, argument in (
                (context.forward, lambda call: context.primal(call, bound)),
                (context.adjoint, lambda call: context.dual(_CALLS - call, bound)),
            )
        )
        return ReentrancyObservation(
            BothDirections(forward, adjoint), context.arithmetic.tolerance, after_nan
        )

    def judge(self, spaces: Spaces, observations: Sequence[ReentrancyObservation]) -> Verdict:
        first, *_ = observations
        for direction, space, ranks in spaces.outputs(seen.calls for seen in observations):
            for call, outputs in enumerate(zip(*ranks, strict=True)):
                if verdict := _of_call(
                    direction, space, call, outputs, first.tolerance, is_after_nan=call == first.after_nan
                ):
                    return verdict
        return coherent()

    def schedule_invariants(
        self, spaces: Spaces, observations: Sequence[ReentrancyObservation]
    ) -> Mapping[str, ScheduleInvariant]:
        first, *_ = observations
        return {
            f"{direction}, call {call}": ElementResult(
                space, [each.on_return for each in outputs], first.tolerance
            )
            for direction, space, ranks in spaces.outputs(seen.calls for seen in observations)
            for call, outputs in enumerate(zip(*ranks, strict=True), 1)
        }


def _of_call(
    direction: Direction,
    space: Space,
    call: int,
    outputs: Sequence[CallOutputs],
    tolerance: Tolerance,
    *,
    is_after_nan: bool,
) -> Verdict | None:
    fresh = [each.fresh for each in outputs]
    on_return = [each.on_return for each in outputs]
    # If the operator itself is not finite, so is a fresh instance. If only the used instance is not, or only after
    # the NaN that this check passed, the fault is state that it has kept.
    if (
        not is_after_nan
        and (verdict := not_finite_verdict(direction, space, fresh))
        and not_finite_verdict(direction, space, on_return)
    ):
        return verdict
    after_later_calls = [each.after_later_calls for each in outputs]
    for circumstance, actual, headline, hint in (
        ("on return", on_return, f"{direction} depends on earlier calls", _KEPT),
        (
            "after later calls",
            after_later_calls,
            f"a later call changes what {direction} has returned",
            _OVERWRITTEN,
        ),
    ):
        if difference := first_difference(space, actual, fresh, tolerance):
            after = " (after one with NaN)" if is_after_nan else ""
            which = f"{call + 1} of {_CALLS}{after}" if call < _CALLS else _IN_THE_SAME_ARRAY
            return incoherent(
                headline,
                ("call", f"{which}, {circumstance}"),
                ("element", difference.where),
                ("fresh", difference.expected),
                ("here", difference.actual),
                evidence=difference.evidence("here", "fresh", hint),
            )
    return None


def _instance(context: CheckContext) -> LinearOperator:
    """Another instance of the case. Its random draws, such as signs or a permutation, are the same for all instances of a rank. Collective."""
    rank, size = context.rank, context.comm.Get_size()
    with own_streams(context.setting.seed * size + rank):
        return context.fresh()


def _calls(
    context: CheckContext,
    apply: Callable[[Sequence[Array], LinearOperator], tuple[Array, ...]],
    argument: Callable[[int], tuple[Array, ...]],
    used: LinearOperator,
    other: LinearOperator,
    after_nan: int | None,
) -> tuple[CallOutputs, ...]:
    returned, on_return = [], []
    given: tuple[Array, ...] = ()
    for call in range(_CALLS):
        if call == after_nan:
            _call_on_nan(apply, argument(call), used)
        given = argument(call)
        output = apply(given, used)
        returned.append(output)
        on_return.append(context.numpy(output))
        # In between, another instance gets other data: it would overwrite buffers of the class or the module.
        apply(argument((call + 1) % _CALLS), other)
    after_later_calls = [context.numpy(output) for output in returned]
    drawn = list(range(_CALLS))
    if after_nan is None:
        drawn.append(0)
        # The last output may be a view of the overwritten array; it is not read again.
        for array, values in zip(given, argument(0), strict=True):
            # Detached, because the operator may have called `requires_grad_`.
            arrays.copy_into(getattr(array, "detach", lambda array=array: array)(), values)
        on_return.append(context.numpy(apply(given, used)))
        after_later_calls.append(on_return[-1])
    return tuple(
        # Arguments are drawn again: the purity check finds operators that overwrite theirs.
        CallOutputs(early, late, context.numpy(apply(argument(number), _instance(context))))
        for number, early, late in zip(drawn, on_return, after_later_calls, strict=True)
    )


def _after_nan(context: CheckContext) -> int | None:
    """Return the index of the call that follows one on NaN; None in every other case, and if no tensor can hold NaN."""
    can_be_nan = any(not tensor.element.is_integer for tensor in context.tensors)
    return _CALLS - 1 if can_be_nan and context.setting.seed % 2 == 0 else None


def _call_on_nan(
    apply: Callable[[Sequence[Array], LinearOperator], tuple[Array, ...]],
    argument: tuple[Array, ...],
    used: LinearOperator,
) -> None:
    """Call the operator on NaN, and drop the result. Raises :class:`Inapplicable` if it raises anything."""
    for array in argument:
        element = arrays.dtype_of(array)
        if not element.is_integer:
            array[...] = element.undefined
    # An error ends the case: a rank that went on alone would leave the others waiting in the middle of the call.
    try:
        with np.errstate(all="ignore"):
            apply(argument, used)
    except Exception as error:
        raise Inapplicable(
            "the operator refuses NaN, on which it is called to see whether it keeps any"
        ) from error


REENTRANCY = ReentrancyCheck()
