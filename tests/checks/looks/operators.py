"""Operators that are right but for one fault, which a table of looks gives them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import adjointlab as al
from adjointlab.core.program import Deallocate, Program, buffers, copy_to_new

Fault = Callable[[Any, Any, Any], Any]
"""``fault(operator, argument, result)``: the result that a direction returns instead."""


class Ring(al.LinearOperator):
    """Moves every worker's local tensor to the next worker."""

    def __init__(
        self,
        comm: Any,
        shape: tuple[int, ...] = (2,),
        dtype: str = "float64",
        gain: int | None = 1,
        fan_in: int | None = None,  # the gain, unless it is given
        forward: Fault | None = None,
        adjoint: Fault | None = None,
        is_specified: bool = False,
        is_identity: bool = False,
    ) -> None:
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        partition = al.Partition((self.size, *(1 for _ in shape[1:])))
        layout = al.Layout((self.size * shape[0], *shape[1:]), partition)
        self.domain, self.codomain = al.Space(layout, dtype=dtype), al.Space(layout, dtype=dtype, name="y")
        self.gain, self.fan_in = gain, fan_in or gain
        self.faults = {"forward": forward, "adjoint": adjoint}
        self.is_specified, self.is_identity = is_specified, is_identity
        self.seen: dict[str, list[Any]] = {"forward": [], "adjoint": []}  # arguments of earlier calls

    def moved(self, x: Any, step: int) -> Any:
        out = np.empty(x.shape, x.dtype)
        to, origin = (self.rank + step) % self.size, (self.rank - step) % self.size
        self.comm.Sendrecv(np.ascontiguousarray(x), to, 0, out, origin, 0)
        return out

    def applied(self, direction: str, step: int, x: Any) -> Any:
        result, fault = self.moved(x, step), self.faults[direction]
        if fault is not None:
            result = fault(self, x, result)
        self.seen[direction].append(np.array(x))
        return result

    def forward(self, x: Any) -> Any:
        return self.applied("forward", 1, x)

    def adjoint(self, y: Any) -> Any:
        return self.applied("adjoint", -1, y)

    def specification(self) -> Program | None:
        if not self.is_specified:
            return None
        inputs, outputs = buffers(self.domain), buffers(self.codomain)
        copies = [
            step
            for rank, one in enumerate(inputs)
            for step in copy_to_new(one.whole, outputs[(rank + 1) % self.size])
        ]
        return Program(inputs, [*copies, *map(Deallocate, inputs)])


class RingWithForms(Ring):
    """Has the forms with `out` and in place too; a fault of ``into`` or ``in_place`` stands beside the two directions."""

    def __init__(
        self, comm: Any, into: Fault | None = None, in_place: Fault | None = None, **given: Any
    ) -> None:
        super().__init__(comm, **given)
        self.form_faults = {"into": into, "in_place": in_place}

    def applied_into(self, direction: str, step: int, x: Any, out: Any) -> Any:
        result = self.applied(direction, step, x)
        if out is None:
            return result
        out[...] = result
        fault = self.form_faults["into"]
        return out if fault is None else fault(self, (direction, x), out)

    def forward(self, x: Any, out: Any = None) -> Any:
        return self.applied_into("forward", 1, x, out)

    def adjoint(self, y: Any, out: Any = None) -> Any:
        return self.applied_into("adjoint", -1, y, out)

    def in_place(self, direction: str, step: int, x: Any) -> Any:
        x[...] = self.applied(direction, step, np.array(x))
        fault = self.form_faults["in_place"]
        return x if fault is None else fault(self, (direction, x), x)

    def forward_(self, x: Any) -> Any:
        return self.in_place("forward", 1, x)

    def adjoint_(self, y: Any) -> Any:
        return self.in_place("adjoint", -1, y)


def noting_largest(largest: dict[str, float]) -> dict[str, Fault]:
    """Faults that are none: they note the largest argument of either direction."""

    def noted(direction: str) -> Fault:
        def fault(operator: Any, x: Any, result: Any) -> Any:
            largest[direction] = max(largest.get(direction, 0.0), float(abs(x).max()))
            return result

        return fault

    return {direction: noted(direction) for direction in ("forward", "adjoint")}


