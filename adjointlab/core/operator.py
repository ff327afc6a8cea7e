"""Linear operators between spaces: forward, adjoint, and their small algebra."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from math import prod
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, SupportsComplex, TypeAlias, TypeVar, cast, overload

import numpy as np

from adjointlab.core import arrays
from adjointlab.core.arguments import batch_shape, mismatch
from adjointlab.core.bases import LinearMap
from adjointlab.core.communicators import size_of, sum_of_ranks
from adjointlab.core.space import Space
from adjointlab.pictures.drawable import Drawable
from adjointlab.quantities import counted
from adjointlab.spelling import described_type
from adjointlab.typing import Array, Communicator, NumpyArray

if TYPE_CHECKING:
    from adjointlab.core.program import Program
    from adjointlab.pictures.model import Drawing

__all__ = [
    "AdaptedOperator",
    "AdjointOperator",
    "AdjointProperty",
    "CompositeOperator",
    "Direction",
    "LinearOperator",
    "NotInSpace",
    "ProductOperator",
    "WrongClaim",
    "apply_adjoint",
    "apply_forward",
    "as_tuple",
    "both_directions",
    "has_program",
    "implementation",
    "precedence_of",
    "programs_of",
    "results_in",
    "specification_of",
    "written",
]  # fmt: skip

A = TypeVar("A", bound=Array)
Result: TypeAlias = Array | tuple[Array, ...]


class Direction(StrEnum):
    """Direction in which an operator is applied; the value is the name of the method."""

    FORWARD = "forward"
    ADJOINT = "adjoint"


class NotInSpace(ValueError):
    """An operator returned something that is not an element of the space it declares."""


class ParameterNotInSpace(NotInSpace):
    """A parameter of a layer is not an element of the space that the layer declares for it."""


class ParameterMisplaced(ParameterNotInSpace):
    """A rank holds elements of a layer's parameter that are not its part of the sequential one."""


class OtherOutputs(NotInSpace):
    """A module returned its outputs at different indices, or under different keys, than the sequential one."""


class WrongClaim(NotInSpace):
    """A tensor's metadata is wrong, such as a global shape that its local parts do not make up."""


class AdjointProperty:
    """A property that an instance attribute of user code may replace, as in ``self.H = 3``; Python's `property` refuses that."""

    def __init__(self, compute: Callable[[Any], LinearOperator]) -> None:
        self._compute, self.__doc__ = compute, compute.__doc__

    @overload
    def __get__(self, operator: None, owner: object = None) -> AdjointProperty: ...

    @overload
    def __get__(self, operator: LinearOperator, owner: object = None) -> LinearOperator: ...

    def __get__(
        self, operator: LinearOperator | None, owner: object = None
    ) -> LinearOperator | AdjointProperty:
        return self if operator is None else self._compute(operator)


