"""Comparison of the outputs with declarations that no single rank can check: equal copies, array library, identity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adjointlab.checks.check import BothDirections, Check, Spaces
from adjointlab.checks.context import CheckContext
from adjointlab.checks.elements import Local, unequal_copies_verdict
from adjointlab.checks.verdict import Verdict, coherent, incoherent
from adjointlab.core import arrays
from adjointlab.core.operator import Direction

__all__ = ["DECLARED", "DeclaredCheck"]


@dataclass(frozen=True)
class DeclaredOutputs:
    """One rank's outputs and array libraries, and the directions in which a declared identity changes its argument."""

    outputs: BothDirections[Local]
    output_libraries: frozenset[str]
    library: str  # of the inputs
    not_identity: tuple[str, ...]


class DeclaredCheck(Check[DeclaredOutputs]):
    """Copies that are declared equal are equal on all ranks, outputs are arrays of the inputs' library, and an operator
    that declares itself the identity is one.

    Shapes and element types of outputs are checked at every call of every check.
    """

    name = "declared"
    share = 0.4
    order = 60

    def observe(self, context: CheckContext) -> DeclaredOutputs:
        bound = context.arithmetic.integers()
        x, y = context.primal(0, bound), context.dual(0, bound)
        fx, fstar_y = context.forward(x), context.adjoint(y)
        outputs = BothDirections(context.numpy(fx), context.numpy(fstar_y))
        arguments = (x, y) if context.operator.is_identity else ()
        return DeclaredOutputs(
            outputs,
            frozenset(map(arrays.memory_and_place, (*fx, *fstar_y))),
            context.library,
            tuple(
                direction
                for direction, given, returned in zip(Direction, arguments, outputs, strict=False)
                if not _same(context.numpy(given), returned)
            ),
        )

    def judge(self, spaces: Spaces, observations: Sequence[DeclaredOutputs]) -> Verdict:
        for rank, seen in enumerate(observations):
            if wrong := seen.output_libraries - {seen.library}:
                return incoherent(
                    "outputs are of another array library than inputs, or lie on another device",
                    ("rank", str(rank)),
                    ("libraries", f"{seen.library} in, {', '.join(sorted(wrong))} out"),
                )
            if seen.not_identity:
                return incoherent(
                    f"{seen.not_identity[0]} is not the identity that the operator declares",
                    ("rank", str(rank)),
                )
        for direction, space, local in spaces.outputs(seen.outputs for seen in observations):
            if verdict := unequal_copies_verdict(direction, space, local):
                return verdict
        return coherent()


def _same(given: Local, returned: Local) -> bool:
    return len(given) == len(returned) and all(map(np.array_equal, given, returned))


DECLARED = DeclaredCheck()
