"""Purity: an operator does not change its arguments, and its results depend on nothing but the arguments' values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from adjointlab.checks.check import BothDirections, Check, Spaces
from adjointlab.checks.context import CheckContext
from adjointlab.checks.elements import Difference, Local, Tolerance, first_difference, not_finite_verdict
from adjointlab.checks.forms import other_forms, plain_form
from adjointlab.checks.fresh_memory import FILLS, controlled, filled
from adjointlab.checks.hints import FaultKind, Hint
from adjointlab.checks.memory_orders import ORDERS, RESTORED, Placed
from adjointlab.checks.schedule_invariant import ScheduleInvariant
from adjointlab.checks.verdict import Verdict, coherent, incoherent
from adjointlab.core.operator import Direction
from adjointlab.core.space import Space
from adjointlab.core.vectors import Side
from adjointlab.typing import Array

__all__ = ["PURITY", "PurityCheck"]


class Circumstance(NamedTuple):
    """Memory order of the argument, and contents of fresh memory."""

    order: str
    fill: str  # as text: NaN would not work as a key, because it does not equal the NaN of another process

    def __str__(self) -> str:
        return f"{self.order} argument, fresh memory filled with {self.fill}"


_NOT_FROM_MEMORY = (
    "perhaps",
    "earlier calls, or the order in which messages arrive: neither value is NaN, with which fresh memory was filled once",
)
_FROM_CALL_TO_CALL = (
    "perhaps",
    "earlier calls, or the order in which messages arrive: the argument and its place in memory are the same",
)
_STRIDES = Hint(FaultKind.STRIDES, "the value follows from where the argument lies in memory")


@dataclass(frozen=True)
class DirectionOutputs:
    """One rank's outputs of one direction for the same values in several circumstances."""

    changed: bool  # whether an argument or its guard zones were written into
    changed_by: str  # the forms that may have done so, if the plain one did not
    is_restored: bool  # so that it holds what it held
    outputs: dict[Circumstance, Local]  # the first is the standard
    again: Local  # in the standard circumstance, after all others
    forms: dict[str, Local]  # for each other form, contents of the memory that it had to write into
    returned_elsewhere: tuple[str, ...]  # forms that return other memory than that
    plain: Local  # outputs of a fresh instance without NaN around its argument or in fresh memory

    @property
    def standard(self) -> Circumstance:
        """The circumstance with which the others are compared."""
        return next(iter(self.outputs))


@dataclass(frozen=True)
class PurityObservation:
    """One rank's outputs of both directions."""

    directions: BothDirections[DirectionOutputs]
    tolerance: Tolerance


class PurityCheck(Check[PurityObservation]):
    """Arguments are bitwise unchanged, guard zones included, and torch has counted no write into them; results depend on nothing but the arguments' values.

    The same values are given in row-major memory and in the case's memory order, between guard zones of NaN, and with two
    fills of fresh memory: all results agree. So do those of an operator's other forms: into memory given as `out`, in place, and, for
    a function of torch tensors, without gradients, in forward mode if it has its own, by the gradient of one input or output at a
    time, and through one graph again.
    """

    name = "purity"
    finds_leaks = True
    share = 0.4
    order = 70

    def surroundings(self) -> AbstractContextManager[None]:
        return controlled()

    def observe(self, context: CheckContext) -> PurityObservation:
        return PurityObservation(
            BothDirections(
                _observe(context, Direction.FORWARD, "primal", context.domain, context.forward),
                _observe(context, Direction.ADJOINT, "dual", context.codomain.dual, context.adjoint),
            ),
            context.arithmetic.tolerance,
        )

    def judge(self, spaces: Spaces, observations: Sequence[PurityObservation]) -> Verdict:
        first, *_ = observations
        for direction, space, seen in spaces.outputs(each.directions for each in observations):
            for rank, one in enumerate(seen):
                if one.changed:
                    only = [("only", one.changed_by)] if one.changed_by else []
                    only += [RESTORED] if one.is_restored else []
                    return incoherent(f"{direction} writes into its argument", ("rank", str(rank)), *only)
            # Only of the plain outputs: a NaN in the others may come from the guard zones or fresh memory, and the comparisons
            # below find and name that.
            if verdict := not_finite_verdict(direction, space, [one.plain for one in seen]):
                return verdict
            argument = spaces.domain if direction is Direction.FORWARD else spaces.codomain
            if verdict := _of_circumstances(direction, space, seen, first.tolerance, argument):
                return verdict
            if verdict := _of_forms(direction, space, seen, first.tolerance):
                return verdict
        return coherent()

    def schedule_invariants(
        self, spaces: Spaces, observations: Sequence[PurityObservation]
    ) -> Mapping[str, ScheduleInvariant]:
        first, *_ = observations
        standard = (
            BothDirections(*(one.outputs[one.standard] for one in each.directions)) for each in observations
        )
        return spaces.element_results(standard, first.tolerance)