class LinearOperator(Drawable, ABC):
    """A linear map from `domain` to `codomain`, executed by all ranks of `comm` together.

    Every rank makes its own instance from the same arguments. `forward` takes this rank's local tensor (one argument for each
    tensor of the domain) and returns the local tensor of the codomain (a tuple where it has several); `adjoint` maps
    ``codomain.dual`` to ``domain.dual``, with <Fx, y> = <x, F*y> [Hewett21, eq. 1]. Neither writes into its arguments.

    Attributes that a subclass may declare:

    - `gain` bounds the largest absolute row sum of any intermediate, in both directions: a positive integer. It sets the size of
      the integers with which the lab tests, so that no sum of them is rounded. `None` means unknown: only the test with a
      tolerance applies, as it does where the images of integers are fractions.
    - `fan_in` bounds the number of terms summed for any output, which sets that tolerance. `None` means unknown.
    - `rounding` is the error of its results relative to the largest, if that exceeds the rounding error: for an iterative solver,
      its tolerance times the condition number. All tests then allow for it, and none is exact. `None` means rounding only.
    - `batched`: the operator takes local tensors with an extra trailing dimension, a batch of b >= 1 arguments, and returns the
      batch of results. On an inactive rank a batch has the shape (*layout.local_shape(rank), b), without elements. The
      lab then probes many basis vectors at once.
    - `is_identity`: the operator returns a copy of its argument, on every rank, and sends nothing, so that callers may skip
      it.
    - `symbol` is what the paper calls the operator; compositions print themselves with it.

    A rank that is inactive in the partition of a result returns a tensor without elements, or `None`.

    The lab checks two more forms if an operator has them. If `forward` and `adjoint` both have a
    keyword `out` with the default `None`, they overwrite and return `out`, row-major memory for the result (a tuple for
    several results); a rank that is inactive in the result's partition passes none. If there are `forward_`
    and `adjoint_`, and both spaces have the same layouts, these work in the memory of their arguments and return it.
    """

    comm: Communicator
    domain: Space
    codomain: Space
    gain: int | None = None
    fan_in: int | None = None
    rounding: float | None = None
    batched: bool = False
    is_identity: bool = False
    symbol: str = "F"

    @abstractmethod
    def forward(self, *x: Any) -> Result:
        """Return this rank's part of F x."""

    @abstractmethod
    def adjoint(self, *y: Any) -> Result:
        """Return this rank's part of F* y."""

    def specification(self) -> Program | tuple[Program, Program] | None:
        """Return the program that defines the operator, or `None` where there is none.

        Its inputs are the buffers of the domain and its outputs those of the codomain
        (:func:`adjointlab.core.program.buffers`). Its mechanical adjoint is the adjoint for the Euclidean pairing of all memory.
        The pairing of invariant spaces is another one, so an operator on such spaces returns the programs of both directions.
        """
        return None

    def drawing(self) -> Drawing:
        """Return the spaces and, if there is a specification, the programs as a drawing."""
        from adjointlab.pictures.programs import operator_drawing

        return operator_drawing(self)

    @AdjointProperty
    def H(self) -> LinearOperator:
        """The adjoint operator, from ``codomain.dual`` to ``domain.dual``."""
        return AdjointOperator(self)

    def __matmul__(self, other: LinearOperator) -> LinearOperator:
        return ProductOperator(self, other)

    def __add__(self, other: LinearOperator) -> LinearOperator:
        return SumOperator(self, other)

    def __sub__(self, other: LinearOperator) -> LinearOperator:
        return SumOperator(self, ScaledOperator(-1, other))

    def __mul__(self, scalar: complex) -> LinearOperator:
        return ScaledOperator(scalar, self)

    __rmul__ = __mul__

    def __neg__(self) -> LinearOperator:
        return ScaledOperator(-1, self)

    def __str__(self) -> str:
        return self.symbol

    def matrix(self, library: str = "numpy") -> NumpyArray:
        """Return the matrix <F e_i, f_j>, of shape (j, i), on every rank. Collective over `comm`.

        e_i runs over the basis of the domain, in arrays of `library`, and f_j over that of the codomain's dual. Costs one
        application for each basis vector of the domain, or for each batch of them.
        """
        forward, rank = partial(apply_forward, self), self.comm.Get_rank()
        linear_map = LinearMap(self.domain, self.codomain, forward, rank, library, self.batched)
        # Each rank contributes a term to each pairing (:func:`~adjointlab.core.bases.coordinates`).
        return sum_of_ranks(self.comm, linear_map.contributions(range(self.domain.dimension)))


