"""Programs: sequences of the four linear generators on regions of all workers' memory [Hewett21, section 2.1].

A program's adjoint is the reversed sequence of its generators' adjoints: mechanical, so right by construction for the
Euclidean pairing of all memory. A broadcast of x on rank 0 to ranks 0 and 1, and its adjoint, which sums::

    step             adjoint, read upwards
    A(y@0)           D(y@0)
    A(y@1)           D(y@1)
    S(x@0 → y@0)     S(y@0 → x@0)
    S(x@0 → y@1)     S(y@1 → x@0)
    D(x@0)           A(x@0)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from operator import attrgetter
from operator import index as integer
from types import EllipsisType
from typing import TYPE_CHECKING

import numpy as np

from adjointlab.core.arrays import DTYPES
from adjointlab.core.layout import Layout, Window
from adjointlab.core.partition import entries, whole_number
from adjointlab.core.space import Space
from adjointlab.pictures.drawable import Drawable
from adjointlab.typing import NumpyArray

if TYPE_CHECKING:
    from adjointlab.pictures.model import Drawing

__all__ = [
    "Add", "Allocate", "Buffer", "Clear", "Deallocate", "Generator", "GlobalMemory", "Program", "Region",
    "buffers", "buffers_by_rank", "copy", "copy_to_new", "move", "move_to_new",
]  # fmt: skip

GlobalMemory = Mapping[tuple[int, str], NumpyArray]
"""The buffers of all ranks, by (rank, name)."""


@dataclass(frozen=True, order=True)
class Buffer:
    """A named piece of one rank's memory. ``buffer[2:5, :]`` is a region of it."""

    rank: int
    name: str
    shape: tuple[int, ...]
    dtype: str = "float64"

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __getitem__(self, key: slice | tuple[slice, ...]) -> Region:
        keys = key if isinstance(key, tuple) else (key,)
        if len(keys) > len(self.shape):
            raise ValueError(f"key: {len(keys)} slices of {self}, which has {len(self.shape)} dimensions")
        keys += (slice(None),) * (len(self.shape) - len(keys))
        slices = []
        for dim, (entry, side) in enumerate(zip(keys, self.shape, strict=True)):
            if not isinstance(entry, slice):
                raise ValueError(f"key: {entry} in dimension {dim} of {self} is not a slice")
            start, stop, step = entry.indices(side)
            if step != 1:
                raise ValueError(f"key: a region has step 1, not {step}")
            slices.append((start, max(start, stop)))
        return Region(self.rank, self.name, tuple(slices))

    @property
    def whole(self) -> Region:
        """The region that is all of the buffer."""
        return Region(self.rank, self.name, tuple((0, side) for side in self.shape))

    def __str__(self) -> str:
        return f"{self.name}@{self.rank}"


@dataclass(frozen=True)
class Region:
    """An interval in each dimension of one rank's buffer. Raises `TypeError` for a rank or a bound that is not an integer."""

    rank: int
    buffer: str
    slices: tuple[Window, ...]

    def __post_init__(self) -> None:
        whole_number("rank", self.rank)
        try:
            for start, stop in self.slices:
                integer(start), integer(stop)
        except (TypeError, ValueError):
            raise TypeError(
                f"slices: {self.slices!r} is not a (start, stop) for each dimension of the buffer"
            ) from None

    @property
    def key(self) -> tuple[int, str]:
        """The key of the buffer in a global memory."""
        return self.rank, self.buffer

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in self.slices)

    @property
    def index(self) -> tuple[slice | EllipsisType, ...]:
        """The region as an index of its buffer, which gives a view."""
        # The ellipsis keeps a batch dimension, and gives a view of a buffer of order 0, where () would give a scalar.
        return (*(slice(start, stop) for start, stop in self.slices), ...)

    def overlaps(self, other: Region) -> bool:
        """Return True if the two share an element."""
        return self.key == other.key and all(
            max(a[0], b[0]) < min(a[1], b[1]) for a, b in zip(self.slices, other.slices, strict=True)
        )

    def __str__(self) -> str:
        intervals = ", ".join(f"{start}:{stop}" for start, stop in self.slices)
        return f"{self.buffer}@{self.rank}" + (f"[{intervals}]" if intervals else "")


