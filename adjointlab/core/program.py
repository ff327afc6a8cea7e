"""Programs: sequences of the four linear generators on regions of all workers' memory [Hewett21, section
2.1].

A program's adjoint is the reversed sequence of its generators' adjoints: mechanical, so right by construction
for the Euclidean pairing of all memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import EllipsisType
from typing import Any

import numpy as np

from adjointlab.core.layout import Window
from adjointlab.core.space import Space

__all__ = [
    "Add",
    "Allocate",
    "Buffer",
    "Clear",
    "Deallocate",
    "Generator",
    "GlobalMemory",
    "Program",
    "Region",
    "buffers",
    "copy",
    "copy_to_new",
    "move",
    "move_to_new",
]

GlobalMemory = Mapping[tuple[int, str], np.ndarray[Any, Any]]
"""One global memory: the buffers of all ranks, by (rank, name)."""


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
        for entry, side in zip(keys, self.shape, strict=True):
            if not isinstance(entry, slice):
                raise ValueError(f"key: {entry} in dimension {len(slices)} of {self} is not a slice")
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
    """An addressed piece of memory: a rank, a buffer's name, and an interval in each dimension."""

    rank: int
    buffer: str
    slices: tuple[Window, ...]

    @property
    def key(self) -> tuple[int, str]:
        """The buffer's place in a global memory."""
        return self.rank, self.buffer

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in self.slices)

    @property
    def index(self) -> tuple[slice | EllipsisType, ...]:
        """The region as an index of its buffer, which gives a view also in a buffer of order 0, and of a batch."""
        return (*(slice(start, stop) for start, stop in self.slices), ...)

    def overlaps(self, other: Region) -> bool:
        """Whether the two share an element."""
        return self.key == other.key and all(
            max(a[0], b[0]) < min(a[1], b[1]) for a, b in zip(self.slices, other.slices, strict=True)
        )

    def __str__(self) -> str:
        place = ", ".join(f"{start}:{stop}" for start, stop in self.slices)
        return f"{self.buffer}@{self.rank}" + (f"[{place}]" if place else "")


@dataclass(frozen=True)
class Allocate:
    """A_b: brings a whole new buffer into scope, zero (eq. 3)."""

    buffer: Buffer

    @property
    def adjoint(self) -> Deallocate:
        """A_b* = D_b (eq. 5)."""
        return Deallocate(self.buffer)

    def __str__(self) -> str:
        return f"A({self.buffer})"


@dataclass(frozen=True)
class Deallocate:
    """D_b: takes a buffer out of scope."""

    buffer: Buffer

    @property
    def adjoint(self) -> Allocate:
        """D_b* = A_b."""
        return Allocate(self.buffer)

    def __str__(self) -> str:
        return f"D({self.buffer})"


@dataclass(frozen=True)
class Clear:
    """K_b: b <- 0 (eq. 6)."""

    region: Region

    @property
    def adjoint(self) -> Clear:
        """K_b* = K_b."""
        return self

    def __str__(self) -> str:
        return f"K({self.region})"


@dataclass(frozen=True)
class Add:
    """S_{a->b}: b <- b + a, for disjoint a and b (eq. 7). Between ranks: a send and a receive-and-add."""

    source: Region
    target: Region

    @property
    def adjoint(self) -> Add:
        """S_{a->b}* = S_{b->a} (eq. 8)."""
        return Add(self.target, self.source)

    def __str__(self) -> str:
        return f"S({self.source} → {self.target})"


Generator = Allocate | Deallocate | Clear | Add


def copy(source: Region, target: Region) -> tuple[Generator, ...]:
    """C_{a->b} = S_{a->b} K_b, in place (eq. 9)."""
    return Clear(target), Add(source, target)


def copy_to_new(source: Region, target: Buffer) -> tuple[Generator, ...]:
    """C_{a->b} = S_{a->b} A_b, out of place (eq. 11)."""
    return Allocate(target), Add(source, target.whole)


def move(source: Region, target: Region) -> tuple[Generator, ...]:
    """M_{a->b} = K_a S_{a->b} K_b, in place (eq. 12)."""
    return Clear(target), Add(source, target), Clear(source)


def move_to_new(source: Buffer, target: Buffer) -> tuple[Generator, ...]:
    """M_{a->b} = D_a S_{a->b} A_b, out of place (eq. 14)."""
    return Allocate(target), Add(source.whole, target.whole), Deallocate(source)


