"""The context of a check on one rank: the operator under test, the values that its case draws, and the exactness of both.

Integers that no operation rounds make a test exact: a right adjoint gives *equal* numbers, so not even the loss of one
ghost cell hides in a tolerance. An element type with p bits of precision holds all integers up to 2**p. If no intermediate of
the operator, in either direction, is larger than `gain` times the largest input, then inputs from {-K, ..., K} with

    K = floor((2**p - 1) / gain)

are never rounded, and the order in which a reduction adds them does not matter. That holds for coefficients that are integers. Where
they are fractions and the gain is read off the matrix, it counts in units of their last bit: for an operator with halves, x/2 is a
multiple of 1/2, so that one bit is spent on the fraction. Where it is declared, nothing tells these units, and no test is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Generic, TypeAlias, TypeVar, overload

import numpy as np

from adjointlab.checks.basis_probe import packed_matrix
from adjointlab.checks.elements import (
    EXACT,
    LEGAL_ORDERS,
    Local,
    Placed,
    Tolerance,
    is_whole,
    norm,
    order_on,
    place,
    wide,
)
from adjointlab.checks.verdict import Inapplicable
from adjointlab.core import arrays
from adjointlab.core.layer import Layer
from adjointlab.core.operator import (
    Direction,
    LinearOperator,
    apply_adjoint,
    apply_forward,
    basis_vector,
    has_program,
    programs_of,
)
from adjointlab.core.program import Program
from adjointlab.core.space import Space, Tensor
from adjointlab.core.vectors import SMALL_INTEGERS, THIRDS, Draw, Side, local_values
from adjointlab.typing import Array, Communicator, NumpyArray
from adjointlab.worlds.backward import BackwardPass

__all__ = [
    "FRACTIONS",
    "INFINITE",
    "INPUT_VALUES",
    "ROUNDING_FACTORS",
    "ROUNDING_MARGIN",
    "SUBNORMAL",
    "Apply",
    "CheckContext",
    "Gain",
    "GainSource",
    "InputSetting",
    "largest_rounding",
    "times",
]

T = TypeVar("T")

SUBNORMAL, INFINITE = "subnormal", "infinite"
INPUT_VALUES = (SMALL_INTEGERS, THIRDS, "negative", "equal", "large", "tiny", SUBNORMAL, INFINITE)
"""Kinds of values of a layer's inputs: small integers; those divided by three, which need all digits of their type, with parameters and
cotangents that do; integers below zero alone, or one for all elements of a tensor; or small integers times a large or a tiny power of two,
or times the smallest subnormal number; or small integers of which the largest are infinite."""

FRACTIONS = "fractions"
"""The kind of values that no case is drawn with: numbers of so many digits that equal ones belong together, for hints on a fault."""

Apply: TypeAlias = Callable[[Sequence[Array]], tuple[Array, ...]]
"""One direction of an operator, on this rank's local tensors."""

PROBED_DIMENSION = 64
"""Dimension of the largest operator whose gain is read off a basis probe where it is not declared."""

_GAIN_IF_UNKNOWN = 2**8
"""Bounds the integers of an operator whose gain is unknown: a moderate one, since `tolerance` allows for rounding anyway."""

_LARGEST_BOUND = 2**53
"""Largest K. A value is a 64-bit hash modulo 2K + 1, which must be far below 2**64 for all values to be as likely."""

_SMALL_INTEGERS = 2**6
"""Bound of integers whose images show a fraction: far from the size at which every number of the type is an integer."""

_FOR_GAIN = 1000
"""Number of the first of the draws that the gain is looked into with, which no check draws."""

_FEW_COLUMNS = 6
"""Of so many columns all are looked at for fractions."""

_VECTORS_OF_SIGNS = 3
"""Vectors of signs that are applied where there are more."""

ROUNDING_FACTORS = (3, 7)
"""Integers that vectors are applied again with, to see what rounds."""

ROUNDING_MARGIN = 16
"""Factor by which rounding elsewhere may exceed the largest that was measured: few of many numbers were looked at."""

_KEPT_ELEMENTS = 1024
"""The largest vector of which the values are kept as long as a case lasts."""

