"""The context: what a check works with on one rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

import numpy as np

from adjointlab.checks.check import Inapplicable
from adjointlab.checks.compare import EXACT, Tolerance
from adjointlab.checks.placement import ORDERS, Placed, place
from adjointlab.core import arrays
from adjointlab.core.layer import Layer
from adjointlab.core.operator import LinearOperator, apply_adjoint, apply_forward
from adjointlab.core.space import Space
from adjointlab.core.values import Draw, local_values

__all__ = ["CheckContext", "Gain", "InputSetting"]

T = TypeVar("T")

PROBED_DIMENSION = 64
"""The largest domain whose gain is read off a basis probe when nobody declares it."""


@dataclass(frozen=True)
class InputSetting:
    """How a case feeds its operator: the key of the values, the array library, the memory orders of both sides."""

    seed: int = 0
    library: str = "numpy"
    primal_order: str = "row-major"
    dual_order: str = "row-major"

    def __post_init__(self) -> None:
        if self.library not in arrays.LIBRARIES:
            raise ValueError(f"library: {self.library!r} is not one of {', '.join(arrays.LIBRARIES)}")
        for order in (self.primal_order, self.dual_order):
            if order not in ORDERS:
                raise ValueError(f"order: {order!r} is not one of {', '.join(ORDERS)}")


@dataclass(frozen=True)
class Gain:
    """What bounds the arithmetic of an operator.

    `value` is the largest absolute row sum of any intermediate, both directions, in units of the coefficients' last
    bit; 0 where it is unknown. `fan_in` bounds the terms added up for an output. `source` is "declared" or "program"
    (then integers below 2**p / value are exact), "probe" (intermediates unseen, so a difference within the rounding
    bound stays undecided) or "unknown" (the floating form alone).
    """

    value: int
    fan_in: int
    row_sum: float
    source: str

    @property
    def is_exact(self) -> bool:
        return self.source in ("declared", "program")


class _kept(Generic[T]):
    """A property that is computed once and kept.

    Up to Python 3.11 `functools.cached_property` holds a lock of the class while it computes. What is computed here
    communicates, and simulated ranks are threads: the second rank would wait for the lock, and the first for it.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute, self.name = compute, compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> _kept[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> _kept[T] | T:
        if instance is None:
            return self
        value = vars(instance)[self.name] = self.compute(instance)
        return value


class CheckContext:
    """One rank's operator, with the values that its case draws for it."""

    def __init__(
        self,
        make: Callable[[], LinearOperator],
        setting: InputSetting,
        comm: Any,
        reference: Callable[..., Any] | None = None,
    ) -> None:
        self._make = make
        self.setting = setting
        self.reference = reference  # the sequential twin: global tensors to global tensors
        self.comm = comm
        self.rank: int = comm.Get_rank()
        self.leaks: dict[str, str] = {}  # by direction, what calls leave behind
        self._growing: list[tuple[LinearOperator, str]] = []  # calls that have left communicators behind

    @_kept
    def operator(self) -> LinearOperator:
        """The instance under test."""
        return self._make()

    def fresh(self) -> LinearOperator:
        """Another instance of the same case."""
        return self._make()

    @property
    def layer(self) -> Layer:
        """The instance under test where it is a layer."""
        layer: Any = self.operator
        assert isinstance(layer, Layer)
        return layer

    @property
    def domain(self) -> Space:
        return self.operator.domain

    @property
    def codomain(self) -> Space:
        return self.operator.codomain

    @_kept
    def library(self) -> str:
        """The array library of the inputs: the setting's, or torch where the setting's lacks an element type."""
        tensors = (*self.domain.tensors, *self.codomain.tensors)
        wanted = self.setting.library
        return wanted if all(arrays.supports(wanted, tensor.dtype) for tensor in tensors) else "torch"

    def primal(self, number: int, bound: int, exponent: int = 0) -> tuple[Any, ...]:
        """This rank's part of the `number`-th random element of the domain."""
        return tuple(placed.view for placed in self.placed(self.domain, "primal", number, bound, exponent))

    def dual(self, number: int, bound: int, exponent: int = 0) -> tuple[Any, ...]:
        """This rank's part of the `number`-th random element of the codomain's dual."""
        return tuple(
            placed.view for placed in self.placed(self.codomain.dual, "dual", number, bound, exponent)
        )

    def placed(
        self, space: Space, side: str, number: int, bound: int, exponent: int = 0, order: str | None = None
    ) -> tuple[Placed, ...]:
        """The same, with the memory around it."""
        draw = Draw(self.setting.seed, number, side, bound, exponent)
        if order is None:
            order = self.setting.primal_order if side == "primal" else self.setting.dual_order
        return tuple(
            place(local_values(space, position, self.rank, draw), tensor.dtype, self.library, order)
            for position, tensor in enumerate(space.tensors)
        )

    def forward(self, x: Sequence[Any], operator: LinearOperator | None = None) -> tuple[Any, ...]:
        """F x, checked against the codomain's declaration."""
        operator = operator or self.operator
        return self._watched("forward", operator, lambda: apply_forward(operator, x))

    def adjoint(self, y: Sequence[Any], operator: LinearOperator | None = None) -> tuple[Any, ...]:
        """F* y, checked against the declaration of the domain's dual."""
        operator = operator or self.operator
        return self._watched("adjoint", operator, lambda: apply_adjoint(operator, y))

    def _watched(
        self, direction: str, operator: LinearOperator, call: Callable[[], tuple[Any, ...]]
    ) -> tuple[Any, ...]:
        """`call`, with an eye on the communicators that it makes and does not free."""
        unfreed = getattr(self.comm, "unfreed", None)  # the communicator of a world has it
        if unfreed is None:
            return call()
        before = unfreed()
        result = call()
        after = unfreed()
        if len(after) > len(before):
            # The first time it may be something to keep.
            known = [one for one, its in self._growing if one is operator and its == direction]
            if known:
                grown = next(each for each in after if each not in before)
                self.leaks.setdefault(direction, f"each call leaves one more behind: {grown}")
            self._growing.append((operator, direction))
        return result

    def numpy(self, local: Sequence[Any]) -> tuple[np.ndarray[Any, Any], ...]:
        """Local tensors as NumPy arrays of their own, to be sent to the judge."""
        return tuple(np.array(arrays.to_numpy(array)) for array in local)

    @_kept
    def gain(self) -> Gain:
        """Collective where nobody declares it: read off the program, else off a basis probe of a small case."""
        operator = self.operator
        dimension = max(self.domain.dimension, self.codomain.dual.dimension)
        if operator.gain is not None:
            return Gain(operator.gain, operator.fan_in or dimension, float(operator.gain), "declared")
        specification = operator.specification()
        if specification is not None:
            programs = specification if isinstance(specification, tuple) else (specification,)
            value = max(program.gain() for program in programs)
            return Gain(value, operator.fan_in or value, float(value), "program")
        if dimension > PROBED_DIMENSION:
            return Gain(0, operator.fan_in or dimension, 0.0, "unknown")
        return _probed(operator.matrix(self.library), operator.fan_in)

    @_kept
    def precision(self) -> int:
        """p: integers up to 2**p are exact in every tensor of both spaces."""
        tensors = (*self.domain.tensors, *self.codomain.tensors)
        return min(tensor.element.precision for tensor in tensors)

    def integer_bound(self, headroom: int = 1) -> int:
        """K, the largest integers to draw so that no intermediate rounds; 0 where there are none.

        `headroom` is the factor by which a check's own arithmetic may enlarge them.
        """
        gain = self.gain.value or 2**8
        return int(min((2**self.precision - 1) // (gain * headroom), 2**53))

    def integers(self, headroom: int = 1) -> int:
        """The bound of the integers that a check of values draws.

        Raises :class:`Inapplicable` where the element type has none that are exact in this case.
        """
        bound = min(self.integer_bound(headroom), 2**20)
        if bound < 1 and not self.gain.is_exact:
            # Coefficients such as 1/3 leave no exact integer, and :attr:`tolerance` allows for their rounding.
            bound = 2 ** (self.precision // 2) // headroom
        if bound < 1:
            raise Inapplicable(
                f"no integer is exact under a gain of {self.gain.value} with {self.precision} bits"
            )
        return bound

    @_kept
    def tolerance(self) -> Tolerance:
        """How far two computations of one value may differ.

        Nothing where integers are exact; a rounding of each term where the operator's gain is not known for sure.
        """
        if self.gain.is_exact:
            return EXACT
        return Tolerance(
            (self.gain.fan_in + 4) * 2.0 ** (2 - self.precision), self.gain.row_sum * self.integers()
        )


def _probed(matrix: np.ndarray[Any, Any], fan_in: int | None) -> Gain:
    if not matrix.size or not np.all(np.isfinite(matrix)):
        return Gain(1, fan_in or 1, 1.0, "probe")
    magnitudes = np.abs(matrix.real) + np.abs(matrix.imag)
    row_sum = float(max(magnitudes.sum(axis=0).max(), magnitudes.sum(axis=1).max(), 1.0))
    components = np.concatenate([matrix.real.ravel(), matrix.imag.ravel()])
    last_bit = min(_last_bit(value) for value in components.tolist())
    value = int(min(np.ceil(row_sum) / last_bit, 2.0**64))
    terms = int(max((magnitudes != 0).sum(axis=0).max(), (magnitudes != 0).sum(axis=1).max()))
    return Gain(value, fan_in or terms + 2, row_sum, "probe")


def _last_bit(value: float) -> float:
    """The weight of the lowest bit of `value`, at most 1."""
    denominator = value.as_integer_ratio()[1]
    return 1.0 / denominator