class CompositeOperator(LinearOperator):
    """An operator made of others, its `parts`, which prints as an expression in their symbols.

    `combine` computes its bounds `gain` and `fan_in` from those of the parts; a bound is unknown if that of a part is. Its
    `rounding` is the sum of theirs. Raises `ValueError` if the parts' communicators have different numbers of ranks.
    """

    precedence: int = 3
    """The precedence of the printed expression: 3 for a factor, 2 for a product, 1 for a sum, 0 for a direct sum."""

    def __init__(
        self,
        domain: Space,
        codomain: Space,
        *parts: LinearOperator,
        combine: Callable[[Iterable[int]], int] = sum,
    ) -> None:
        self.comm, self.domain, self.codomain, self.parts = parts[0].comm, domain, codomain, parts
        if len(parts) > 1 and len(sizes := {size_of(part.comm) for part in parts}) > 1:
            raise ValueError(
                "operators that are composed are over the same ranks; these are over communicators of "
                f"{' and '.join(map(str, sorted(sizes)))} ranks"
            )
        self.batched = all(part.batched for part in parts)
        gains = [part.gain for part in parts if part.gain is not None]
        fan_ins = [part.fan_in for part in parts if part.fan_in is not None]
        self.gain = combine(gains) if len(gains) == len(parts) else None
        self.fan_in = combine(fan_ins) if len(fan_ins) == len(parts) else None
        self.rounding = sum(part.rounding or 0.0 for part in parts) or None

    @property
    def part(self) -> LinearOperator:
        """The only part of a composite that has one."""
        (part,) = self.parts
        return part


class AdaptedOperator(LinearOperator):
    """An operator whose directions are functions of user code.

    For code that torch differentiates, `without_graph` holds the indices of the outputs that had no graph in the last adjoint.
    """

    without_graph: frozenset[int] = frozenset()

    @abstractmethod
    def function(self, direction: Direction) -> Callable[..., Any]:
        """Return the function of a direction."""


def implementation(operator: LinearOperator, direction: Direction) -> Callable[..., Any]:
    """Return the function that a direction executes, by which reports name it."""
    if isinstance(operator, AdaptedOperator):
        return operator.function(direction)
    return cast("Callable[..., Any]", getattr(type(operator), direction))


def has_program(operator: LinearOperator) -> bool:
    """Return True if the class of an operator, or of each of its parts, defines it by a program, so that its coefficients are integers."""
    if isinstance(operator, CompositeOperator):
        return all(map(has_program, operator.parts))
    return type(operator).specification is not LinearOperator.specification


class AdjointOperator(CompositeOperator):
    """F*: forward and adjoint exchanged, on the dual spaces."""

    def __init__(self, operator: LinearOperator) -> None:
        super().__init__(operator.codomain.dual, operator.domain.dual, operator)

    def forward(self, *x: Array) -> Result:
        return self.part.adjoint(*x)

    def adjoint(self, *y: Array) -> Result:
        return self.part.forward(*y)

    def specification(self) -> Program | tuple[Program, Program] | None:
        inner = self.part.specification()
        if inner is None:
            return None
        return inner[::-1] if isinstance(inner, tuple) else inner.adjoint()

    def __str__(self) -> str:
        return f"{written(self.part, 3)}*"

    @AdjointProperty
    def H(self) -> LinearOperator:
        return self.part