_LARGEST_GAIN = 2**64
"""Largest gain that is stated: under it no integer is exact in any element type."""

_LARGEST_INTEGER = 2**20
"""Bound of the integers that are compared one by one: two elements agree by accident with probability 1e-6 at most."""


@dataclass(frozen=True)
class InputSetting:
    """Recipe for the inputs of a case: key of the values, memory (of an array library), memory order of either side."""

    seed: int = 0
    library: str = "numpy"
    primal_order: str = "row-major"
    dual_order: str = "row-major"

    def __post_init__(self) -> None:
        legal = (*arrays.MEMORIES, *arrays.MIXTURES)
        if self.seed < 0:
            raise ValueError(f"seed: at least 0, not {self.seed}")
        if self.library not in legal:
            raise ValueError(f"library: {self.library!r} is not one of {', '.join(legal)}")
        for side in ("primal", "dual"):
            if self.order(side) not in LEGAL_ORDERS:
                raise ValueError(f"order: {self.order(side)!r} is not one of {', '.join(LEGAL_ORDERS)}")

    def order(self, side: Side) -> str:
        """Memory order of the inputs of one side."""
        return self.primal_order if side == "primal" else self.dual_order


class GainSource(Enum):
    """Source from which the gain of an operator is known."""

    DECLARED = "declared"  # by the operator
    PROGRAM = "program"  # computed from its specification
    PROBE = "probe"  # from its matrix, which does not show intermediates
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Gain:
    """Bounds on the arithmetic of an operator, in both directions.

    `value` is the largest absolute row sum of any intermediate, in units of the coefficients' last bit; 0 where it or these are
    unknown, which leaves the floating form of a test alone. `fan_in` bounds the number of terms added up for an output, and
    `row_sum` is the largest absolute row sum in units of one; 0 where it is unknown. `measured` is what rounding was seen to change,
    relative to norms: neither the matrix nor a bound on its rows tells how an operator comes by its results.
    """

    value: int
    fan_in: int
    row_sum: float
    source: GainSource
    measured: float = 0.0

    @property
    def is_exact(self) -> bool:
        """True if integers below 2**p / value are certain to be exact.

        A probe is no certainty: an intermediate may be larger than any entry of the matrix, as in (x + c) - c.
        """
        return self.value > 0 and self.source in (GainSource.DECLARED, GainSource.PROGRAM)

    @property
    def is_whole(self) -> bool:
        """True if all coefficients are integers."""
        return 0 < self.value == self.row_sum

    @property
    def roundings(self) -> int:
        """Most roundings on the way from an input to an output, of tensors of one element type.

        A sum of n terms rounds n - 1 times, and once more where a coefficient is a fraction, or too many are larger than one.
        """
        return self.fan_in - (self.is_whole and self.row_sum <= self.fan_in)


