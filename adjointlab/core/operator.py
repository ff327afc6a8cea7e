"""Linear operators between spaces: forward, adjoint, and their small algebra."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from adjointlab.core import arrays
from adjointlab.core.arguments import batch_shape
from adjointlab.core.space import Space

if TYPE_CHECKING:
    from adjointlab.core.program import Program

__all__ = [
    "AdjointOperator",
    "CompositeOperator",
    "LinearOperator",
    "NotInSpace",
    "ProductOperator",
    "apply_adjoint",
    "apply_forward",
    "basis_batch",
    "basis_vector",
    "contributions",
    "coordinates",
]

_BATCH = 2**20
"""The most elements that a batch of basis vectors, or of their images, has on all ranks together."""


class NotInSpace(ValueError):
    """An operator returned something that is no element of the space it declares."""


class LinearOperator(ABC):
    """A linear map from `domain` to `codomain`, executed by all ranks of `comm` together.

    Every rank makes its own instance from the same arguments. `forward` takes this rank's local tensor (one
    argument for each tensor of the domain) and returns the local tensor of the codomain (a tuple where it has
    several); `adjoint` maps ``codomain.dual`` to ``domain.dual``, with <Fx, y> = <x, F*y> [Hewett21, eq.
    1]. Neither writes into its arguments.

    `gain` bounds the largest absolute row sum of any intermediate, in both directions, in units of the last
    bit of the coefficients (an operator with half-integers declares twice its row sum). It sets the integers
    that rounding cannot touch. `fan_in` bounds the number of terms added up for any output. `None` means
    unknown.

    An operator that is `batched` takes local tensors with one trailing dimension more, a batch of arguments (of at least
    one, and on inactive ranks too: there of the shape (*layout.local_shape(rank), b), without elements), and returns the
    batch of results. The lab then probes many basis vectors at once.

    An operator that `is_identity` returns a copy of what it takes, on every rank, and sends nothing: what applies it may leave
    it out.

    Two more forms are conventions that the lab checks where an operator follows them. Where `forward` and `adjoint` both
    have a keyword `out` with the default `None`, that is row-major memory for the result, a tuple where there are
    several, which is filled, whatever it holds, and returned; a rank that is inactive in the result's partition passes
    none. Where there are `forward_` and `adjoint_`, and both spaces are laid out alike, these work in the memory of their
    arguments and return it.

    `symbol` is what the paper calls the operator; compositions print themselves with it.
    """

    comm: Any
    domain: Space
    codomain: Space
    gain: int | None = None
    fan_in: int | None = None
    batched: bool = False
    is_identity: bool = False
    symbol: str = "F"

    @abstractmethod
    def forward(self, *x: Any) -> Any:
        """F x, on this rank."""

    @abstractmethod
    def adjoint(self, *y: Any) -> Any:
        """F* y, on this rank."""

    def specification(self) -> Program | tuple[Program, Program] | None:
        """The program that defines the operator, or `None`.

        Its inputs are the buffers of the domain and its outputs those of the codomain
        (:func:`adjointlab.core.program.buffers`). Its adjoint is mechanical; an operator on invariant spaces,
        whose pairing is not the Euclidean one of all memory, returns both directions.
        """
        return None

    @property
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

    def __rmul__(self, scalar: complex) -> LinearOperator:
        return ScaledOperator(scalar, self)

    def __neg__(self) -> LinearOperator:
        return ScaledOperator(-1, self)

    def __str__(self) -> str:
        return self.symbol

    def matrix(self, library: str = "numpy") -> np.ndarray[Any, Any]:
        """Collective over `comm`: the matrix <F e_i, f_j>, of shape (j, i), on every rank.

        e_i runs over the basis of the domain, in arrays of `library`, and f_j over that of the codomain's
        dual. Costs one application for each basis vector of the domain, or for each batch of them.
        """
        contribution = contributions(
            self.domain,
            self.codomain,
            range(self.domain.dimension),
            lambda x: apply_forward(self, x),
            self.comm.Get_rank(),
            library,
            self.batched,
        )
        return np.asarray(sum(self.comm.allgather(contribution)))


class CompositeOperator(LinearOperator):
    """An operator made of others; it prints as the expression that it is."""


class AdjointOperator(CompositeOperator):
    """F*: forward and adjoint exchanged, on the dual spaces."""

    def __init__(self, operator: LinearOperator) -> None:
        self.operator = operator
        self.comm = operator.comm
        self.domain, self.codomain = operator.codomain.dual, operator.domain.dual
        self.gain, self.fan_in = operator.gain, operator.fan_in
        self.batched = operator.batched

    def forward(self, *x: Any) -> Any:
        return self.operator.adjoint(*x)

    def adjoint(self, *y: Any) -> Any:
        return self.operator.forward(*y)

    def specification(self) -> Program | tuple[Program, Program] | None:
        inner = self.operator.specification()
        if inner is None:
            return None
        return inner[::-1] if isinstance(inner, tuple) else inner.adjoint()

    def __str__(self) -> str:
        return f"{_factor(self.operator)}*"

    @property
    def H(self) -> LinearOperator:
        return self.operator


class ProductOperator(CompositeOperator):
    """A B: first B, then A; (A B)* = B* A*. Raises `ValueError` where B's codomain is not A's domain.

    Its specification is B's program followed by A's. A's buffers are renamed for it: those that it starts from are
    called as B leaves them, and new ones get as many primes as none of these has.
    """

    def __init__(self, left: LinearOperator, right: LinearOperator) -> None:
        _require(
            left.domain.fits(right.codomain), "domain", left.domain, "codomain", right.codomain, "composed"
        )
        self.left, self.right = left, right
        self.comm = right.comm
        self._names = {
            mine.name: theirs.name
            for mine, theirs in zip(left.domain.tensors, right.codomain.tensors, strict=True)
        }
        self.domain, self.codomain = right.domain, _renamed(left.codomain, self._name)
        self.batched = left.batched and right.batched
        self.gain = None if left.gain is None or right.gain is None else left.gain * right.gain
        self.fan_in = None if left.fan_in is None or right.fan_in is None else left.fan_in * right.fan_in

    def forward(self, *x: Any) -> Any:
        return self.left.forward(*_tuple(self.right.forward(*x)))

    def adjoint(self, *y: Any) -> Any:
        return self.right.adjoint(*_tuple(self.left.adjoint(*y)))

    def specification(self) -> Program | tuple[Program, Program] | None:
        left, right = self.left.specification(), self.right.specification()
        if left is None or right is None:
            return None
        if not isinstance(left, tuple) and not isinstance(right, tuple):
            return right.then(left.renamed(self._name))
        (forward, adjoint), (first, last) = _both(left), _both(right)
        return first.then(forward.renamed(self._name)), adjoint.renamed(self._name).then(last)

    def _name(self, name: str) -> str:
        """What A's buffer `name` is called in the product's programs."""
        if name in self._names:
            return self._names[name]
        taken = max((len(theirs) - len(theirs.rstrip("′")) for theirs in self._names.values()), default=0)
        return name + "′" * (taken + 1)

    def __str__(self) -> str:
        # Products associate, so that theirs need no parentheses.
        parts = (self.left, self.right)
        return " ".join(str(part) if isinstance(part, ProductOperator) else _factor(part) for part in parts)

    @property
    def factors(self) -> tuple[LinearOperator, ...]:
        """All that is applied, from the last to the first, as the product is written."""
        nested = [
            part.factors if isinstance(part, ProductOperator) else (part,) for part in (self.left, self.right)
        ]
        return nested[0] + nested[1]


class SumOperator(CompositeOperator):
    """A + B. Raises `ValueError` where their spaces differ."""

    def __init__(self, left: LinearOperator, right: LinearOperator) -> None:
        _require(left.domain.fits(right.domain), "domain", left.domain, "domain", right.domain, "added")
        _require(
            left.codomain.fits(right.codomain), "codomain", left.codomain, "codomain", right.codomain, "added"
        )
        self.left, self.right = left, right
        self.comm, self.domain, self.codomain = left.comm, left.domain, left.codomain
        self.batched = left.batched and right.batched
        self.gain = None if left.gain is None or right.gain is None else left.gain + right.gain
        self.fan_in = None if left.fan_in is None or right.fan_in is None else left.fan_in + right.fan_in

    def forward(self, *x: Any) -> Any:
        return _combine(self.left.forward(*x), self.right.forward(*x))

    def adjoint(self, *y: Any) -> Any:
        return _combine(self.left.adjoint(*y), self.right.adjoint(*y))

    def __str__(self) -> str:
        return f"{self.left} + {self.right}"


class ScaledOperator(CompositeOperator):
    """c A, whose adjoint is conj(c) A*. Raises `ValueError` where c is not in the field of every tensor."""

    def __init__(self, scalar: complex, operator: LinearOperator) -> None:
        number = _number(scalar)
        for tensor in (*operator.domain.tensors, *operator.codomain.tensors):
            if isinstance(number, complex) and not tensor.element.is_complex:
                raise ValueError(f"scalar: {scalar} is complex, but the operator acts on the real {tensor}")
            if tensor.element.is_integer and not isinstance(number, int):
                raise ValueError(f"scalar: {scalar} is no integer, but the operator acts on {tensor}")
        self.scalar, self.operator = number, operator
        self.comm, self.domain, self.codomain = operator.comm, operator.domain, operator.codomain
        whole = not isinstance(number, complex) and float(number).is_integer()
        self.gain = max(1, int(abs(number))) * operator.gain if whole and operator.gain is not None else None
        self.fan_in = None if operator.fan_in is None else operator.fan_in + 1
        self.batched = operator.batched

    def forward(self, *x: Any) -> Any:
        return _scale(self.scalar, self.operator.forward(*x))

    def adjoint(self, *y: Any) -> Any:
        return _scale(self.scalar.conjugate(), self.operator.adjoint(*y))

    def __str__(self) -> str:
        return f"{self.scalar} {_factor(self.operator)}"


def apply_forward(operator: LinearOperator, x: Sequence[Any]) -> tuple[Any, ...]:
    """F x as a tuple of local tensors. Raises :class:`NotInSpace` if the codomain does not hold them."""
    batch = _batch(operator.domain, x, operator.comm.Get_rank())
    return _declared("forward", operator.codomain, _tuple(operator.forward(*x)), operator.comm, batch)


def apply_adjoint(operator: LinearOperator, y: Sequence[Any]) -> tuple[Any, ...]:
    """F* y as a tuple of local tensors, checked against ``domain.dual``."""
    batch = _batch(operator.codomain, y, operator.comm.Get_rank())
    return _declared("adjoint", operator.domain, _tuple(operator.adjoint(*y)), operator.comm, batch)


def _batch(space: Space, local: Sequence[Any], rank: int) -> tuple[int, ...]:
    """() or (b,): the shape of the batch that the local tensors of an element of `space` come in."""
    if not local or not arrays.is_array(local[0]):
        return ()
    return batch_shape(space.tensors[0], local[0], rank)


def _declared(
    direction: str, space: Space, outputs: tuple[Any, ...], comm: Any, batch: tuple[int, ...]
) -> tuple[Any, ...]:
    rank = comm.Get_rank()
    if len(outputs) != len(space.tensors):
        raise NotInSpace(
            f"{direction} returned {len(outputs)} tensors, but the space has {len(space.tensors)}: {space}"
        )
    for tensor, output in zip(space.tensors, outputs, strict=True):
        if not arrays.is_array(output):
            raise NotInSpace(f"{direction} returned a {type(output).__name__} on rank {rank}, not an array")
        shape = tuple(output.shape)
        if not tensor.layout.partition.is_active(rank):
            if 0 not in shape:
                raise NotInSpace(
                    f"{direction} returned shape {shape} on rank {rank}, which is inactive in "
                    f"{tensor.layout.partition} and holds a zero-volume tensor"
                )
        elif shape != tensor.layout.local_shape(rank) + batch:
            raise NotInSpace(
                f"{direction} returned shape {shape} on rank {rank}, but the layout {tensor.layout} gives it "
                f"{tensor.layout.local_shape(rank)}" + (f" in a batch of {batch[0]}" if batch else "")
            )
        elif (name := str(output.dtype).removeprefix("torch.")) != tensor.dtype:
            raise NotInSpace(f"{direction} returned {name} on rank {rank}, but the space is {tensor.dtype}")
    return outputs


def basis_vector(space: Space, index: int, rank: int, library: str = "numpy") -> tuple[Any, ...]:
    """What `rank` holds of the basis vector e_index of `space`. Raises `ValueError` where there is none."""
    if not 0 <= index < space.dimension:
        raise ValueError(f"index: {index} is not in 0 ... {space.dimension - 1}, the basis of {space}")
    local = []
    for position, tensor in enumerate(space.tensors):
        zeros = arrays.zeros(tensor.layout.local_shape(rank), tensor.dtype, library)
        start = space.offset(position, rank)
        if start is not None and start <= index < start + tensor.layout.local_size(rank):
            shape = tensor.layout.local_shape(rank)
            zeros[tuple(int(i) for i in np.unravel_index(index - start, shape))] = 1
        local.append(zeros)
    return tuple(local)


def basis_batch(space: Space, indices: Sequence[int], rank: int, library: str = "numpy") -> tuple[Any, ...]:
    """What `rank` holds of the basis vectors e_i for i of `indices`, in a batch: local tensors of shape (..., b)."""
    local = []
    for position, tensor in enumerate(space.tensors):
        size, start = tensor.layout.local_size(rank), space.offset(position, rank)
        flat = np.zeros((size, len(indices)), dtype=np.int8)
        if start is not None:
            here = [(i - start, column) for column, i in enumerate(indices) if start <= i < start + size]
            flat[[row for row, _ in here], [column for _, column in here]] = 1
        shaped = flat.reshape(*tensor.layout.local_shape(rank), len(indices))
        local.append(arrays.from_numpy(shaped, tensor.dtype, library))
    return tuple(local)


def coordinates(
    space: Space, local: Sequence[Any], rank: int, batch: tuple[int, ...] = ()
) -> np.ndarray[Any, Any]:
    """What `rank` contributes to the pairings <v, f_j> of an element v of `space` with the basis of its dual.

    Summed over the ranks these are the coordinates of v: entries of varying and replicated tensors one by
    one, partial ones summed, invariant ones once. Of a batch (b,) of elements, b columns.
    """
    dual = space.dual
    result = np.zeros((dual.dimension, *batch), dtype=np.complex128 if space.is_complex else np.float64)
    for position, (tensor, array) in enumerate(zip(space.tensors, local, strict=True)):
        start, size = dual.offset(position, rank), tensor.layout.local_size(rank)
        if start is not None and size and tensor.is_counted(rank):
            result[start : start + size] += arrays.to_numpy(array).reshape(size, *batch)
    return result


def contributions(
    source: Space,
    target: Space,
    indices: Sequence[int],
    apply: Callable[[Sequence[Any]], Sequence[Any]],
    rank: int,
    library: str,
    batched: bool,
) -> np.ndarray[Any, Any]:
    """What `rank` contributes to the columns `indices` of the matrix of `apply`, a linear map between the spaces.

    Collective: `apply` is called once for each basis vector, or for each batch of them.
    """
    height = target.dual.dimension
    columns = [np.zeros((height, 0))]
    width = max(1, _BATCH // max(1, source.dimension, height)) if batched else 1
    for first in range(0, len(indices), width):
        chosen = indices[first : first + width]
        if batched:
            image = apply(basis_batch(source, chosen, rank, library))
            columns.append(coordinates(target, image, rank, (len(chosen),)))
        else:
            image = apply(basis_vector(source, chosen[0], rank, library))
            columns.append(coordinates(target, image, rank)[:, None])
    return np.concatenate(columns, axis=1)


def _factor(operator: LinearOperator) -> str:
    """`operator` as it stands in a product."""
    return (
        f"({operator})"
        if isinstance(operator, SumOperator | ProductOperator | ScaledOperator)
        else str(operator)
    )


def _both(programs: Program | tuple[Program, Program]) -> tuple[Program, Program]:
    return programs if isinstance(programs, tuple) else (programs, programs.adjoint())


def _renamed(space: Space, name: Callable[[str], str]) -> Space:
    return Space(*(replace(tensor, name=name(tensor.name)) for tensor in space.tensors))


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _combine(a: Any, b: Any) -> Any:
    sums = tuple(_add(x, y) for x, y in zip(_tuple(a), _tuple(b), strict=True))
    return sums if isinstance(a, tuple | list) else sums[0]


def _add(x: Any, y: Any) -> Any:
    """x + y; of two zero-volume tensors, which need not be alike on an inactive rank, the first."""
    return x if 0 in x.shape and 0 in y.shape else arrays.add(x, y)


def _scale(scalar: complex, value: Any) -> Any:
    scaled = tuple(arrays.scale(scalar, array) for array in _tuple(value))
    return scaled if isinstance(value, tuple | list) else scaled[0]


def _number(scalar: Any) -> int | float | complex:
    """`scalar` as the plainest of Python's numbers, which changes no array's element type."""
    if isinstance(scalar, Integral):
        return int(scalar)
    if isinstance(scalar, Real):
        return float(scalar)
    number = complex(scalar)
    return number if number.imag else number.real


def _require(holds: bool, left: str, a: Space, right: str, b: Space, verb: str) -> None:
    if not holds:
        raise ValueError(
            f"operators cannot be {verb}: the left one's {left} is {_located(a)}, the right one's {right} "
            f"{_located(b)}"
        )


def _located(space: Space) -> str:
    return ", ".join(f"{tensor} over {tensor.layout.partition}" for tensor in space.tensors)
