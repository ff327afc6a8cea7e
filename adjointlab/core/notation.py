"""Operators in the notation of [Hewett21]: their spaces, and their programs as compositions of generators.

A composition is read from right to left, B = D_a S_{a→2} S_{a→1} S_{a→0} A_2 A_1 A_0, as operators apply; the steps below it
are in the order of their execution.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from string import ascii_lowercase

from adjointlab.core.operator import CompositeOperator, LinearOperator, ProductOperator, programs_of
from adjointlab.core.program import Add, Allocate, Buffer, Clear, Deallocate, Generator, Program, Region
from adjointlab.core.space import Space

__all__ = ["explain"]

_WIDTH = 100


def explain(operator: LinearOperator) -> str:
    """Describe `operator` by its spaces, and by the programs of forward and adjoint in the paper's notation.

    Meant for a small case. A product is described by its factors and by the one program that they make, an operator without a
    specification only by its spaces.
    """
    lines = [str(operator) if isinstance(operator, CompositeOperator) else type(operator).__name__]
    lines += [f"  from  {entry}" for entry in _tensors(operator.domain)]
    lines += [f"  to    {entry}" for entry in _tensors(operator.codomain)]
    lines += [f"  {line}" for line in getattr(operator, "notation", tuple)()]
    if isinstance(operator, ProductOperator):
        lines += ["", "Factors, in the order in which they apply", *_factors_of(operator)]
    programs = programs_of(operator)
    if programs is None:
        return "\n".join([*lines, "", "It has no specification: no program says what it does."])
    forward, adjoint = programs
    labels = _Labels.of(forward, adjoint)
    lines += ["", "Buffers", *(f"  {line}" for line in labels.legend())]
    lines += ["", "Forward", *_described(str(operator), forward, labels)]
    lines += ["", "Adjoint", *_described(str(operator.H), adjoint, labels)]
    return "\n".join(lines)


@dataclass(frozen=True)
class _Labels:
    """Short labels of the buffers of some programs, by rank and name: a number or a letter each, as in the paper."""

    labels: dict[tuple[int, str], str]
    shapes: dict[tuple[int, str], tuple[int, ...]]

    @classmethod
    def of(cls, *programs: Program) -> _Labels:
        """Label the buffers of the name that most workers hold with their ranks, and all other buffers with letters."""
        # In the paper x on rank r is just "r", and a, b, ... are buffers of one rank. Both programs share one labelling, so that
        # forward and adjoint can be compared.
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
        """Return the buffer's label, with the interval in each dimension where the region is only a part of it."""
        whole = tuple((0, side) for side in self.shapes[region.key])
        intervals = ", ".join(f"{start}:{stop}" for start, stop in region.slices)
        return self.labels[region.key] + (f"[{intervals}]" if region.slices != whole else "")

    def legend(self) -> Iterable[str]:
        numbers = ", ".join(label for label in self.labels.values() if label.isdigit())
        lines = (
            f"{numbers}: {name} on the rank of that number"
            if label.isdigit()
            else f"{label}: {name} on rank {rank}"
            for (rank, name), label in self.labels.items()
        )
        return dict.fromkeys(lines)  # one line for all the numbers


def _factors_of(product: ProductOperator) -> Iterator[str]:
    for position, factor in enumerate(reversed(product.factors), start=1):
        source, target = (
            ", ".join(tensor.over_partition for tensor in space.tensors)
            for space in (factor.domain, factor.codomain)
        )
        name = "" if isinstance(factor, CompositeOperator) else f", {type(factor).__name__}"
        yield f"  {position:>3}. {factor}{name}: {source} → {target}"


def _described(symbol: str, program: Program, labels: _Labels) -> Iterator[str]:
    """Yield the lines of the composition, then those of the steps."""
    line = f"  {symbol} ="
    margin = " " * len(line)
    for factor in _factors(program, labels):
        if len(line) + 1 + len(factor) > _WIDTH:
            yield line
            line = margin
        line += f" {factor}"
    yield line
    terms = [_term(step, labels) for step in program.steps]
    width = max((len(term) for term, _ in terms), default=0)
    for position, (term, meaning) in enumerate(terms, start=1):
        yield f"  {position:>3}. {term:<{width}}  {meaning}"


def _factors(program: Program, labels: _Labels) -> list[str]:
    return [_term(step, labels)[0] for step in reversed(program.steps)] or ["I"]


def _term(step: Generator, labels: _Labels) -> tuple[str, str]:
    """Return a step as the paper writes it, and in words."""
    match step:
        case Allocate(buffer):
            return (
                f"A_{labels.buffer(buffer)}",
                f"rank {buffer.rank} allocates {buffer.name} {list(buffer.shape)}, zero",
            )
        case Deallocate(buffer):
            return f"D_{labels.buffer(buffer)}", f"rank {buffer.rank} deallocates {buffer.name}"
        case Clear(region):
            return f"K_{labels.region(region)}", f"rank {region.rank} clears {region.buffer}"
        case Add(source, target):
            term = f"S_{{{labels.region(source)}→{labels.region(target)}}}"
            if source.rank == target.rank:
                return term, f"rank {source.rank} adds {source.buffer} to {target.buffer}"
            receives = f"rank {target.rank} adds it to {target.buffer}"
            return term, f"rank {source.rank} sends {source.buffer}, {receives}"


def _tensors(space: Space) -> Iterator[str]:
    return (f"{tensor.name}: {tensor.over_partition}" for tensor in space.tensors)


def _buffers(programs: Iterable[Program]) -> Iterator[Buffer]:
    for program in programs:
        yield from program.inputs
        for step in program.steps:
            if isinstance(step, Allocate):
                yield step.buffer


def _letters() -> Iterator[str]:
    for suffix in count():
        for letter in ascii_lowercase:
            yield letter + str(suffix or "")
