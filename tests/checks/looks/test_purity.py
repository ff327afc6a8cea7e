"""Looks of the check of purity."""

from __future__ import annotations

from typing import Any

import numpy as np

from adjointlab.checks.context import InputSetting
from adjointlab.checks.purity import PURITY
from tests.checks.looks.harness import Look, assert_seen, each_of
from tests.checks.looks.operators import Ring, RingWithForms, filled_with, last_lost, lies, on, ring, where

ORDERS = ("column-major", "strided", "offset", "reversed")


def owner(x: Any) -> Any:
    """The buffer that a view lies in."""
    while x.base is not None:
        x = x.base
    return x


def writes(operator: Any, x: Any, result: Any) -> Any:
    x[...] = -x
    return result


def writes_last(operator: Any, x: Any, result: Any) -> Any:
    x[..., -1:] += 1
    return result


def writes_behind(operator: Any, x: Any, result: Any) -> Any:
    owner(x).ravel()[-1] = 0
    return result


def writes_before(operator: Any, x: Any, result: Any) -> Any:
    owner(x).reshape(-1)[0] = 0
    return result


def writes_between(operator: Any, x: Any, result: Any) -> Any:
    """Between the elements of a strided argument."""
    owner(x)[1, 2] = 0
    return result


def another_nan(operator: Any, x: Any, result: Any) -> Any:
    """Writes a NaN of other bits where there was one."""
    owner(x).ravel()[-1:].view(np.uint64)[...] += 1
    return result


def reads_fresh_memory(operator: Any, x: Any, result: Any) -> Any:
    result += 0 * np.empty(result.shape)
    return result


def ignores_nan(operator: Any, x: Any, result: Any) -> Any:
    """Hidden from NaN, which np.fmax leaves out."""
    result += np.fmax(np.empty(result.shape), 0)
    return result


def nan_is_larger_than_nothing(operator: Any, x: Any, result: Any) -> Any:
    """Hidden from a number: it differs for NaN alone."""
    result += np.isnan(np.empty(result.shape))
    return result


def counts_fresh_integers(operator: Any, x: Any, result: Any) -> Any:
    """The one fill that integers get for NaN, which memory by itself hardly holds."""
    result += np.empty(result.shape, result.dtype) == 113
    return result


def of_an_inexact_gain(fault: Any) -> Any:
    """Of an operator whose gain is read off a probe, small errors are within the tolerance."""
    return lambda operator, x, result: fault(operator, x, result)


def circumstances(direction: str) -> list[Look]:
    """Looks at one direction of an operator without other forms."""
    argument = f"{direction} writes into its argument"
    place = f"{direction} depends on where its argument lies in memory"
    fresh = f"{direction} reads uninitialised memory"

    def setting(order: str) -> InputSetting:
        return InputSetting(0, "numpy", **{"primal_order" if direction == "forward" else "dual_order": order})

    def planes(fault: Any) -> Any:
        return ring(shape=(2, 3), **{direction: fault})

    return [
        Look(f"{direction}, the argument on rank 0", ring(**{direction: on(0, writes)}), argument, 3),
        Look(f"{direction}, the argument on the last rank", ring(**{direction: on(-1, writes)}), argument, 3),
        Look(f"{direction}, its last element", ring(**{direction: writes_last}), argument),
        Look(f"{direction}, guard zones behind", ring(**{direction: on(1, writes_behind)}), argument),
        Look(f"{direction}, guard zones before", planes(where(lies("offset"), writes_before)), argument, setting=setting("offset")),
        Look(f"{direction}, guard zones between", planes(where(lies("strided"), writes_between)), argument, setting=setting("strided")),
        Look(f"{direction}, every bit", ring(**{direction: another_nan}), argument),
        *(Look(f"{direction}, a {order} argument", planes(where(lies(order))), place, setting=setting(order)) for order in ORDERS),
        *(Look(f"{direction}, a {order} argument that is written into", planes(where(lies(order), writes)), argument, setting=setting(order)) for order in ORDERS),
        Look(f"{direction}, a row-major argument beside a strided one", planes(where(lies("row-major"))), place, setting=setting("strided")),
        Look(f"{direction}, fresh memory", ring(**{direction: on(1, reads_fresh_memory)}), fresh),
        Look(f"{direction}, fresh memory of a number", ring(**{direction: ignores_nan}), fresh),
        Look(f"{direction}, fresh memory of NaN", ring(**{direction: nan_is_larger_than_nothing}), fresh),
        Look(f"{direction}, fresh memory of integers", ring(dtype="int64", **{direction: on(1, counts_fresh_integers)}), fresh),
        Look(f"{direction}, NaN on the last rank", ring(**{direction: on(-1, filled_with(np.nan))}), f"{direction} returned nan on rank 2", 3),
        Look(f"{direction}, the second call", ring(**{direction: where(lambda op, _: len(op.seen[direction]) == 1)}), f"{fresh}, or changes its result from call to call"),
        Look(f"{direction}, the third call and those after it, in another memory order", planes(where(lambda op, _: len(op.seen[direction]) > 2)), f"{direction} changes its result from call to call", setting=setting("column-major")),
        Look(f"{direction}, the third call of an argument that has one order alone", ring(**{direction: where(lambda op, _: len(op.seen[direction]) > 2)}), f"{direction} changes its result from call to call", setting=setting("column-major")),
    ]  # fmt: skip


