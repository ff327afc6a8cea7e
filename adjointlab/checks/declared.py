"""Do the outputs lie in the spaces that the operator declares, and do all ranks declare the same?"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from adjointlab import arrays
from adjointlab.checks.bench import Bench
from adjointlab.checks.check import Check, Spaces
from adjointlab.checks.compare import Local, first_unequal_copy
from adjointlab.checks.verdict import Verdict, coherent, incoherent

__all__ = ["DeclaredCheck"]


@dataclass(frozen=True)
class Observation:
    """One rank's outputs, their library, and a fingerprint of the spaces."""

    forward: Local
    adjoint: Local
    libraries: tuple[str, ...]
    library: str
    fingerprint: int


class DeclaredCheck(Check):
    """Shapes and element types are checked at every call; here copies that are declared equal are compared too."""

    name = "declared"

    def observe(self, bench: Bench) -> Observation:
        bound = bench.integers()
        image, coimage = bench.forward(bench.primal(0, bound)), bench.adjoint(bench.dual(0, bound))
        described = repr((bench.domain, bench.codomain)).encode()
        return Observation(
            bench.numpy(image),
            bench.numpy(coimage),
            tuple(arrays.library_of(array) for array in (*image, *coimage)),
            bench.library,
            zlib.crc32(described),
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
        for direction, _, space in spaces.sides():
            local: list[Local] = [getattr(seen, direction) for seen in observations]
            if difference := first_unequal_copy(space, local):
                where, value, other = difference
                return incoherent(
                    f"{direction} returns different copies of what is declared equal",
                    ("element", where),
                    ("value", value),
                    ("but", other),
                )
        return coherent()