@dataclass(frozen=True)
class Allocate:
    """A_b: brings a whole new buffer into scope, zero [Hewett21, eq. 3]."""

    buffer: Buffer

    @property
    def adjoint(self) -> Deallocate:
        """A_b* = D_b [Hewett21, eq. 5]."""
        return Deallocate(self.buffer)

    def __str__(self) -> str:
        return f"A({self.buffer})"


@dataclass(frozen=True)
class Deallocate:
    """D_b: takes a buffer out of scope, whatever it holds."""

    buffer: Buffer

    @property
    def adjoint(self) -> Allocate:
        """D_b* = A_b."""
        return Allocate(self.buffer)

    def __str__(self) -> str:
        return f"D({self.buffer})"


@dataclass(frozen=True)
class Clear:
    """K_b: b <- 0 [Hewett21, eq. 6]."""

    region: Region

    @property
    def adjoint(self) -> Clear:
        """K_b* = K_b."""
        return self

    def __str__(self) -> str:
        return f"K({self.region})"


@dataclass(frozen=True)
class Add:
    """S_{a->b}: b <- b + a, for disjoint a and b [Hewett21, eq. 7]. Between ranks: a send and a receive-and-add."""

    source: Region
    target: Region

    @property
    def adjoint(self) -> Add:
        """S_{a->b}* = S_{b->a} [Hewett21, eq. 8]."""
        return Add(self.target, self.source)

    def __str__(self) -> str:
        return f"S({self.source} → {self.target})"


Generator = Allocate | Deallocate | Clear | Add


def copy(source: Region, target: Region) -> tuple[Generator, ...]:
    """C_{a->b} = S_{a->b} K_b, in place [Hewett21, eq. 9]."""
    return Clear(target), Add(source, target)


def copy_to_new(source: Region, target: Buffer) -> tuple[Generator, ...]:
    """C_{a->b} = S_{a->b} A_b, out of place [Hewett21, eq. 11]."""
    return Allocate(target), Add(source, target.whole)


def move(source: Region, target: Region) -> tuple[Generator, ...]:
    """M_{a->b} = K_a S_{a->b} K_b, in place [Hewett21, eq. 12]."""
    return Clear(target), Add(source, target), Clear(source)


def move_to_new(source: Buffer, target: Buffer) -> tuple[Generator, ...]:
    """M_{a->b} = D_a S_{a->b} A_b, out of place [Hewett21, eq. 14]."""
    return Allocate(target), Add(source.whole, target.whole), Deallocate(source)


