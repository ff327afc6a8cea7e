"""Looks of the dot test."""

from __future__ import annotations

from typing import Any

import numpy as np

import adjointlab as al
from adjointlab.checks.adjoint import ADJOINT
from adjointlab.checks.context import InputSetting
from tests.checks.looks.harness import Look, assert_seen, each_of
from tests.checks.looks.operators import (
    Copies,
    Ring,
    TwoRings,
    filled_with,
    larger_than,
    last_lost,
    lies,
    on,
    ring,
    where,
)

WRONG = "adjoint is not the transpose of forward"
NOT_FINITE = "is not finite"


def to_float32(operator: Any, x: Any, result: Any) -> Any:
    return result.astype(np.float32).astype(np.float64)


def to_integers(operator: Any, x: Any, result: Any) -> Any:
    return np.trunc(result)


def in_the_last_bits(share: float) -> Any:
    return lambda operator, x, result: result * (1 + share)


def second_only(direction: str) -> Any:
    """Doubles in one direction, for other values than those of its first call."""
    return where(
        lambda operator, x: any(not np.array_equal(x, each) for each in operator.seen[direction][:1])
    )


def i_times_the_argument_of_forward(operator: Any, x: Any, result: Any) -> Any:
    """Adds i x for the x of the same draw: <x, ix> is imaginary."""
    return result + 1j * operator.seen["forward"][-1]


def swapped(operator: Any, x: Any, results: Any) -> Any:
    return results[::-1]


def reversed_elements(operator: Any, x: Any, result: Any) -> Any:
    return result[::-1].copy()


class MovesAlike(Ring):
    """Its adjoint moves the same way as forward, which the inner products of a vector with itself do not tell."""

    def adjoint(self, y: Any) -> Any:
        return self.forward(y)


class Cast(Ring):
    """Between integers and floating-point numbers, which halves would not survive; right on whole numbers."""

    def __init__(self, comm: Any, domain: str, codomain: str) -> None:
        super().__init__(comm)
        layout = self.domain.tensors[0].layout
        self.domain, self.codomain = (
            al.Space(layout, dtype=domain),
            al.Space(layout, dtype=codomain, name="y"),
        )

    def forward(self, x: Any) -> Any:
        return self.moved(x, 1).astype(self.codomain.tensors[0].dtype)

    def adjoint(self, y: Any) -> Any:
        return self.moved(y, -1).astype(self.domain.tensors[0].dtype)


class RealPart(al.LinearOperator):
    """The real part of a complex tensor: linear over the reals, with a real pairing."""

    gain = fan_in = 1

    def __init__(self, comm: Any, weight: complex = 1) -> None:
        self.comm, self.weight = comm, weight
        layout = al.Layout((2 * comm.Get_size(),), al.Partition((comm.Get_size(),)))
        self.domain = al.Space(layout, dtype="complex128")
        self.codomain = al.Space(layout, dtype="float64", name="y")

    def forward(self, x: Any) -> Any:
        return np.array(x.real)

    def adjoint(self, y: Any) -> Any:
        return y * (self.weight + 0j)


class Embedding(al.LinearOperator):
    """A real tensor as a complex one: its adjoint is the real part."""

    gain = fan_in = 1

    def __init__(self, comm: Any, weight: float = 1) -> None:
        real_part = RealPart(comm)
        self.comm, self.weight = comm, weight
        self.domain, self.codomain = real_part.codomain, real_part.domain

    def forward(self, x: Any) -> Any:
        return x + 0j

    def adjoint(self, y: Any) -> Any:
        return self.weight * y.real


def times_the_ranks(operator: Any, x: Any, result: Any) -> Any:
    """The sum of all copies, if they were equal."""
    return operator.size * x


def next_summand(operator: Any, x: Any, result: Any) -> Any:
    """The summands of the sum, on other ranks."""
    return np.asarray(operator.comm.allgather(np.array(x))[(operator.rank + 1) % operator.size])


HALF_PRECISION = {"dtype": "float16"}
SEVERAL_EXACT_DRAWS = {"dtype": "int32", "gain": 2**20}  # and none in floating point
LARGE_GAIN = {"gain": 2**40, "fan_in": 1}  # so that the integers are small
NO_GAIN = {"shape": (40,), "gain": None}  # too large for a probe

