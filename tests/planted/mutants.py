"""Random mutants of the primitives' programs, run over the communicator, and the checks that find them.

A mutant is one edit of a primitive's specification program (a generator dropped, doubled, redirected to another rank or
slice, or moved) in its forward program, in its adjoint program, or in both. It is put to three checks in the geometry in
which it was drawn: adjoint, matrix, and specification (the program that was not mutated). Mutants whose matrices are those of the
original in both directions are equivalent and do not count; edits that are no program are drawn again.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from adjointlab.core import strategies
from adjointlab.core.executor import ProgramOperator
from adjointlab.core.layout import Layout, balanced_cut
from adjointlab.core.partition import Partition
from adjointlab.core.program import Add, Allocate, Clear, Deallocate, Generator, Program, Region, buffers
from adjointlab.core.space import Space
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget, SearchResult
from adjointlab.engine.subject import Subject
from adjointlab.engine.subject_decorators import subject
from adjointlab.worlds.world import World
from tests.outsider import Outsider

KINDS = ("dropped", "doubled", "redirected to a rank", "redirected to a slice", "moved")
PLACES = ("forward", "adjoint", "both")
CHECKS = ("adjoint", "matrix", "specification")
PRIMITIVES = ("broadcast", "sum-reduce", "all-reduce", "copy", "move", "copy in place", "move in place")
LARGEST = 48
"""Elements of all local tensors of a geometry at most, so that matrices are quick to compare."""


@dataclass(frozen=True)
class Geometry:
    """One primitive in one small geometry, as data: its arguments, without the communicator."""

    primitive: str
    ranks: int
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Mutant:
    """One edit of a primitive's program in one geometry."""

    geometry: Geometry
    kind: str
    place: str
    domain: Space
    codomain: Space
    original: tuple[Program, Program]
    mutated: tuple[Program, Program]

    def __str__(self) -> str:
        steps = "; ".join(map(str, self.mutated[self.place == "adjoint"].steps))
        return f"{self.geometry.primitive}, {self.kind} in {self.place}: {steps}"


class MutatedOperator(ProgramOperator):
    """Executes the mutated programs; its specification is the original."""

    def __init__(self, comm: Any, mutant: Mutant) -> None:
        super().__init__(comm, mutant.domain, mutant.codomain, *mutant.mutated)
        self.mutant = mutant

    def specification(self) -> tuple[Program, Program]:
        return self.mutant.original


def draw_geometry(random_: random.Random, ranks: int) -> Geometry:
    """A primitive with partitions, cuts and a tensor of a few elements."""
    primitive = random_.choice(PRIMITIVES)
    order = random_.randint(1, 2)
    if primitive in ("copy", "move"):
        source, destination = random_.randrange(ranks), random_.randrange(ranks)
        layout = Layout([random_.randint(1, 3) for _ in range(order)], Partition((1,) * order, [source]))
        return Geometry(primitive, ranks, {"layout": layout, "destination": destination, "form": primitive})
    size = random_.randint(1, ranks)
    if primitive.endswith("in place"):
        workers = Partition((size,), random_.sample(range(ranks), size))
        return Geometry(primitive, ranks, {"layout": _laid(random_, workers, [0]), "in_place": True})
    grid = random_.choice(strategies.grids(size, order))
    workers = random_.sample(range(ranks), size)
    many = Partition(grid, workers)
    if primitive == "all-reduce":
        dims = random_.sample(range(order), random_.randint(1, order))
        along = [dim for dim in range(order) if dim not in dims]
        return Geometry(primitive, ranks, {"layout": _laid(random_, many, along), "dims": tuple(dims)})
    effective = [side if random_.random() < 0.5 else 1 for side in grid]
    one = Partition(effective, random_.sample(range(ranks), int(np.prod(effective))))
    kept = [dim for dim in range(order) if effective[dim] == grid[dim]]
    if primitive == "broadcast":
        return Geometry(primitive, ranks, {"layout": _laid(random_, one, range(order)), "partition": many})
    return Geometry(primitive, ranks, {"layout": _laid(random_, many, kept), "partition": one})


