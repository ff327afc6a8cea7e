"""Does the implementation do what its program says, in both directions, exactly?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from adjointlab.checks.check import Check, Spaces
from adjointlab.checks.compare import EXACT, Local, first_difference
from adjointlab.checks.context import CheckContext, InputSetting
from adjointlab.checks.finite import not_finite
from adjointlab.checks.schedule_invariant import ElementResult, ScheduleInvariant
from adjointlab.checks.verdict import Verdict, coherent, incoherent
from adjointlab.core.program import Program, buffers
from adjointlab.core.space import Space
from adjointlab.core.values import Draw, local_values

__all__ = ["SpecificationCheck"]


@dataclass(frozen=True)
class Observation:
    """One rank's outputs; the specification, from rank 0."""

    forward: Local
    adjoint: Local
    bound: int
    setting: InputSetting
    specification: tuple[Program, Program] | None


class SpecificationCheck(Check):
    """Equality with the program over one global memory, which the judge executes on the same integers."""

    name = "specification"

    def observe(self, context: CheckContext) -> Observation:
        bound = context.integers()
        forward = context.numpy(context.forward(context.primal(0, bound)))
        adjoint = context.numpy(context.adjoint(context.dual(0, bound)))
        if context.rank:
            return Observation(forward, adjoint, bound, context.setting, None)
        given = context.operator.specification()
        if given is None:
            raise ValueError(f"{type(context.operator).__name__} has no specification to compare with")
        both = given if isinstance(given, tuple) else (given, given.adjoint())
        return Observation(forward, adjoint, bound, context.setting, both)

    def judge(self, spaces: Spaces, observations: Sequence[Observation]) -> Verdict:
        first = observations[0]
        assert first.specification is not None
        for (direction, source, target), program in zip(spaces.sides(), first.specification, strict=True):
            actual: list[Local] = [getattr(seen, direction) for seen in observations]
            if verdict := not_finite(direction, target, actual):
                return verdict
            side = "primal" if direction == "forward" else "dual"
            expected = _executed(
                program, source, target, Draw(first.setting.seed, 0, side, first.bound), actual
            )
            if difference := first_difference(target, actual, expected):
                where, got, want = difference
                return incoherent(
                    f"{direction} is not what its specification says",
                    ("element", where),
                    (direction, f"gives {got}"),
                    ("program", f"gives {want}"),
                )
        return coherent()

    def schedule_invariants(
        self, spaces: Spaces, observations: Sequence[Observation]
    ) -> Mapping[str, ScheduleInvariant]:
        return {
            direction: ElementResult(space, [getattr(seen, direction) for seen in observations], EXACT)
            for direction, _, space in spaces.sides()
        }


def _executed(
    program: Program, source: Space, target: Space, draw: Draw, like: Sequence[Local]
) -> list[Local]:
    """The program's outputs as every rank holds them."""
    if program.inputs != buffers(source) or program.outputs != buffers(target):
        raise ValueError(
            f"the specification maps {[str(b) for b in program.inputs]} to {[str(b) for b in program.outputs]}, but the "
            f"spaces need {[str(b) for b in buffers(source)]} and {[str(b) for b in buffers(target)]}"
        )
    memory = {
        (rank, tensor.name): local_values(source, position, rank, draw)
        for position, tensor in enumerate(source.tensors)
        for rank in tensor.layout.partition.ranks
    }
    result = program.execute(memory)
    return [
        tuple(
            result.get((rank, tensor.name), np.zeros_like(held))
            for tensor, held in zip(target.tensors, local, strict=True)
        )
        for rank, local in enumerate(like)
    ]