def only(direction: str, fault: Any) -> Any:
    """The fault of a form, in one direction."""
    return lambda operator, given, result: (
        fault(operator, given[1], result) if given[0] == direction else result
    )


def forms(direction: str) -> list[Look]:
    """Looks at the other forms of one direction."""
    into, in_place = (f"{direction} {form} gives something else" for form in ("into `out`", "in place"))

    def in_form(**fault: Any) -> Any:
        return ring(RingWithForms, **{form: only(direction, one) for form, one in fault.items()})

    def elsewhere(operator: Any, x: Any, result: Any) -> Any:
        return result.copy()

    def nothing(operator: Any, x: Any, result: Any) -> Any:
        return None

    return [
        Look(f"{direction} into `out` on rank 0", in_form(into=on(0, last_lost)), into, 3),
        Look(f"{direction} into `out` on the last rank", in_form(into=on(-1, last_lost)), into, 3),
        Look(f"{direction} in place on rank 0", in_form(in_place=on(0, last_lost)), in_place, 3),
        Look(f"{direction} in place on the last rank", in_form(in_place=on(-1, last_lost)), in_place, 3),
        Look(f"{direction} returns `out` on rank 0", in_form(into=on(0, elsewhere)), f"{direction} into `out` returns something else", 3),
        Look(f"{direction} returns `out` on the last rank", in_form(into=on(-1, elsewhere)), f"{direction} into `out` returns something else", 3),
        Look(f"{direction} returns `out` and not nothing", in_form(into=nothing), f"{direction} into `out` returns something else"),
        Look(f"{direction} returns its argument in place", in_form(in_place=on(-1, elsewhere)), f"{direction} in place returns something else", 3),
        Look(f"{direction} in place may return nothing", in_form(in_place=nothing), ""),
        Look(f"{direction} into `out` leaves its argument", in_form(into=on(-1, writes)), f"{direction} writes into its argument", 3),
        Look(f"{direction} into `out` writes all of it", ring(LeavesOut, left=direction), into),
        Look(f"{direction} into `out` writes zeros too", ring(LeavesOut, left=direction, **{direction: last_lost}), into),
        Look(f"{direction} into `out` of integers writes all of it", ring(LeavesOut, left=direction, dtype="int64"), into),
    ]  # fmt: skip


class LeavesOut(RingWithForms):
    """Does not write the last element of `out`."""

    def __init__(self, comm: Any, left: str, **given: Any) -> None:
        super().__init__(comm, **given)
        self.left = left

    def applied_into(self, direction: str, step: int, x: Any, out: Any) -> Any:
        result = self.applied(direction, step, x)
        if out is None:
            return result
        end = result.size - (direction == self.left)
        out[:end] = result[:end]
        return out


LOOKS = [
    *circumstances("forward"),
    *circumstances("adjoint"),
    *forms("forward"),
    *forms("adjoint"),
    Look(
        "a right operator", ring(Ring, shape=(2, 3)), "", 3, InputSetting(0, "numpy", "strided", "reversed")
    ),
    Look("all forms of a right operator", ring(RingWithForms), "", 3),
    *(
        Look(
            f"{direction} in memory that no case of row-major arguments has",
            ring(shape=(2, 3), **{direction: where(lies("column-major"), filled_with(np.nan))}),
            "",
        )
        for direction in ("forward", "adjoint")
    ),
]


@each_of(LOOKS)
def test_a_look_of_purity(look: Look) -> None:
    assert_seen(PURITY, look)
