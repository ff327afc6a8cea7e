"""Do the outputs lie in the spaces that the operator declares, do all ranks declare the same, and is an identity one?"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adjointlab.checks.check import Check, Spaces
from adjointlab.checks.compare import Local, first_unequal_copy
from adjointlab.checks.context import CheckContext
from adjointlab.checks.verdict import Verdict, coherent, incoherent
from adjointlab.core import arrays
from adjointlab.core.space import Space

__all__ = ["DeclaredCheck", "unequal_copies"]


@dataclass(frozen=True)
class Observation:
    """One rank's outputs, their library, a fingerprint of the spaces, and where a declared identity is none."""

    forward: Local
    adjoint: Local
    libraries: tuple[str, ...]
    library: str
    fingerprint: int
    changed: tuple[str, ...]


class DeclaredCheck(Check):
    """Shapes and element types are checked at every call; here copies that are declared equal are compared too."""

    name = "declared"

    def observe(self, context: CheckContext) -> Observation:
        bound = context.integers()
        x, y = context.primal(0, bound), context.dual(0, bound)
        image, coimage = context.forward(x), context.adjoint(y)
        directions = (("forward", x, image), ("adjoint", y, coimage)) if context.operator.is_identity else ()
        described = repr((context.domain, context.codomain)).encode()
        return Observation(
            context.numpy(image),
            context.numpy(coimage),
            tuple(arrays.library_of(array) for array in (*image, *coimage)),
            context.library,
            zlib.crc32(described),
            tuple(
                name
                for name, given, made in directions
                if not _same(context.numpy(given), context.numpy(made))
            ),
        )

    def judge(self, spaces: Spaces, observations: Sequence[Observation]) -> Verdict:
        first = observations[0]
        for rank, seen in enumerate(observations):
            if seen.fingerprint != first.fingerprint:
                return incoherent("the ranks declare different spaces", ("ranks", f"0 and {rank}"))
            if wrong := set(seen.libraries) - {first.library}:
                return incoherent(
                    "outputs are of another array library than inputs",
                    ("rank", str(rank)),
                    ("libraries", f"{first.library} in, {', '.join(sorted(wrong))} out"),
                )
            if seen.changed:
                return incoherent(
                    f"{seen.changed[0]} is not the identity that the operator declares", ("rank", str(rank))
                )
        for direction, _, space in spaces.sides():
            local: list[Local] = [getattr(seen, direction) for seen in observations]
            if verdict := unequal_copies(direction, space, local):
                return verdict
        return coherent()


def unequal_copies(direction: str, space: Space, local: Sequence[Local]) -> Verdict | None:
    """The verdict on an element of `space` that a direction returned, if some of its copies are not equal as declared."""
    if (difference := first_unequal_copy(space, local)) is None:
        return None
    where, value, other = difference
    return incoherent(
        f"{direction} returns different copies of what is declared equal",
        ("element", where),
        ("value", value),
        ("but", other),
    )


def _same(given: Local, made: Local) -> bool:
    return len(given) == len(made) and all(map(np.array_equal, given, made))