class ProductOperator(CompositeOperator):
    """A B: first B, then A; (A B)* = B* A*. Raises `ValueError` where B's codomain is not A's domain.

    Its specification is B's program followed by A's, with A's buffers renamed.
    """

    precedence = 2

    def __init__(self, left: LinearOperator, right: LinearOperator) -> None:
        _require_fit("composed", ("domain", left.domain), ("codomain", right.codomain))
        self._names = {
            entering.name: leaving.name
            for entering, leaving in zip(left.domain.tensors, right.codomain.tensors, strict=True)
        }
        codomain = (replace(tensor, name=self._renamed(tensor.name)) for tensor in left.codomain.tensors)
        # Bounds multiply: B enlarges values at most by gain(B), and A enlarges those at most by gain(A).
        super().__init__(right.domain, Space(*codomain), left, right, combine=prod)

    def forward(self, *x: Array) -> Result:
        left, right = self.parts
        return left.forward(*as_tuple(_of_part(Direction.FORWARD, right, x)))

    def adjoint(self, *y: Array) -> Result:
        left, right = self.parts
        return right.adjoint(*as_tuple(_of_part(Direction.ADJOINT, left, y)))

    def specification(self) -> Program | tuple[Program, Program] | None:
        left, right = (part.specification() for part in self.parts)
        if left is None or right is None:
            return None
        if not isinstance(left, tuple) and not isinstance(right, tuple):
            return right.then(left.renamed(self._renamed))
        # One of the two has an adjoint that is not mechanical, so the product's is composed by hand, in the other order.
        (left_forward, left_adjoint), (right_forward, right_adjoint) = (
            both_directions(left),
            both_directions(right),
        )
        return (
            right_forward.then(left_forward.renamed(self._renamed)),
            left_adjoint.renamed(self._renamed).then(right_adjoint),
        )

    def _renamed(self, name: str) -> str:
        """Return the name that A's buffer `name` has in the product's programs."""
        # A's inputs have the names of B's outputs. All other buffers get one prime more than any of those names has, so that they
        # differ from B's buffers, even if B is a product whose buffers have primes already.
        if name in self._names:
            return self._names[name]
        primes = max((len(known) - len(known.rstrip("′")) for known in self._names.values()), default=0)
        return name + "′" * (primes + 1)

    def __str__(self) -> str:
        # Products associate: (A B) C and A (B C) both print as A B C.
        return " ".join(
            str(part) if isinstance(part, ProductOperator) else written(part, 3) for part in self.parts
        )

    @property
    def factors(self) -> tuple[LinearOperator, ...]:
        """The factors in the order in which the product is written: the last one to be applied comes first."""
        left, right = (part.factors if isinstance(part, ProductOperator) else (part,) for part in self.parts)
        return left + right


class SumOperator(CompositeOperator):
    """A + B. Raises `ValueError` where their spaces differ."""

    precedence = 1

    def __init__(self, left: LinearOperator, right: LinearOperator) -> None:
        _require_fit("added", ("domain", left.domain), ("domain", right.domain))
        _require_fit("added", ("codomain", left.codomain), ("codomain", right.codomain))
        super().__init__(left.domain, left.codomain, left, right)

    def forward(self, *x: Array) -> Result:
        return _for_each(_add, *(_of_part(Direction.FORWARD, part, x) for part in self.parts))

    def adjoint(self, *y: Array) -> Result:
        return _for_each(_add, *(_of_part(Direction.ADJOINT, part, y) for part in self.parts))

    def __str__(self) -> str:
        return " + ".join(written(part, 1) for part in self.parts)


class ScaledOperator(CompositeOperator):
    """c A, whose adjoint is conj(c) A*. Raises `ValueError` where c is not in the field of every tensor."""

    precedence = 2

    def __init__(self, scalar: complex, operator: LinearOperator) -> None:
        number = _number(scalar)
        for tensor in (*operator.domain.tensors, *operator.codomain.tensors):
            if isinstance(number, complex) and not tensor.element.is_complex:
                raise ValueError(f"scalar: {scalar} is complex, but the operator acts on the real {tensor}")
            if tensor.element.is_integer and not isinstance(number, int):
                raise ValueError(f"scalar: {scalar} is not an integer, but the operator acts on {tensor}")
        super().__init__(operator.domain, operator.codomain, operator)
        self.scalar = number
        # A fraction times an integer is not an integer in general, so that no gain can be promised.
        is_whole = not isinstance(number, complex) and float(number).is_integer()
        self.gain = max(1, int(abs(number))) * self.gain if is_whole and self.gain is not None else None
        self.fan_in = None if self.fan_in is None else self.fan_in + 1  # one rounding more

    def forward(self, *x: Array) -> Result:
        return _for_each(partial(arrays.scale, self.scalar), _of_part(Direction.FORWARD, self.part, x))

    def adjoint(self, *y: Array) -> Result:
        scale = partial(arrays.scale, self.scalar.conjugate())
        return _for_each(scale, _of_part(Direction.ADJOINT, self.part, y))

    def __str__(self) -> str:
        return f"{self.scalar} {written(self.part, 3)}"


