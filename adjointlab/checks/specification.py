"""Comparison with the specification: both directions compute what their programs do, exactly unless they declare a rounding.

The adjoint of a program is derived mechanically, so this check finds what the dot test cannot: a forward and an adjoint that are
wrong in the same way, such as a halo exchange that leaves out the corners in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from adjointlab.checks.check import AnyCheck, BothDirections, Check, CheckedSubject, Spaces
from adjointlab.checks.context import CheckContext
from adjointlab.checks.elements import Local, Tolerance, first_difference, not_finite_verdict
from adjointlab.checks.evidence import Evidence
from adjointlab.checks.matrix import WITNESS
from adjointlab.checks.program_matrix import require_fitting
from adjointlab.checks.schedule_invariant import ScheduleInvariant
from adjointlab.checks.verdict import Inapplicable, Verdict, coherent, incoherent
from adjointlab.core.program import Program
from adjointlab.core.space import Space
from adjointlab.core.vectors import Draw, local_values

__all__ = ["SPECIFICATION", "SpecificationCheck"]


@dataclass(frozen=True)
class SpecifiedOutputs:
    """One rank's outputs, and the keys of the inputs; rank 0 adds the specification."""

    outputs: BothDirections[Local]
    inputs: BothDirections[Draw]
    programs: tuple[Program, Program] | None
    tolerance: Tolerance


class SpecificationCheck(Check[SpecifiedOutputs]):
    """Equality with the program, which the judge executes on the same integers over one global memory."""

    name = "specification"
    order = 30
    share = 0.5

    def applies_to(self, subject: CheckedSubject) -> bool:
        return not subject.is_layer and subject.has_specification

    def follow_up(self) -> AnyCheck:
        return WITNESS

    def explained(self, verdict: Verdict, answer: Verdict | None) -> Verdict:
        """The same verdict, with the matrices and those of the specification for its picture."""
        if answer is None or answer.evidence is None:
            return verdict
        place = None if verdict.evidence is None else verdict.evidence.place
        return replace(verdict, evidence=Evidence(place, answer.evidence.matrices))

    def observe(self, context: CheckContext) -> SpecifiedOutputs:
        bound, seed = context.arithmetic.integers(), context.setting.seed
        outputs = BothDirections(
            context.numpy(context.forward(context.primal(0, bound))),
            context.numpy(context.adjoint(context.dual(0, bound))),
        )
        # One copy is enough: ranks whose spaces differ are reported before any check judges.
        programs = context.programs if context.rank == 0 else None
        if context.rank == 0 and programs is None:
            raise Inapplicable("the operator has no specification in this case")
        inputs = BothDirections(Draw(seed, 0, "primal", bound), Draw(seed, 0, "dual", bound))
        return SpecifiedOutputs(outputs, inputs, programs, context.arithmetic.tolerance)

    def judge(self, spaces: Spaces, observations: Sequence[SpecifiedOutputs]) -> Verdict:
        first = observations[0]
        assert first.programs is not None
        for (direction, source, target), draw, actual, program in zip(
            spaces.directions(),
            first.inputs,
            zip(*(seen.outputs for seen in observations), strict=True),
            first.programs,
            strict=True,
        ):
            if verdict := not_finite_verdict(direction, target, actual):
                return verdict
            expected = _executed(program, source, target, draw, actual)
            if difference := first_difference(target, actual, expected, first.tolerance):
                return incoherent(
                    f"{direction} is not what its specification says",
                    ("element", difference.where),
                    (direction, f"gives {difference.actual}"),
                    ("program", f"gives {difference.expected}"),
                    evidence=difference.evidence(str(direction), "program"),
                )
        return coherent()

    def schedule_invariants(
        self, spaces: Spaces, observations: Sequence[SpecifiedOutputs]
    ) -> Mapping[str, ScheduleInvariant]:
        return spaces.element_results((seen.outputs for seen in observations), observations[0].tolerance)


def _executed(
    program: Program, source: Space, target: Space, draw: Draw, like: Sequence[Local]
) -> list[Local]:
    """Outputs of the program as every rank holds them; zero-volume ones of inactive ranks are shaped as in `like`."""
    require_fitting(program, source, target)
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


SPECIFICATION = SpecificationCheck()