@dataclass(frozen=True)
class Program(Drawable):
    """Generators in the order of their execution, from the buffers in scope at the start.

    Raises `ValueError` for a buffer that is in scope twice or unknown, a region outside its buffer, a step that is not a generator, and an
    Add whose regions overlap or differ in shape or element type; `TypeError` for inputs that are not buffers.
    """

    inputs: tuple[Buffer, ...]
    steps: tuple[Generator, ...]

    def __init__(self, inputs: Iterable[Buffer], steps: Iterable[Generator]) -> None:
        buffers: tuple[object, ...] = entries("inputs", inputs, "buffers")
        if wrong := [each for each in buffers if not isinstance(each, Buffer)]:
            raise TypeError(f"inputs: {wrong[0]!r} is not a Buffer")
        object.__setattr__(self, "inputs", tuple(sorted(buffers)))
        object.__setattr__(self, "steps", entries("steps", steps, "generators"))
        self.outputs  # noqa: B018  walks the steps, and so validates them

    @cached_property
    def outputs(self) -> tuple[Buffer, ...]:
        """The buffers in scope at the end, by rank and name."""
        scope: dict[tuple[int, str], Buffer] = {}
        for buffer in self.inputs:
            if problem := _entered(scope, buffer):
                raise ValueError(f"inputs: {problem}")
        for position, step in enumerate(self.steps):
            # The text of a step is made only for the error: that takes longer than the check.
            if problem := _taken(step, scope):
                raise ValueError(f"step {position}, {step}: {problem}")
        return tuple(sorted(scope.values(), key=attrgetter("rank", "name")))

    def adjoint(self) -> Program:
        """Return the adjoints of the generators in reversed order."""
        # Needs no validation: if a step leads from one scope to another, its adjoint leads back.
        reversed_program = object.__new__(Program)
        vars(reversed_program).update(
            inputs=self.outputs,
            steps=tuple(step.adjoint for step in reversed(self.steps)),
            outputs=self.inputs,
        )
        return reversed_program

    def then(self, other: Program) -> Program:
        """Return this program followed by `other`, which must start from this one's outputs."""
        if other.inputs != self.outputs:
            raise ValueError(
                f"other: starts from {[str(b) for b in other.inputs]}, but this program ends with "
                f"{[str(b) for b in self.outputs]}"
            )
        return Program(self.inputs, self.steps + other.steps)

    def renamed(self, name: Callable[[str], str]) -> Program:
        """Return the same program with its buffers called ``name(old name)``."""
        return Program(
            (replace(buffer, name=name(buffer.name)) for buffer in self.inputs),
            (_renamed(step, name) for step in self.steps),
        )

    def execute(self, memory: GlobalMemory, batch: tuple[int, ...] = ()) -> dict[tuple[int, str], NumpyArray]:
        """Run over one global memory, which is not changed, and return the buffers in scope at the end.

        Over a batch (b,) of memories every buffer has a trailing dimension b. Raises `ValueError` where an input is missing or
        has another shape.
        """
        scope = {}
        for buffer in self.inputs:
            values = memory.get((buffer.rank, buffer.name))
            if values is None or values.shape != buffer.shape + batch:
                found = "is missing" if values is None else f"has shape {values.shape}"
                raise ValueError(f"memory: the input {buffer} of shape {buffer.shape} {found}")
            scope[buffer.rank, buffer.name] = np.array(values)
        for step in self.steps:
            _apply(step, scope, batch=batch)
        return scope

    def matrix(self) -> NumpyArray:
        """Return the matrix of shape (elements of the outputs, elements of the inputs), buffers in their order, row-major."""
        # The program runs once, on the batch of all basis vectors.
        width = sum(buffer.size for buffer in self.inputs)
        scope, start = {}, 0
        for buffer in self.inputs:
            columns = np.zeros((buffer.size, width))
            columns[:, start : start + buffer.size] = np.eye(buffer.size)
            scope[buffer.rank, buffer.name] = columns.reshape(*buffer.shape, width)
            start += buffer.size
        for step in self.steps:
            _apply(step, scope, "float64", (width,))
        rows = [scope[buffer.rank, buffer.name].reshape(buffer.size, width) for buffer in self.outputs]
        return np.concatenate([np.zeros((0, width)), *rows])

    def gain(self) -> int:
        """Return the largest absolute row sum over all intermediates, forward and adjoint, at least 1.

        No generator has a negative coefficient, so it is the largest value that occurs if all inputs are 1.
        """
        return max(_largest(self), _largest(self.adjoint()))

    @property
    def movements(self) -> tuple[tuple[int | None, int, str], ...]:
        """For each step: the rank that sends (`None` for a local step), the rank that has the result, and the step's text."""
        return tuple(_movement(step) for step in self.steps)

    def drawing(self) -> Drawing:
        """Return the program as a sequence diagram."""
        from adjointlab.pictures.programs import program_drawing

        return program_drawing(self)

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))


def buffers(space: Space) -> tuple[Buffer, ...]:
    """Return the buffers that hold a space's local tensors: one for each active rank, named like the tensor."""
    return _buffers(tuple((tensor.name, tensor.layout, tensor.dtype) for tensor in space.tensors))


# Called for each space by the specification, and again by the check that compares the operator with it.
@lru_cache(maxsize=64)
def _buffers(tensors: tuple[tuple[str, Layout, str], ...]) -> tuple[Buffer, ...]:
    # Sorted as a program sorts its inputs and outputs, so that the two can be compared as tuples.
    return tuple(
        sorted(
            Buffer(rank, name, layout.local_shape(rank), dtype)
            for name, layout, dtype in tensors
            for rank in layout.partition.ranks
        )
    )


def buffers_by_rank(space: Space) -> dict[int, Buffer]:
    """Return the buffers of a space of one tensor by their ranks, in ascending order."""
    return {buffer.rank: buffer for buffer in buffers(space)}