def apply_forward(operator: LinearOperator, x: Sequence[A]) -> tuple[A, ...]:
    """Return F x as a tuple of local tensors. Raises :class:`NotInSpace` if the codomain does not hold them."""
    return _apply(Direction.FORWARD, operator, operator.domain, operator.codomain, x)


def apply_adjoint(operator: LinearOperator, y: Sequence[A]) -> tuple[A, ...]:
    """Return F* y as a tuple of local tensors. Raises :class:`NotInSpace` if ``domain.dual`` does not hold them."""
    return _apply(Direction.ADJOINT, operator, operator.codomain, operator.domain, y)


def _apply(
    direction: Direction, operator: LinearOperator, source: Space, target: Space, arguments: Sequence[A]
) -> tuple[A, ...]:
    rank = operator.comm.Get_rank()
    batch = _batch_of(source, arguments, rank)
    outputs = as_tuple((operator.forward if direction is Direction.FORWARD else operator.adjoint)(*arguments))
    # The communicators of the lab's worlds record where user code ends.
    if (note_return := getattr(operator.comm, "note_return", None)) is not None:
        note_return(implementation(operator, direction))
    return results_in(target, outputs, rank, arguments, direction, batch)


def _batch_of(source: Space, arguments: Sequence[Array], rank: int) -> tuple[int, ...]:
    """Return the batch shape of the arguments on `rank`, () if they are not batched."""
    # The operator rejects wrong arguments; here they only determine whether the result must be a batch. An argument whose order
    # is too low for a batch needs no look-up of library and layout.
    may_be_batch = bool(arguments) and getattr(arguments[0], "ndim", 0) > len(source.tensors[0].layout.shape)
    is_batch = may_be_batch and arrays.is_array(arguments[0])
    return batch_shape(source.tensors[0], arguments[0], rank) if is_batch else ()


def _of_part(direction: Direction, part: LinearOperator, arguments: Sequence[Array]) -> Result:
    """Apply a direction of a part; replace each `None` that an inactive rank returns by an empty array, for the next operation."""
    is_forward = direction is Direction.FORWARD
    returned = (part.forward if is_forward else part.adjoint)(*arguments)
    outputs = as_tuple(returned)
    if all(output is not None for output in outputs):
        return returned
    source, target = (part.domain, part.codomain) if is_forward else (part.codomain, part.domain)
    rank = part.comm.Get_rank()
    results = results_in(target, outputs, rank, arguments, direction, _batch_of(source, arguments, rank))
    return results if isinstance(returned, tuple | list) else results[0]


def results_in(
    target: Space,
    outputs: Sequence[A | None],
    rank: int,
    arguments: Sequence[A],
    what: str,
    batch: tuple[int, ...] = (),
) -> tuple[A, ...]:
    """Return the `outputs` of `what` for `arguments`, which may come in a `batch`, as elements of `target`.

    A worker that is not in a tensor's partition may return `None` for it. Raises :class:`NotInSpace` if they are not in `target`.
    """
    if len(outputs) != len(target.tensors):
        raise NotInSpace(
            f"{what} returned {counted(len(outputs), 'tensor')}, but the space has {len(target.tensors)}: {target}"
        )
    lacks_some = False
    for tensor, output in zip(target.tensors, outputs, strict=True):
        if arrays.matches(output, tensor.layout.local_shapes[rank] + batch, tensor.dtype):
            continue  # nearly always
        if output is None and not tensor.layout.partition.is_active(rank):
            lacks_some = True
        elif found := mismatch(tensor, output, rank, batch):
            raise NotInSpace(f"{what} returned {found}")
    if lacks_some:
        return _completed(outputs, target, rank, batch, arguments)
    return cast("tuple[A, ...]", tuple(outputs))


