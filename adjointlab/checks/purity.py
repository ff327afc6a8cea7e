"""Does the operator leave its arguments alone, and read nothing but them?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from adjointlab.checks.check import Check, Spaces
from adjointlab.checks.compare import Local, Tolerance, first_difference
from adjointlab.checks.context import CheckContext
from adjointlab.checks.finite import not_finite
from adjointlab.checks.forms import other_forms
from adjointlab.checks.fresh_memory import FILLS, controlled, filled
from adjointlab.checks.placement import ORDERS, Placed
from adjointlab.checks.schedule_invariant import ElementResult, ScheduleInvariant
from adjointlab.checks.verdict import Verdict, coherent, incoherent
from adjointlab.core.space import Space

__all__ = ["PurityCheck"]


@dataclass(frozen=True)
class Direction:
    """What one rank saw of one direction: the outputs in several circumstances, and whether arguments changed."""

    changed: bool
    outputs: dict[str, Local]  # by circumstance; the first is the standard
    forms: dict[str, Local]  # what the memory of each other form holds
    elsewhere: tuple[str, ...]  # the forms that return something else than this memory
    plain: Local  # the outputs of a fresh instance that has been given no NaN anywhere


@dataclass(frozen=True)
class Observation:
    forward: Direction
    adjoint: Direction
    tolerance: Tolerance


class PurityCheck(Check):
    """Arguments are bitwise unchanged, guard zones included; results depend on nothing but the arguments' values.

    The same values are given in plain memory, in every memory order between guard zones of NaN, and with two
    different fills of fresh memory: all results agree. So do those of an operator's other forms: into memory that is
    given as `out`, and in place.
    """

    name = "purity"

    def surroundings(self) -> AbstractContextManager[None]:
        return controlled()

    def observe(self, context: CheckContext) -> Observation:
        return Observation(
            _observe(context, "forward", context.domain, context.forward),
            _observe(context, "adjoint", context.codomain.dual, context.adjoint),
            context.tolerance,
        )

    def judge(self, spaces: Spaces, observations: Sequence[Observation]) -> Verdict:
        first = observations[0]
        for direction, _, space in spaces.sides():
            seen: list[Direction] = [getattr(observation, direction) for observation in observations]
            for rank, one in enumerate(seen):
                if one.changed:
                    return incoherent(f"{direction} writes into its argument", ("rank", str(rank)))
            if verdict := not_finite(direction, space, [one.plain for one in seen]):
                return verdict
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
            if verdict := _of_forms(direction, space, seen, first.tolerance):
                return verdict
        return coherent()

    def schedule_invariants(
        self, spaces: Spaces, observations: Sequence[Observation]
    ) -> Mapping[str, ScheduleInvariant]:
        found: dict[str, ScheduleInvariant] = {}
        for direction, _, space in spaces.sides():
            seen: list[Direction] = [getattr(observation, direction) for observation in observations]
            standard = next(iter(seen[0].outputs))
            local = [one.outputs[standard] for one in seen]
            found[direction] = ElementResult(space, local, observations[0].tolerance)
        return found


def _of_forms(
    direction: str, space: Space, seen: Sequence[Direction], tolerance: Tolerance
) -> Verdict | None:
    standard = next(iter(seen[0].outputs))
    for form in seen[0].forms:
        difference = first_difference(
            space,
            [one.forms[form] for one in seen],
            [one.outputs[standard] for one in seen],
            tolerance,
        )
        if difference is not None:
            where, actual, expected = difference
            return incoherent(
                f"{direction} {form} gives something else than in fresh memory",
                ("element", where),
                ("fresh memory", expected),
                (form, actual),
            )
        for rank, one in enumerate(seen):
            if form in one.elsewhere:
                return incoherent(
                    f"{direction} {form} returns something else than that memory", ("rank", str(rank))
                )
    return None


def _observe(
    context: CheckContext, direction: str, space: Space, apply: Callable[..., tuple[Any, ...]]
) -> Direction:
    bound = context.integers()
    primal, dual = ("primal", context.setting.primal_order), ("dual", context.setting.dual_order)
    side, asked = primal if direction == "forward" else dual
    outputs: dict[str, Local] = {}
    changed = False
    for order in dict.fromkeys((asked, ORDERS[0])):
        for fill in FILLS:
            placed: tuple[Placed, ...] = context.placed(space, side, 0, bound, order=order)
            with filled(fill):
                result = apply([entry.view for entry in placed])
            outputs[f"{order} argument, fresh memory {fill:g}"] = context.numpy(result)
            changed |= not all(entry.unchanged for entry in placed)
    forms = other_forms(context.operator, direction, [entry.view for entry in placed], result)
    changed |= not all(entry.unchanged for entry in placed)
    argument = [entry.view for entry in context.placed(space, side, 0, bound, order=ORDERS[0])]
    with filled(FILLS[1]):
        plain = apply(argument, context.fresh())
    return Direction(
        changed,
        outputs,
        {form.name: context.numpy(form.result) for form in forms},
        tuple(form.name for form in forms if not form.is_returned),
        context.numpy(plain),
    )