def _renamed(step: Generator, name: Callable[[str], str]) -> Generator:
    match step:
        case Allocate(buffer) | Deallocate(buffer):
            return type(step)(replace(buffer, name=name(buffer.name)))
        case Clear(region):
            return Clear(replace(region, buffer=name(region.buffer)))
        case Add(source, target):
            return Add(
                replace(source, buffer=name(source.buffer)), replace(target, buffer=name(target.buffer))
            )


def _movement(step: Generator) -> tuple[int | None, int, str]:
    match step:
        case Allocate(buffer) | Deallocate(buffer):
            return None, buffer.rank, str(step)
        case Clear(region):
            return None, region.rank, str(step)
        case Add(source, target):
            return source.rank if source.rank != target.rank else None, target.rank, str(step)


def _taken(step: object, scope: dict[tuple[int, str], Buffer]) -> str:
    """Allocate or deallocate in `scope` as a step does; return what is wrong with the step, "" for a valid one."""
    match step:
        case Allocate(buffer):
            return _entered(scope, buffer)
        case Deallocate(buffer):
            # Shape and type must agree too: the adjoint of the step allocates the buffer again.
            known = scope.pop((buffer.rank, buffer.name), None)
            return (
                "" if known == buffer else f"there is no buffer {buffer} {buffer.shape} in scope, but {known}"
            )
        case Clear(region):
            return _not_in_scope(region, scope)
        case Add(source, target):
            return (
                _not_in_scope(source, scope) or _not_in_scope(target, scope) or _unlike(source, target, scope)
            )
        case _:  # as user code may give anything
            return "it is not an Allocate, Deallocate, Clear or Add; what copy and move return is several, to be unpacked by *"


def _entered(scope: dict[tuple[int, str], Buffer], buffer: Buffer) -> str:
    key = buffer.rank, buffer.name
    if key in scope:
        return f"the buffer {buffer} is in scope already"
    scope[key] = buffer
    return ""


def _not_in_scope(region: Region, scope: Mapping[tuple[int, str], Buffer]) -> str:
    """Return the reason why a region is not part of a buffer in scope, "" if it is."""
    buffer = scope.get(region.key)
    if buffer is None:
        return f"there is no buffer {region.buffer}@{region.rank} in scope"
    if len(region.slices) != len(buffer.shape) or not all(
        0 <= start <= stop <= side for (start, stop), side in zip(region.slices, buffer.shape, strict=True)
    ):
        return f"the region {region} is not inside its buffer of shape {buffer.shape}"
    return ""


def _unlike(source: Region, target: Region, scope: Mapping[tuple[int, str], Buffer]) -> str:
    """Return the reason why one region cannot be added to another, "" if it can."""
    types = [scope[region.key].dtype for region in (source, target)]
    if types[0] != types[1]:
        return f"the buffers have the element types {' and '.join(types)}"
    if source.shape != target.shape:
        return f"the regions have shapes {source.shape} and {target.shape}"
    # The result would depend on the order in which the elements are added.
    return "the regions overlap; Add needs disjoint ones" if source.overlaps(target) else ""


def _apply(
    step: Generator,
    scope: dict[tuple[int, str], NumpyArray],
    dtype: str | None = None,
    batch: tuple[int, ...] = (),
) -> None:
    """Execute one generator in a memory; new buffers are of type `dtype` if that is given, else of their own."""
    match step:
        case Allocate(buffer):
            shape = buffer.shape + batch
            scope[buffer.rank, buffer.name] = np.zeros(shape, dtype=dtype or DTYPES[buffer.dtype].in_numpy)
        case Deallocate(buffer):
            del scope[buffer.rank, buffer.name]
        case Clear(region):
            scope[region.key][region.index] = 0
        case Add(source, target):
            scope[target.key][target.index] += scope[source.key][source.index]


def _largest(program: Program) -> int:
    """Return the largest value that occurs if all inputs are 1."""
    scope = {(buffer.rank, buffer.name): np.ones(buffer.shape) for buffer in program.inputs}
    largest = 1.0
    for step in program.steps:
        _apply(step, scope, "float64")
        # After each Add, not only at the end: an intermediate that is cleared or deallocated later may be rounded too.
        if isinstance(step, Add):
            largest = np.max(scope[step.target.key][step.target.index], initial=largest)
    return int(largest)
