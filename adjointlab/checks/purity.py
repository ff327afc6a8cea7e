"""Does the operator leave its arguments alone, and read nothing but them?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from adjointlab.checks.bench import Bench
from adjointlab.checks.check import Check, Spaces
from adjointlab.checks.compare import Local, Tolerance, first_difference
from adjointlab.checks.fresh_memory import FILLS, controlled, filled
from adjointlab.checks.placement import ORDERS, Placed
from adjointlab.checks.settled import Element, Settled
from adjointlab.checks.verdict import Verdict, coherent, incoherent
from adjointlab.space import Space

__all__ = ["PurityCheck"]


@dataclass(frozen=True)
class Direction:
    """What one rank saw of one direction: the outputs in several circumstances, and whether arguments changed."""

    changed: bool
    outputs: dict[str, Local]  # by circumstance; the first is the standard


@dataclass(frozen=True)
class Observation:
    forward: Direction
    adjoint: Direction
    tolerance: Tolerance


class PurityCheck(Check):
    """Arguments are bitwise unchanged, guard zones included; results depend on nothing but the arguments' values.

    The same values are given in plain memory, in every memory order between guard zones of NaN, and with two
    different fills of fresh memory: all results agree.
    """

    name = "purity"

    def surroundings(self) -> AbstractContextManager[None]:
        return controlled()

    def observe(self, bench: Bench) -> Observation:
        return Observation(
            _observe(bench, bench.domain, "primal", bench.forward),
            _observe(bench, bench.codomain.dual, "dual", bench.adjoint),
            bench.tolerance,
        )

    def judge(self, spaces: Spaces, observations: Sequence[Observation]) -> Verdict:
        first = observations[0]
        for direction, _, space in spaces.sides():
            seen: list[Direction] = [getattr(observation, direction) for observation in observations]
            for rank, one in enumerate(seen):
                if one.changed:
                    return incoherent(f"{direction} writes into its argument", ("rank", str(rank)))
            standard, *others = seen[0].outputs
            for circumstance in others:
                got = [one.outputs[circumstance] for one in seen]
                want = [one.outputs[standard] for one in seen]
                if difference := first_difference(space, got, want, first.tolerance):
                    where, actual, expected = difference
                    same_order = circumstance.split(",")[0] == standard.split(",")[0]
                    return incoherent(
                        f"{direction} reads memory that nobody wrote"
                        if same_order
                        else f"{direction} depends on where its argument lies in memory",
                        ("element", where),
                        (standard, expected),
                        (circumstance, actual),
                    )
        return coherent()

    def settled(self, spaces: Spaces, observations: Sequence[Observation]) -> Mapping[str, Settled]:
        found: dict[str, Settled] = {}
        for direction, _, space in spaces.sides():
            seen: list[Direction] = [getattr(observation, direction) for observation in observations]
            standard = next(iter(seen[0].outputs))
            local = [one.outputs[standard] for one in seen]
            found[direction] = Element(space, local, observations[0].tolerance)
        return found


def _observe(
    bench: Bench, space: Space, side: str, apply: Callable[[Sequence[Any]], tuple[Any, ...]]
) -> Direction:
    bound = bench.integers()
    orders = [bench.setting.primal_order if side == "primal" else bench.setting.dual_order]
    if orders[0] != ORDERS[0]:
        orders.append(ORDERS[0])
    outputs: dict[str, Local] = {}
    changed = False
    for order in orders:
        for fill in FILLS:
            placed: tuple[Placed, ...] = bench.placed(space, side, 0, bound, order=order)
            with filled(fill):
                result = apply([entry.view for entry in placed])
            outputs[f"{order} argument, fresh memory {fill:g}"] = bench.numpy(result)
            changed |= not all(entry.unchanged for entry in placed)
    return Direction(changed, outputs)