class _computed_once(Generic[T]):
    """Property that is computed on first access and kept in the instance.

    `functools.cached_property` holds one lock for all instances while it computes, up to Python 3.11
    [cpython-87634]. What is computed here communicates, and simulated ranks are threads: the second rank would wait
    for the lock, and the first, inside the lock, for a message of the second.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute, self.name = compute, compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> _computed_once[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> _computed_once[T] | T:
        if instance is None:
            return self
        # An entry of the instance's dictionary has precedence over a descriptor without __set__, so this runs once.
        value = vars(instance)[self.name] = self.compute(instance)
        return value


class CheckContext:
    """One rank's operator, with the values that its case draws for it.

    `make` makes an instance of the operator; `reference` is the sequential twin, from global tensors to global tensors. `values` is
    one of :data:`INPUT_VALUES`, or :data:`FRACTIONS`. `needs_run`: the twin too works within a run of the world alone. What the
    inputs and cotangents of a layer have on the rank `same_on` they have for `None` too, and other values elsewhere. `alone` is a context
    for the twin, in which this rank is the only one of its job. The operator has no forms that are called as in `forms_left_out`.
    """

    def __init__(
        self,
        make: Callable[[], LinearOperator | Layer],
        setting: InputSetting,
        comm: Communicator,
        reference: Callable[..., Any] | None = None,
        values: str = SMALL_INTEGERS,
        needs_run: bool = False,
        same_on: int | None = None,
        alone: Callable[[], AbstractContextManager[object]] = nullcontext,
        forms_left_out: Collection[str] = (),
    ) -> None:
        self._make = make
        self.beyond = None if same_on is None else (same_on, setting.seed + 1)
        self.values = values  # of a layer's inputs
        self.setting = setting
        self.reference = reference
        self.needs_run = needs_run
        self.alone = alone
        self.forms_left_out = forms_left_out
        self.comm = comm
        self.rank = comm.Get_rank()
        self._known_values: dict[tuple[Side, int, int, int], tuple[Space, Local]] = {}
        self.leaks: dict[Direction, str] = {}  # by direction: a communicator that calls make and do not free
        self._has_leaked: list[tuple[LinearOperator, Direction]] = []  # calls after which one more was left
        # Communicators of a world are told where user code ends: what follows is the lab's. And they list those that were made
        # from them and are still open. mpi4py's do neither.
        self.note_return: Callable[[Callable[..., Any]], None] = getattr(
            comm, "note_return", lambda function: None
        )
        self.note_backward: Callable[[BackwardPass], None] = getattr(
            comm, "note_backward", lambda begun: None
        )
        # What their ranks call in one application of the operator must not match what others call in another one.
        self._note_application: Callable[[], None] = getattr(comm, "note_application", lambda: None)
        self._unfreed: Callable[[], Sequence[object]] | None = getattr(comm, "unfreed", None)

    @_computed_once
    def instance(self) -> LinearOperator | Layer:
        """The instance under test, made on first access. Collective where making it is."""
        made = self._make()
        self.note_return(type(made.module if isinstance(made, Layer) else made).__init__)
        return made

    @property
    def operator(self) -> LinearOperator:
        """The instance under test, which is a linear operator."""
        instance = self.instance
        assert not isinstance(instance, Layer)
        return instance

    @property
    def layer(self) -> Layer:
        """The instance under test, which is a layer."""
        instance = self.instance
        assert isinstance(instance, Layer)
        return instance

    def fresh(self) -> LinearOperator:
        """Make another instance of the same case. Collective where making one is."""
        operator = self._make()
        self.note_return(type(operator).__init__)
        assert not isinstance(operator, Layer)
        return operator

    @property
    def domain(self) -> Space:
        return self.instance.domain

    @property
    def codomain(self) -> Space:
        return self.instance.codomain

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Those of the domain, then those of the codomain."""
        return (*self.domain.tensors, *self.codomain.tensors)

    @_computed_once
    def library(self) -> str:
        """Memory of this rank's inputs: the setting's, or torch's where that lacks an element type (bfloat16 in NumPy)."""
        wanted = arrays.memory_on(self.setting.library, self.rank)
        if all(arrays.supports(wanted, tensor.dtype) for tensor in self.tensors):
            return wanted
        on_device = wanted == "cupy" and arrays.installed("torch-cuda")
        return "torch-cuda" if on_device else "torch"

    @property
    def torch_memory(self) -> str:
        """Memory of this rank's tensors of a layer: the case's where that is torch's, else torch's on the host."""
        wanted = arrays.memory_on(self.setting.library, self.rank)
        return wanted if wanted.startswith("torch") else "torch"

    def primal(self, number: int, bound: int) -> tuple[Array, ...]:
        """This rank's part of the random element `number` of the domain."""
        return tuple(placed.view for placed in self.placed(self.domain, "primal", number, bound))

    def dual(self, number: int, bound: int) -> tuple[Array, ...]:
        """This rank's part of the random element `number` of the codomain's dual."""
        return tuple(placed.view for placed in self.placed(self.codomain.dual, "dual", number, bound))

    def placed(
        self, space: Space, side: Side, number: int, bound: int, exponent: int = 0, order: str | None = None
    ) -> tuple[Placed, ...]:
        """This rank's part of a random element of `space`, each tensor with the buffer that it lies in.

        Values are integers up to `bound`, or fill the significand where that is 0, times ``2**exponent``
        (:class:`adjointlab.core.vectors.Draw`). Every rank draws its own part without communication. Where several ranks hold
        the same element of a varying or partial tensor, each draws another value: with equal copies, an adjoint of a broadcast
        that returns P times one cotangent, and not the sum of all P, would pass.
        """
        values = self._drawn(space, side, number, bound, exponent)
        memory, order = self.library, order_on(self.rank, order or self.setting.order(side))
        return tuple(
            [
                place(each, tensor.dtype, memory, order)
                for each, tensor in zip(values, space.tensors, strict=True)
            ]
        )

    def _drawn(self, space: Space, side: Side, number: int, bound: int, exponent: int) -> Local:
        """This rank's values of a draw, kept for the next time if they are few: some checks place them several times."""
        key = side, number, bound, exponent
        known = self._known_values.get(key)
        if known is not None and known[0] is space:
            return known[1]
        draw = Draw(self.setting.seed, number, side, bound, exponent)
        values = tuple(
            [local_values(space, position, self.rank, draw) for position in range(len(space.tensors))]
        )
        for each in values:
            each.flags.writeable = False
        if sum([each.size for each in values]) <= _KEPT_ELEMENTS:
            self._known_values[key] = space, values
        return values

    def forward(self, x: Sequence[Array], operator: LinearOperator | None = None) -> tuple[Array, ...]:
        """F x, of the codomain's shapes and element types; of another instance if `operator` is given."""
        operator = operator or self.operator
        return self._noted(Direction.FORWARD, operator, lambda: apply_forward(operator, x))

    def adjoint(self, y: Sequence[Array], operator: LinearOperator | None = None) -> tuple[Array, ...]:
        """F* y, of the shapes and element types of the domain's dual."""
        operator = operator or self.operator
        return self._noted(Direction.ADJOINT, operator, lambda: apply_adjoint(operator, y))

    def _noted(
        self, direction: Direction, operator: LinearOperator, call: Callable[[], tuple[Array, ...]]
    ) -> tuple[Array, ...]:
        """Return the result of `call`, noting its end, and a communicator that it makes and does not free."""
        if self._unfreed is None:
            return call()
        before = self._unfreed()
        result = call()
        self._note_application()
        after = self._unfreed()
        if len(after) > len(before):
            # A first call may keep a communicator for all later ones; only one left by *each* call is a leak. MPI
            # libraries have some thousand communicators at most.
            if any(known is operator and which is direction for known, which in self._has_leaked):
                leaked = next(each for each in after if each not in before)
                self.leaks.setdefault(direction, f"each call leaves one more behind: {leaked}")
            self._has_leaked.append((operator, direction))
        return result

    def numpy(self, local: Sequence[Array]) -> Local:
        """Copy local tensors to NumPy arrays, for the judge."""
        return tuple(np.array(arrays.to_numpy(array)) for array in local)

    @_computed_once
    def programs(self) -> tuple[Program, Program] | None:
        """Programs of forward and adjoint that specify the operator, if it has a specification."""
        return programs_of(self.operator)

    @_computed_once
    def gain(self) -> Gain:
        """Gain of the operator: declared, else read off its program, else off its matrix where that is small.

        Collective, but for an operator that has a program.
        """
        gain, declared = self._gain(), self.operator.rounding
        if declared:  # no integer is exact
            return replace(gain, value=0, measured=max(declared, self._measured_rounding()))
        return gain if gain.is_whole else replace(gain, measured=self._measured_rounding())

    def _gain(self) -> Gain:
        operator = self.operator
        if operator.gain is not None:
            fan_in = operator.fan_in or self._dimension
            value = operator.gain if self._maps_integers_to_integers() else 0
            return Gain(value, fan_in, float(operator.gain), GainSource.DECLARED)
        specification = operator.specification()
        if specification is not None:
            programs = specification if isinstance(specification, tuple) else (specification,)
            value = max(program.gain() for program in programs)
            return Gain(value, operator.fan_in or value, float(value), GainSource.PROGRAM)
        if self._dimension > PROBED_DIMENSION:
            return Gain(0, operator.fan_in or self._dimension, 0.0, GainSource.UNKNOWN)
        matrix = packed_matrix(operator, self.library, self.precision, self.setting.seed)
        return _probed(operator.matrix(self.library) if matrix is None else matrix, operator.fan_in)

    def _maps_integers_to_integers(self) -> bool:
        """False if an instance of its own has shown that the coefficients are fractions. Collective, for operators of user code.

        The basis vectors show all of their columns, and where they are many, random integers and signs show most.
        """
        if has_program(self.operator) or all(tensor.element.is_integer for tensor in self.codomain.tensors):
            return True
        operator = self.fresh()  # the checks mean the first calls of theirs to be the first
        dimension = self.domain.dimension
        columns = range(dimension) if dimension <= _FEW_COLUMNS else [self.setting.seed % dimension]
        vectors = [basis_vector(self.domain, column, self.rank, self.library) for column in columns]
        if dimension > _FEW_COLUMNS:
            bound = max(1, min(self._exact_under(self.operator.gain or 1), _SMALL_INTEGERS))
            vectors += [self.primal(_FOR_GAIN, bound), *map(self._signs, range(_VECTORS_OF_SIGNS))]
        with np.errstate(all="ignore"):  # what is not finite is for each check to report
            images = [array for vector in vectors for array in self.numpy(self.forward(vector, operator))]
            are_whole = all(map(is_whole, images))
        return all(operator.comm.allgather(are_whole))

    def _signs(self, number: int) -> tuple[Array, ...]:
        """This rank's part of a random element of the domain whose entries are 1 and -1, of which no fraction has a whole multiple."""
        values = self._drawn(self.domain, "primal", _FOR_GAIN + 2 + number, _SMALL_INTEGERS, 0)
        return tuple(
            arrays.from_numpy(np.where(each.real > 0, 1, -1), tensor.dtype, self.library)
            for each, tensor in zip(values, self.domain.tensors, strict=True)
        )

    def _measured_rounding(self) -> float:
        """By how much rounding changes the images of a random vector in either direction, relative to their norm. Collective.

        The vector is applied again times 3 and times 7, which rounds otherwise wherever something rounds. At most `largest_rounding`: an
        operator that is not linear, or casts, is not to pass for one that rounds.
        """
        if self.has_integers:
            return 0.0
        operator = self.fresh()
        norms = [
            *self._norms(self.codomain, lambda x: self.forward(x, operator), self.primal),
            *self._norms(self.domain, lambda y: self.adjoint(y, operator), self.dual),
        ]
        of_ranks = zip(*operator.comm.allgather(norms), strict=True)
        relative = [
            math.hypot(*(changed for changed, _ in ranks)) / image
            for ranks in of_ranks
            if 0 < (image := math.hypot(*(image for _, image in ranks))) < math.inf
        ]
        largest = max(filter(math.isfinite, relative), default=0.0)
        return min(ROUNDING_MARGIN * largest, largest_rounding(self.precision))

    def _norms(
        self,
        space: Space,
        apply: Apply,
        element: Callable[[int, int], tuple[Array, ...]],
    ) -> list[tuple[float, float]]:
        """For each factor this rank's norms: of what an image is otherwise times it, and of the image."""
        # Integers that leave room for the factor, so that nothing rounds outside the operator.
        x = element(_FOR_GAIN + 1, 2 ** (self.precision - 4))
        plain, norms = self.numpy(apply(x)), []
        with np.errstate(all="ignore"):  # what is not finite measures nothing
            for factor in ROUNDING_FACTORS:
                images = self.numpy(times(factor, apply)(x))
                changed = [
                    image.astype(wide(image.dtype)) / factor - before
                    for image, before in zip(images, plain, strict=True)
                ]
                norms.append((norm(space, changed, self.rank), norm(space, plain, self.rank)))
        return norms

    @property
    def _dimension(self) -> int:
        """The longer side of the operator's matrix."""
        return max(self.domain.dimension, self.codomain.dual.dimension)

    @_computed_once
    def has_integers(self) -> bool:
        """True if a tensor of either space is of an integer type."""
        return any(tensor.element.is_integer for tensor in self.tensors)

    @_computed_once
    def precision(self) -> int:
        """p: integers up to 2**p are exact in every tensor of both spaces."""
        return min(tensor.element.precision for tensor in self.tensors)

    def integer_bound(self, headroom: int = 1) -> int:
        """K, the largest integers to draw so that no intermediate rounds; 0 if even 1 might be rounded.

        `headroom` is the factor by which a check's own arithmetic may enlarge them.
        """
        return self._exact_under((self.gain.value or _GAIN_IF_UNKNOWN) * headroom)

    def _exact_under(self, gain: int) -> int:
        return int(min((2**self.precision - 1) // gain, _LARGEST_BOUND))

    def integers(self, headroom: int = 1) -> int:
        """Bound of the integers for a check that compares values one by one.

        Raises :class:`Inapplicable` if the element type has no integers that are exact in this case.
        """
        bound = min(self.integer_bound(headroom), _LARGEST_INTEGER)
        if bound < 1 and not self.gain.is_exact:
            # Coefficients such as 1/3 leave no exact integer, and `tolerance` allows for their rounding.
            bound = 2 ** (self.precision // 2) // headroom
            if self.gain.row_sum * headroom * bound > self._largest:  # of float16
                bound = int(self._largest / (self.gain.row_sum * headroom))
        if bound < 1:
            raise Inapplicable(
                f"no integer is exact under a gain of {self.gain.value} with {self.precision} bits: declare a smaller `gain`, if "
                "there is one, or draw another element type"
            )
        return bound

    @property
    def _largest(self) -> float:
        """The largest number that every tensor of both spaces can hold."""
        limits = (np.finfo(each.element.in_numpy).max for each in self.tensors if not each.element.is_integer)
        return min(map(float, limits), default=math.inf)

    @_computed_once
    def tolerance(self) -> Tolerance:
        """Largest difference between two computations of one value on :meth:`integers`."""
        return self.tolerance_under(1)

    def tolerance_under(self, headroom: int) -> Tolerance:
        """The same on integers that have this `headroom`, and that the check's own arithmetic enlarges by as much.

        Zero where integers are exact, as between tensors of integer types. Else each of the `fan_in` terms of an output may be
        rounded once, and the sum with it, relative to the largest output there can be: with u = 2**-p the unit roundoff, two sums of n terms differ by
        2 (n + a few) u times that, doubled for complex products.
        """
        if self.gain.is_exact or all(tensor.element.is_integer for tensor in self.tensors):
            return EXACT
        relative = (self.gain.fan_in + 4) * 2.0 ** (2 - self.precision)
        # Not that of integers without headroom: those may be exact, and so few, where these are not.
        largest = headroom * self.integers(headroom)
        return Tolerance(relative + self.gain.measured, self.gain.row_sum * largest)


def times(factor: int, apply: Apply) -> Apply:
    """Return the function that applies an operator to its argument times a factor."""
    return lambda x: apply([arrays.copy(array * factor) for array in x])


def largest_rounding(precision: int) -> float:
    """The largest measured difference that is put down to rounding: of 53 bits 33 stay, and so a cast to a narrower type shows."""
    return math.pow(2.0, -0.62 * precision)


def _probed(matrix: NumpyArray, fan_in: int | None) -> Gain:
    """Gain of an operator with this matrix and no larger intermediates."""
    if not matrix.size or not np.all(np.isfinite(matrix)):
        # Any bound serves: what is not finite is reported by each check before it compares anything.
        return Gain(1, fan_in or 1, 1.0, GainSource.PROBE)
    # |re| + |im| bounds what either component of a complex product adds up.
    magnitudes = np.abs(matrix.real) + np.abs(matrix.imag)
    # Rows bound forward, columns adjoint.
    row_sum = float(max(magnitudes.sum(axis=0).max(), magnitudes.sum(axis=1).max()))
    components = np.concatenate([matrix.real.ravel(), matrix.imag.ravel()])
    # One over the weight of the last bit of all: the entries are fractions of powers of two.
    units = max(entry.as_integer_ratio()[1] for entry in np.unique(components).tolist())
    value = min(max(1, math.ceil(min(row_sum, _LARGEST_GAIN))) * units, _LARGEST_GAIN)
    terms = int(max((magnitudes != 0).sum(axis=0).max(), (magnitudes != 0).sum(axis=1).max()))
    # Intermediates that the matrix does not show may add up two terms more.
    return Gain(value, fan_in or terms + 2, row_sum, GainSource.PROBE)