def _laid(random_: random.Random, partition: Partition, along: Iterable[int]) -> Layout:
    axes: list[int | None] = [*along] or [None]
    shape = [random_.randint(1, 3) for _ in axes]
    ends = []
    for side, axis in zip(shape, axes, strict=True):
        parts = 1 if axis is None else partition.shape[axis]
        inner = sorted(random_.randint(0, side) for _ in range(parts - 1))
        ends.append((0, *inner, side) if random_.random() < 0.5 else balanced_cut(side, parts))
    return Layout.cut(shape, partition, ends, axes)


def programs(geometry: Geometry) -> tuple[Space, Space, Program]:
    """The spaces of a primitive in a geometry, and its specification."""
    from adjointlab.primitives.all_sum_reduce import AllSumReduce
    from adjointlab.primitives.broadcast import Broadcast
    from adjointlab.primitives.memory import Copy, Move
    from adjointlab.primitives.send_receive import SendReceive
    from adjointlab.primitives.sum_reduce import SumReduce

    operators: dict[str, Any] = {
        "broadcast": Broadcast,
        "sum-reduce": SumReduce,
        "all-reduce": AllSumReduce,
        "copy": SendReceive,
        "move": SendReceive,
        "copy in place": Copy,
        "move in place": Move,
    }
    operator = operators[geometry.primitive](Outsider(geometry.ranks), **geometry.arguments)
    specification = operator.specification()
    assert isinstance(specification, Program)
    return operator.domain, operator.codomain, specification


def mutate(random_: random.Random, program: Program, kind: str, ranks: int) -> Program:
    """One random edit; `ValueError` where it leaves no program."""
    steps = list(program.steps)
    at = random_.randrange(len(steps))
    match kind:
        case "dropped":
            del steps[at]
        case "doubled":
            steps.insert(at, steps[at])
        case "moved":
            step = steps.pop(at)
            steps.insert(random_.randrange(len(steps) + 1), step)
        case "redirected to a rank":
            steps[at] = _to_rank(random_, steps[at], ranks)
        case "redirected to a slice":
            steps[at] = _to_slice(random_, steps[at])
    mutated = Program(program.inputs, steps)
    if mutated.steps == program.steps:
        raise ValueError("the edit changes nothing")
    return mutated


def _to_rank(random_: random.Random, step: Generator, ranks: int) -> Generator:
    other = random_.randrange(ranks)
    match step:
        case Allocate(buffer) | Deallocate(buffer):
            return type(step)(replace(buffer, rank=other))
        case Clear(region):
            return Clear(replace(region, rank=other))
        case Add(source, target):
            if random_.random() < 0.5:
                return Add(replace(source, rank=other), target)
            return Add(source, replace(target, rank=other))


def _to_slice(random_: random.Random, step: Generator) -> Generator:
    """Narrower, or shifted, in one dimension; of an Add both regions become narrower, or one is shifted."""
    match step:
        case Clear(region):
            return Clear(_sliced(random_, region, random_.randrange(max(len(region.slices), 1)), None))
        case Add(source, target) if source.slices:
            dim = random_.randrange(len(source.slices))
            sides = source.slices[dim][1] - source.slices[dim][0]
            if sides < 1:
                raise ValueError("nothing to cut")
            take = random_.randint(0, sides - 1)
            return Add(_sliced(random_, source, dim, take), _sliced(random_, target, dim, take))
    raise ValueError("not a region")


def _sliced(random_: random.Random, region: Region, dim: int, take: int | None) -> Region:
    if not region.slices:
        raise ValueError("a region without dimensions has no slices")
    start, stop = region.slices[dim]
    take = random_.randint(0, max(stop - start - 1, 0)) if take is None else take
    first = random_.randint(start, stop - take)
    slices = list(region.slices)
    slices[dim] = (first, first + take)
    return replace(region, slices=tuple(slices))