def _completed(
    outputs: Sequence[A | None], target: Space, rank: int, batch: tuple[int, ...], arguments: Sequence[A]
) -> tuple[A, ...]:
    """Replace each output that is `None` by a tensor without elements, in the memory of the arguments."""
    given = [array for array in (*arguments, *outputs) if array is not None]
    like = given[0] if given else cast(A, np.empty(0))
    return tuple(
        cast(A, arrays.empty(tensor.layout.local_shapes[rank] + batch, tensor.dtype, like))
        if output is None
        else output
        for tensor, output in zip(target.tensors, outputs, strict=True)
    )


def written(operator: LinearOperator, precedence: int) -> str:
    """Return `operator` as text in a larger expression, in parentheses if its precedence is lower than `precedence`."""
    return f"({operator})" if precedence_of(operator) < precedence else str(operator)


def precedence_of(operator: LinearOperator) -> int:
    """Return the precedence of the expression that `operator` prints as: :attr:`CompositeOperator.precedence`."""
    return operator.precedence if isinstance(operator, CompositeOperator) else 3


def both_directions(programs: Program | tuple[Program, Program]) -> tuple[Program, Program]:
    """Return the programs of forward and adjoint from a specification, which is one program or both."""
    return programs if isinstance(programs, tuple) else (programs, programs.adjoint())


def programs_of(operator: LinearOperator) -> tuple[Program, Program] | None:
    """Return the programs of forward and adjoint of an operator, `None` for one without a specification."""
    given = specification_of(operator)
    return None if given is None else both_directions(given)


def specification_of(operator: LinearOperator) -> Program | tuple[Program, Program] | None:
    """Return the specification of an operator; raise `TypeError` where that is neither a program, a pair of them nor `None`."""
    from adjointlab.core.program import Program

    given: Any = operator.specification()
    is_pair = (
        isinstance(given, tuple) and len(given) == 2 and all(isinstance(each, Program) for each in given)
    )
    if not (given is None or isinstance(given, Program) or is_pair):
        raise TypeError(
            f"specification: returned {described_type(given)}, and has to return a Program, or a tuple of two: of forward and of adjoint"
        )
    return cast("Program | tuple[Program, Program] | None", given)


def as_tuple(value: Any) -> tuple[Any, ...]:
    """Return what a function or module returned, one tensor or several, as a tuple."""
    # Not `tuple | list`, which would create a union type at each call.
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _for_each(function: Callable[..., Array], *values: Result) -> Result:
    """Apply `function` to each local tensor of the values; return an array if they are arrays, else a tuple."""
    results = tuple(map(function, *map(as_tuple, values)))
    return results if isinstance(values[0], tuple | list) else results[0]


def _add(x: Array, y: Array) -> Array:
    """Return x + y, or x if both have no elements: on an inactive rank their shapes may differ."""
    return x if 0 in x.shape and 0 in y.shape else arrays.add(x, y)


def _number(scalar: SupportsComplex) -> int | float | complex:
    """Return `scalar` as the narrowest Python number: unlike NumPy's scalars, it does not change an array's element type."""
    if isinstance(scalar, Integral):
        return int(scalar)
    if isinstance(scalar, Real):
        return float(scalar)
    number = complex(scalar)
    return number if number.imag else number.real


def _require_fit(verb: str, left: tuple[str, Space], right: tuple[str, Space]) -> None:
    (left_role, left_space), (right_role, right_space) = left, right
    if not left_space.fits(right_space):
        raise ValueError(
            f"operators cannot be {verb}: the left one's {left_role} is {_located(left_space)}, the right one's {right_role} "
            f"{_located(right_space)}"
        )


def _located(space: Space) -> str:
    return ", ".join(tensor.over_partition for tensor in space.tensors)