def _of_circumstances(
    direction: Direction,
    space: Space,
    seen: Sequence[DirectionOutputs],
    tolerance: Tolerance,
    argument: Space,
) -> Verdict | None:
    first, *_ = seen
    standard, *others = first.outputs
    expected = [one.outputs[standard] for one in seen]
    # First of all: if the same circumstance gives different values, no circumstance is to blame.
    again = [_without_equal_nans(one.again, before) for one, before in zip(seen, expected, strict=True)]
    first_call = [_without_equal_nans(before, one.again) for one, before in zip(seen, expected, strict=True)]
    if difference := first_difference(space, again, first_call, tolerance):
        headline = f"{direction} changes its result from call to call"
        return difference.verdict(headline, "a later call", "first call", _FROM_CALL_TO_CALL)
    for circumstance in others:
        found = [one.outputs[circumstance] for one in seen]
        if (difference := first_difference(space, found, expected, tolerance)) is None:
            continue
        names = str(circumstance), str(standard)
        orders = {circumstance.order, standard.order}
        if len(orders) > 1 and (orders != set(ORDERS[:2]) or _has_orders(argument)):
            headline = f"{direction} depends on where its argument lies in memory"
            return difference.verdict(headline, *names, hint=_STRIDES)
        headline = f"{direction} reads uninitialised memory"
        if _may_be_fresh_memory(space, difference):
            return difference.verdict(headline, *names)
        headline += ", or changes its result from call to call"
        return difference.verdict(headline, *names, _NOT_FROM_MEMORY)
    return None


def _without_equal_nans(local: Local, other: Local) -> Local:
    """Return `local` with zeros where both have NaN: in the same circumstance fresh memory holds NaN in every call."""
    return tuple(
        np.where(np.isnan(one) & np.isnan(two), 0, one) if one.shape == two.shape else one
        for one, two in zip(local, other, strict=True)
    )


def _has_orders(argument: Space) -> bool:
    """Return True if row- and column-major order differ for some rank's tensor: two of its sides are above 1."""
    shapes = (
        tensor.layout.local_shape(rank)
        for tensor in argument.tensors
        for rank in tensor.layout.partition.ranks
    )
    return any(sum(side > 1 for side in shape) > 1 for shape in shapes)


def _may_be_fresh_memory(space: Space, difference: Difference) -> bool:
    """Return True if a value is NaN, which arithmetic propagates from fresh memory, or may come from integers, which have no NaN."""
    has_integers = any(tensor.element.is_integer for tensor in space.tensors)
    return has_integers or "nan" in f"{difference.actual} {difference.expected}"


def _of_forms(
    direction: Direction, space: Space, seen: Sequence[DirectionOutputs], tolerance: Tolerance
) -> Verdict | None:
    first, *_ = seen
    for form in first.forms:
        difference = first_difference(
            space, [one.forms[form] for one in seen], [one.outputs[one.standard] for one in seen], tolerance
        )
        if difference is not None:
            plain = plain_form(form)
            name = plain.removeprefix("in ")
            return incoherent(
                f"{direction} {form} gives something else than {plain}",
                ("element", difference.where),
                (name, difference.expected),
                (form, difference.actual),
                evidence=difference.evidence(form, name),
            )
        for rank, one in enumerate(seen):
            if form in one.returned_elsewhere:
                return incoherent(
                    f"{direction} {form} returns something else than that memory", ("rank", str(rank))
                )
    return None


def _observe(
    context: CheckContext,
    direction: Direction,
    side: Side,
    space: Space,
    apply: Callable[..., tuple[Array, ...]],
) -> DirectionOutputs:
    bound = context.arithmetic.integers()

    def applied(circumstance: Circumstance) -> tuple[tuple[Placed, ...], tuple[Array, ...]]:
        placed = context.placed(space, side, 0, bound, order=circumstance.order)
        with filled(float(circumstance.fill)):
            return placed, apply([entry.view for entry in placed])

    outputs: dict[Circumstance, Local] = {}
    written: list[Placed] = []
    # Two fills: a number shows a read that NaN does not (np.fmax ignores NaN), and NaN shows one whose error with the number
    # is within the tolerance.
    for order, fill in product(dict.fromkeys((context.setting.order(side), ORDERS[0])), FILLS):
        circumstance = Circumstance(order, f"{fill:g}")
        placed, result = applied(circumstance)
        outputs[circumstance] = context.numpy(result)
        written += [entry for entry in placed if not entry.unchanged]
    again = context.numpy(applied(next(iter(outputs)))[1])
    changed_by = ""
    forms = other_forms(
        context.operator, direction, [entry.view for entry in placed], result, context.forms_left_out
    )
    if not written and (written := [entry for entry in placed if not entry.unchanged]):
        changed_by = " or ".join(form.name for form in forms if form.is_applied)
    argument = [entry.view for entry in context.placed(space, side, 0, bound, order=ORDERS[0])]
    with filled(FILLS[1]):
        plain = apply(argument, context.fresh())
    return DirectionOutputs(
        bool(written),
        changed_by,
        all(entry.is_restored for entry in written),
        outputs,
        again,
        {form.name: context.numpy(form.result) for form in forms},
        tuple(form.name for form in forms if not form.is_returned),
        context.numpy(plain),
    )


PURITY = PurityCheck()