def draw_mutant(random_: random.Random, kind: str, place: str, ranks: int) -> tuple[Mutant, bool]:
    """A mutant that is a program, and whether it is equivalent to its original."""
    while True:
        geometry = draw_geometry(random_, ranks)
        domain, codomain, forward = programs(geometry)
        if max(domain.dimension, codomain.dimension) > LARGEST or not forward.steps:
            continue
        adjoint = forward.adjoint()
        try:
            if place == "forward":
                changed = (mutate(random_, forward, kind, ranks), adjoint)
            elif place == "adjoint":
                changed = (forward, mutate(random_, adjoint, kind, ranks))
            else:
                one = mutate(random_, forward, kind, ranks)
                changed = (one, one.adjoint())
            matrices = [
                matrix(program, *sides)
                for program, sides in zip(changed, _sides(domain, codomain), strict=True)
            ]
        except ValueError:
            continue
        originals = [
            matrix(program, *sides)
            for program, sides in zip((forward, adjoint), _sides(domain, codomain), strict=True)
        ]
        same = all(np.array_equal(a, b) for a, b in zip(matrices, originals, strict=True))
        return Mutant(geometry, kind, place, domain, codomain, (forward, adjoint), changed), same


def _sides(domain: Space, codomain: Space) -> tuple[tuple[Space, Space], tuple[Space, Space]]:
    return (domain, codomain), (codomain, domain)


def matrix(program: Program, source: Space, target: Space) -> np.ndarray[Any, Any]:
    """The program's matrix between two spaces: further inputs are zero, further outputs are dropped.

    Raises `ValueError` for a program that does not start from the one and end with the other.
    """
    given, wanted = buffers(source), buffers(target)
    if not set(given) <= set(program.inputs) or not set(wanted) <= set(program.outputs):
        raise ValueError("the program does not map the one space to the other")
    columns = np.repeat(
        [buffer in given for buffer in program.inputs], [buffer.size for buffer in program.inputs]
    )
    rows = np.repeat(
        [buffer in wanted for buffer in program.outputs], [buffer.size for buffer in program.outputs]
    )
    return program.matrix()[rows][:, columns]


@dataclass(frozen=True)
class Result:
    """The fate of a mutant that is not equivalent: the check that found it, after how many cases."""

    mutant: Mutant
    found_by: str  # "" where none did
    cases: int
    reports: tuple[SearchResult, ...]


def mutants(seed: int, count: int, ranks: int) -> tuple[list[Mutant], int]:
    """`count` mutants that are not equivalent, kinds and places in turn, and how many equivalent ones were discarded."""
    random_ = random.Random(seed)
    kept: list[Mutant] = []
    discarded = 0
    while len(kept) < count:
        kind, place = KINDS[len(kept) % len(KINDS)], PLACES[len(kept) // len(KINDS) % len(PLACES)]
        mutant, equivalent = draw_mutant(random_, kind, place, ranks)
        if equivalent:
            discarded += 1
        else:
            kept.append(mutant)
    return kept, discarded


def as_subject(mutant: Mutant) -> Subject:
    """The mutant in its geometry; what else a case has (values, memory orders, schedules) is drawn."""

    def build(comm: Any) -> MutatedOperator:
        return MutatedOperator(comm, mutant)

    def draws(draw: Any, ranks: int) -> dict[str, Any]:
        draw(st.just(None))
        return {}

    return subject(build, ranks=(mutant.geometry.ranks,), name=mutant.geometry.primitive)(draws)


def hunt(world: World, mutant: Mutant, seed: int) -> Result:
    """Put a mutant to the checks, one after the other, until one finds it."""
    tried, reports = 0, []
    for check in CHECKS:
        budget = Budget(cases=10, ranks=mutant.geometry.ranks, seed=seed, shrinking=0.0)
        report = investigate(world, as_subject(mutant), check, budget)
        reports.append(report)
        tried += report.tried
        if not report.verdict.is_coherent:
            return Result(mutant, check, tried, tuple(reports))
    return Result(mutant, "", tried, tuple(reports))