class TwoRings(Ring):
    """Two tensors, each moved to the next worker; a fault gets both."""

    def __init__(self, comm: Any, **given: Any) -> None:
        super().__init__(comm, **given)
        x, y = self.domain.tensors[0], self.codomain.tensors[0]
        self.domain = al.Space(x, al.Tensor(x.layout, x.dtype, name="x2"))
        self.codomain = al.Space(y, al.Tensor(y.layout, y.dtype, name="y2"))

    def both(self, direction: str, step: int, x: Any) -> Any:
        results = tuple(self.moved(each, step) for each in x)
        fault = self.faults[direction]
        return results if fault is None else fault(self, x, results)

    def forward(self, *x: Any) -> Any:
        return self.both("forward", 1, x)

    def adjoint(self, *y: Any) -> Any:
        return self.both("adjoint", -1, y)


class Copies(al.LinearOperator):
    """Sums over all workers in the directions that `sums` names, between tensors of which each worker has a copy."""

    def __init__(
        self,
        comm: Any,
        domain: str,
        codomain: str,
        sums: tuple[str, ...] = (),
        forward: Fault | None = None,
        adjoint: Fault | None = None,
        is_identity: bool = False,
    ) -> None:
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        layout = al.Layout((2,), al.Partition((self.size,)), axes=(None,))
        self.domain = al.Space(layout, types=(domain,))
        self.codomain = al.Space(layout, types=(codomain,), name="y")
        self.gain = self.fan_in = self.size
        self.sums, self.faults, self.is_identity = sums, {"forward": forward, "adjoint": adjoint}, is_identity

    def applied(self, direction: str, x: Any) -> Any:
        result = np.array(x)
        if direction in self.sums:
            self.comm.Allreduce(np.array(x), result)
        fault = self.faults[direction]
        return result if fault is None else fault(self, x, result)

    def forward(self, x: Any) -> Any:
        return self.applied("forward", x)

    def adjoint(self, y: Any) -> Any:
        return self.applied("adjoint", y)


class TwoOfCopies(al.LinearOperator):
    """The identity between spaces of two tensors: one is cut, and of the other workers have equal copies, a fault's too."""

    def __init__(self, comm: Any, forward: Fault | None = None, adjoint: Fault | None = None) -> None:
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        cut, copies = al.Layout((2 * self.size,), (self.size,)), al.Layout((2,), (self.size,), axes=(None,))
        copied = al.Tensor(copies, types=("invariant",), name="x2")  # type: ignore[arg-type]
        self.domain = self.codomain = al.Space(al.Tensor(cut), copied)
        self.gain = self.fan_in = 1
        self.faults = {"forward": forward, "adjoint": adjoint}

    def applied(self, direction: str, one: Any, other: Any) -> Any:
        fault = self.faults[direction]
        return np.array(one), np.array(other) if fault is None else fault(self, other, np.array(other))

    def forward(self, *x: Any) -> Any:
        return self.applied("forward", *x)

    def adjoint(self, *y: Any) -> Any:
        return self.applied("adjoint", *y)


def ring(kind: Callable[..., Any] = Ring, **given: Any) -> Callable[[Any], Any]:
    """Makes an operator of `kind` from a communicator."""
    return partial(kind, **given)


# Faults, and the conditions under which they show.


def doubled(operator: Any, x: Any, result: Any) -> Any:
    return 2 * result


def last_lost(operator: Any, x: Any, result: Any) -> Any:
    result[-1:] = 0
    return result


def filled_with(value: float) -> Fault:
    def fill(operator: Any, x: Any, result: Any) -> Any:
        result[-1:] = value
        return result

    return fill


def where(is_so: Callable[[Any, Any], bool], fault: Fault = doubled) -> Fault:
    """The fault where ``is_so(operator, argument)``."""
    return lambda operator, x, result: fault(operator, x, result) if is_so(operator, x) else result


def on(rank: int, fault: Fault = doubled) -> Fault:
    """The fault on one rank; -1 is the last."""
    return where(lambda operator, _: operator.rank == rank % operator.size, fault)


def larger_than(bound: float) -> Callable[[Any, Any], bool]:
    """True for an argument with a component above the bound."""
    return lambda _, x: bool(np.abs(np.asarray([x.real, x.imag])).max(initial=0.0) > bound)


def lies(order: str) -> Callable[[Any, Any], bool]:
    """True for an argument of two dimensions that lies in memory as `order` says."""

    def is_so(operator: Any, x: Any) -> bool:
        size = x.itemsize
        return {
            "row-major": x.flags.c_contiguous,
            "column-major": x.flags.f_contiguous and not x.flags.c_contiguous,
            "strided": x.strides[-1] == 2 * size and x.strides[0] > x.strides[-1],
            "offset": x.strides[-1] == size and not x.flags.c_contiguous,
            "reversed": x.strides[-1] < 0,
        }[order]

    return is_so


def is_zero(operator: Any, x: Any) -> bool:
    """True for an argument without anything, and for no other."""
    return not np.asarray(x).any()
