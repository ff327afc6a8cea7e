"""Operators in the notation of [Hewett21]: their spaces, and their programs as compositions of generators.

A composition is read from right to left, B = D_a S_{a→2} S_{a→1} S_{a→0} A_2 A_1 A_0, as operators apply; the steps
below it stand in the order of their execution.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count

from adjointlab.core.operator import CompositeOperator, LinearOperator, ProductOperator
from adjointlab.core.program import Add, Allocate, Buffer, Clear, Deallocate, Generator, Program, Region
from adjointlab.core.space import Space

__all__ = ["composition", "explain"]

_WIDTH = 100


def explain(operator: LinearOperator) -> str:
    """What `operator` is: its spaces, and the programs of forward and adjoint in the paper's notation.

    Meant for a small case. A composition is explained by its factors and by the one program that they make. An
    operator without a specification is explained by its spaces alone.
    """
    lines = [str(operator) if isinstance(operator, CompositeOperator) else type(operator).__name__]
    lines += [f"  from  {entry}" for entry in _tensors(operator.domain)]
    lines += [f"  to    {entry}" for entry in _tensors(operator.codomain)]
    lines += [f"  {line}" for line in getattr(operator, "notation", tuple)()]
    if isinstance(operator, ProductOperator):
        lines += ["", "Factors, in the order in which they apply", *_factors_of(operator)]
    given = operator.specification()
    if given is None:
        return "\n".join([*lines, "", "It has no specification: no program says what it does."])
    forward, adjoint = given if isinstance(given, tuple) else (given, given.adjoint())
    names = _Names.of(forward, adjoint)
    lines += ["", "Buffers", *(f"  {line}" for line in names.legend())]
    lines += ["", "Forward", *_described(str(operator), forward, names)]
    lines += ["", "Adjoint", *_described(str(operator.H), adjoint, names)]
    return "\n".join(lines)


def composition(program: Program) -> str:
    """The program as one product of generators, right to left; I where it has none."""
    return " ".join(_factors(program, _Names.of(program)))


@dataclass(frozen=True)
class _Names:
    """What the buffers of some programs are called: by rank and name, a number or a letter."""

    labels: dict[tuple[int, str], str]
    shapes: dict[tuple[int, str], tuple[int, ...]]

    @classmethod
    def of(cls, *programs: Program) -> _Names:
        """Numbers for the name that most workers hold, which are their ranks; letters for all other buffers."""
        shapes = {(buffer.rank, buffer.name): buffer.shape for buffer in _buffers(programs)}
        ranks: dict[str, list[int]] = {}
        for rank, name in sorted(shapes):
            ranks.setdefault(name, []).append(rank)
        most = max(reversed(ranks), key=lambda name: len(ranks[name]), default="")
        letters = _letters()
        labels = {
            (rank, name): str(rank) if name == most and len(ranks[most]) > 1 else next(letters)
            for name in dict.fromkeys(name for _, name in shapes)
            for rank in ranks[name]
        }
        return cls(labels, shapes)

    def buffer(self, buffer: Buffer) -> str:
        return self.labels[buffer.rank, buffer.name]

    def region(self, region: Region) -> str:
        """The buffer's label, and the interval in each dimension where the region is a part of it."""
        whole = tuple((0, side) for side in self.shapes[region.key])
        place = ", ".join(f"{start}:{stop}" for start, stop in region.slices)
        return self.labels[region.key] + (f"[{place}]" if region.slices != whole else "")

    def legend(self) -> Iterator[str]:
        numbers = [label for label in self.labels.values() if label.isdigit()]
        for (rank, name), label in self.labels.items():
            if not label.isdigit():
                yield f"{label}: {name} on rank {rank}"
            elif label == numbers[0]:
                yield f"{', '.join(numbers)}: {name} on the rank of that number"


def _factors_of(product: ProductOperator) -> Iterator[str]:
    for place, factor in enumerate(reversed(product.factors), start=1):
        source, target = (
            ", ".join(f"{tensor} over {tensor.layout.partition}" for tensor in space.tensors)
            for space in (factor.domain, factor.codomain)
        )
        name = "" if isinstance(factor, CompositeOperator) else f", {type(factor).__name__}"
        yield f"  {place:>3}. {factor}{name}: {source} → {target}"


def _described(symbol: str, program: Program, names: _Names) -> Iterator[str]:
    """The composition, then the steps."""
    line = f"  {symbol} ="
    margin = " " * len(line)
    for factor in _factors(program, names):
        if len(line) + 1 + len(factor) > _WIDTH:
            yield line
            line = margin
        line += f" {factor}"
    yield line
    terms = [_term(step, names) for step in program.steps]
    width = max(map(len, terms), default=0)
    for place, (step, term) in enumerate(zip(program.steps, terms, strict=True), start=1):
        yield f"  {place:>3}. {term:<{width}}  {_meaning(step)}"


def _factors(program: Program, names: _Names) -> list[str]:
    return [_term(step, names) for step in reversed(program.steps)] or ["I"]


def _term(step: Generator, names: _Names) -> str:
    match step:
        case Allocate(buffer):
            return f"A_{names.buffer(buffer)}"
        case Deallocate(buffer):
            return f"D_{names.buffer(buffer)}"
        case Clear(region):
            return f"K_{names.region(region)}"
        case Add(source, target):
            return f"S_{{{names.region(source)}→{names.region(target)}}}"


def _meaning(step: Generator) -> str:
    match step:
        case Allocate(buffer):
            return f"rank {buffer.rank} allocates {buffer.name} {list(buffer.shape)}, zero"
        case Deallocate(buffer):
            return f"rank {buffer.rank} deallocates {buffer.name}"
        case Clear(region):
            return f"rank {region.rank} clears {region.buffer}"
        case Add(source, target) if source.rank == target.rank:
            return f"rank {source.rank} adds {source.buffer} to {target.buffer}"
        case Add(source, target):
            return f"rank {source.rank} sends {source.buffer}, rank {target.rank} adds it to {target.buffer}"


def _tensors(space: Space) -> Iterator[str]:
    for tensor in space.tensors:
        yield f"{tensor.name}: {tensor} over {tensor.layout.partition}"


def _buffers(programs: Iterable[Program]) -> Iterator[Buffer]:
    for program in programs:
        yield from program.inputs
        for step in program.steps:
            if isinstance(step, Allocate):
                yield step.buffer


def _letters() -> Iterator[str]:
    for turn in count():
        for letter in "abcdefghijklmnopqrstuvwxyz":
            yield letter + str(turn or "")