LOOKS = [
    Look("forward on rank 0", ring(forward=on(0)), WRONG, 3),
    Look("forward on the last rank", ring(forward=on(-1)), WRONG, 3),
    Look("adjoint on rank 0", ring(adjoint=on(0)), WRONG, 3),
    Look("adjoint on the last rank", ring(adjoint=on(-1)), WRONG, 3),
    Look("the last element of forward", ring(forward=on(1, last_lost)), WRONG),
    Look("the last element of adjoint", ring(adjoint=on(1, last_lost)), WRONG),
    Look("the sign", ring(adjoint=lambda operator, y, result: -result), WRONG),
    Look("the conjugate", ring(dtype="complex128", adjoint=lambda operator, y, r: r.conj()), WRONG),
    Look("the imaginary part", ring(dtype="complex128", gain=2**10, adjoint=i_times_the_argument_of_forward), WRONG),
    Look("the real part of a mixed pair", ring(RealPart, weight=2), WRONG),
    Look("the real part alone of a mixed pair", ring(RealPart), ""),
    Look("the real part of the other mixed pair", ring(Embedding, weight=2), WRONG),
    Look("the real part alone of the other mixed pair", ring(Embedding), ""),
    # The values.
    Look("large integers", ring(adjoint=where(larger_than(2.0**40))), WRONG),
    Look("large integers of forward", ring(forward=where(larger_than(2.0**40))), WRONG),
    Look("equality of exact draws", ring(gain=64, adjoint=in_the_last_bits(2.0**-50)), WRONG),
    Look("significands of forward", ring(forward=to_float32, **LARGE_GAIN), WRONG),
    Look("significands of adjoint", ring(adjoint=to_float32, **LARGE_GAIN), WRONG),
    Look("powers of two of forward", ring(forward=where(larger_than(2), to_integers)), WRONG),
    Look("powers of two of adjoint", ring(adjoint=where(larger_than(2), to_integers)), WRONG),
    Look("a rounding bound that follows from the sum", ring(adjoint=in_the_last_bits(1e-11), **NO_GAIN), WRONG),
    Look("further exact draws of forward", ring(forward=second_only("forward"), **SEVERAL_EXACT_DRAWS), WRONG),
    Look("further exact draws of adjoint", ring(adjoint=second_only("adjoint"), **SEVERAL_EXACT_DRAWS), WRONG),
    Look("other values for the dual", ring(MovesAlike), WRONG, 3),
    Look("other values for each tensor", ring(TwoRings, adjoint=swapped), WRONG),
    Look("other values for each element", ring(adjoint=reversed_elements), WRONG),
    Look("other cotangents on each copy", ring(Copies, domain="invariant", codomain="replicated", adjoint=times_the_ranks), WRONG),
    Look("other summands on each rank", ring(Copies, domain="partial", codomain="replicated", sums=("forward",), forward=times_the_ranks), WRONG),
    Look("equal cotangents where the dual has equal copies", ring(Copies, domain="partial", codomain="partial", forward=next_summand), ""),
    Look("equal arguments where copies are equal", ring(Copies, domain="replicated", codomain="replicated", adjoint=next_summand), ""),
    Look("whole numbers alone beside a domain of integers", ring(Cast, domain="int64", codomain="float64"), ""),
    Look("whole numbers alone beside a codomain of integers", ring(Cast, domain="float64", codomain="int64"), ""),
    Look("half precision", ring(adjoint=on(1), **HALF_PRECISION), WRONG),
    # Results that are not finite.
    Look("a NaN of forward on the last rank", ring(forward=on(-1, filled_with(np.nan))), "forward returned nan on rank 2", 3),
    Look("an infinity of forward on rank 0", ring(forward=on(0, filled_with(np.inf))), "forward returned inf on rank 0", 3),
    Look("a NaN of adjoint on rank 0", ring(adjoint=on(0, filled_with(np.nan))), "adjoint returned nan on rank 0", 3),
    Look("an infinity of adjoint on the last rank", ring(adjoint=on(-1, filled_with(np.inf))), "adjoint returned inf on rank 2", 3),
    Look("a NaN of a further draw", ring(forward=where(lambda op, x: bool(op.seen["forward"]) and not larger_than(1)(op, x), filled_with(np.nan))), "forward returned nan"),
]  # fmt: skip
LOOKS += [
    Look(
        f"{order} {'arguments' if direction == 'forward' else 'cotangents'}",
        ring(shape=(2, 3), **{direction: where(lies(order))}),
        WRONG,
        setting=InputSetting(0, "numpy", **{side: order}),
    )
    for order in ("column-major", "strided", "offset", "reversed")
    for direction, side in (("forward", "primal_order"), ("adjoint", "dual_order"))
]


@each_of(LOOKS)
def test_a_look_of_the_dot_test(look: Look) -> None:
    assert_seen(ADJOINT, look)