@dataclass(frozen=True)
class Program:
    """Generators in the order of their execution, from the buffers in scope at the start.

    Raises `ValueError` for a buffer that is in scope twice or unknown, a region outside its buffer, and an
    Add whose regions overlap or differ in shape or element type.
    """

    inputs: tuple[Buffer, ...]
    steps: tuple[Generator, ...]

    def __init__(self, inputs: Iterable[Buffer], steps: Iterable[Generator]) -> None:
        object.__setattr__(self, "inputs", tuple(sorted(inputs)))
        object.__setattr__(self, "steps", tuple(steps))
        self.outputs  # noqa: B018  walks the steps, and so validates them

    @cached_property
    def outputs(self) -> tuple[Buffer, ...]:
        """The buffers in scope at the end, by rank and name."""
        scope: dict[tuple[int, str], Buffer] = {}
        for buffer in self.inputs:
            _enter(scope, buffer, "inputs")
        for position, step in enumerate(self.steps):
            place = f"step {position}, {step}"
            match step:
                case Allocate(buffer):
                    _enter(scope, buffer, place)
                case Deallocate(buffer):
                    known = scope.pop((buffer.rank, buffer.name), None)
                    if known != buffer:
                        raise ValueError(
                            f"{place}: there is no buffer {buffer} {buffer.shape} in scope, but {known}"
                        )
                case Clear(region):
                    _inside(scope, region, place)
                case Add(source, target):
                    names = [_inside(scope, region, place).dtype for region in (source, target)]
                    if names[0] != names[1]:
                        raise ValueError(f"{place}: the buffers have the element types {' and '.join(names)}")
                    if source.shape != target.shape:
                        raise ValueError(
                            f"{place}: the regions have shapes {source.shape} and {target.shape}"
                        )
                    if source.overlaps(target):
                        raise ValueError(f"{place}: the regions overlap; Add needs disjoint ones")
        return tuple(sorted(scope.values()))

    def adjoint(self) -> Program:
        """The adjoints of the generators in reversed order."""
        return Program(self.outputs, (step.adjoint for step in reversed(self.steps)))

    def then(self, other: Program) -> Program:
        """This program followed by `other`, which must start from this one's outputs."""
        if other.inputs != self.outputs:
            raise ValueError(
                f"other: starts from {[str(b) for b in other.inputs]}, but this program ends with "
                f"{[str(b) for b in self.outputs]}"
            )
        return Program(self.inputs, self.steps + other.steps)

    def renamed(self, name: Callable[[str], str]) -> Program:
        """The same program with its buffers called ``name(old name)``."""
        return Program(
            (replace(buffer, name=name(buffer.name)) for buffer in self.inputs),
            (_renamed(step, name) for step in self.steps),
        )

    def execute(
        self, memory: GlobalMemory, batch: tuple[int, ...] = ()
    ) -> dict[tuple[int, str], np.ndarray[Any, Any]]:
        """Run over one global memory, which is not changed. Returns the buffers in scope at the end.

        Over a batch (b,) of memories every buffer has a trailing dimension b. Raises `ValueError` where an input is
        missing or has another shape.
        """
        scope = {}
        for buffer in self.inputs:
            held = memory.get((buffer.rank, buffer.name))
            if held is None or held.shape != buffer.shape + batch:
                found = "is missing" if held is None else f"has shape {held.shape}"
                raise ValueError(f"memory: the input {buffer} of shape {buffer.shape} {found}")
            scope[buffer.rank, buffer.name] = np.array(held)
        for step in self.steps:
            _apply(step, scope, batch=batch)
        return scope

    def matrix(self) -> np.ndarray[Any, Any]:
        """The matrix of shape (elements of the outputs, elements of the inputs), buffers in their order,
        row-major.
        """
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
        """The largest absolute row sum over all intermediates, forward and adjoint, at least 1.

        No generator has a negative coefficient, so it is the largest value that ones become on the way.
        """
        return max(_largest(self), _largest(self.adjoint()))

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))


def buffers(space: Space) -> tuple[Buffer, ...]:
    """The buffers that hold a space's local tensors: one for each active rank, named like the tensor."""
    return tuple(
        sorted(
            Buffer(rank, tensor.name, tensor.layout.local_shape(rank), tensor.dtype)
            for tensor in space.tensors
            for rank in tensor.layout.partition.ranks
        )
    )


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


def _enter(scope: dict[tuple[int, str], Buffer], buffer: Buffer, place: str) -> None:
    if (buffer.rank, buffer.name) in scope:
        raise ValueError(f"{place}: the buffer {buffer} is in scope already")
    scope[buffer.rank, buffer.name] = buffer


def _inside(scope: Mapping[tuple[int, str], Buffer], region: Region, place: str) -> Buffer:
    buffer = scope.get(region.key)
    if buffer is None:
        raise ValueError(f"{place}: there is no buffer {region.buffer}@{region.rank} in scope")
    if len(region.slices) != len(buffer.shape) or any(
        not 0 <= start <= stop <= side
        for (start, stop), side in zip(region.slices, buffer.shape, strict=True)
    ):
        raise ValueError(f"{place}: the region {region} is not inside its buffer of shape {buffer.shape}")
    return buffer


def _apply(
    step: Generator,
    scope: dict[tuple[int, str], np.ndarray[Any, Any]],
    dtype: str | None = None,
    batch: tuple[int, ...] = (),
) -> None:
    """Execute one generator in a memory; `dtype` is that of all new buffers, whatever their own."""
    match step:
        case Allocate(buffer):
            shape = buffer.shape + batch
            scope[buffer.rank, buffer.name] = np.zeros(shape, dtype=dtype or _stored(buffer.dtype))
        case Deallocate(buffer):
            del scope[buffer.rank, buffer.name]
        case Clear(region):
            scope[region.key][region.index] = 0
        case Add(source, target):
            scope[target.key][target.index] += scope[source.key][source.index]


def _largest(program: Program) -> int:
    scope = {(buffer.rank, buffer.name): np.ones(buffer.shape) for buffer in program.inputs}
    largest = 1.0
    for step in program.steps:
        _apply(step, scope, "float64")
        if isinstance(step, Add):
            largest = max(largest, np.max(scope[step.target.key][step.target.index], initial=0.0))
    return int(largest)


def _stored(dtype: str) -> str:
    return "float32" if dtype == "bfloat16" else dtype
