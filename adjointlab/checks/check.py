"""The interface of a check, an observation on every rank and one judgement of all observations; and the registry of checks.

To add a check, write a module in this package that defines a subclass of :class:`Check` and an instance of it, at module
level. :func:`all_checks` finds the instance; nothing else has to list it.
"""

from __future__ import annotations

import math
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import adjointlab.checks
from adjointlab.checks.context import CheckContext, InputSetting
from adjointlab.checks.elements import Local, Tolerance
from adjointlab.checks.hints import Hint, memory_order_hint, mixed_orders_hint
from adjointlab.checks.memory_orders import MIXED_ORDERS, ORDERS, unmixed
from adjointlab.checks.schedule_invariant import ElementResult, ScheduleInvariant
from adjointlab.checks.verdict import Verdict
from adjointlab.core.operator import Direction
from adjointlab.core.space import Space, Tensor
from adjointlab.spelling import did_you_mean

__all__ = [
    "AnyCheck",
    "BothDirections",
    "Check",
    "CheckedSubject",
    "DirectedSpaces",
    "ObservationT",
    "Spaces",
    "all_checks",
    "check_named",
    "checks_of",
]

T = TypeVar("T")
ObservationT = TypeVar("ObservationT")


class BothDirections(NamedTuple, Generic[T]):
    """The same thing for forward and for adjoint, in the order of :meth:`Spaces.directions`."""

    forward: T
    adjoint: T


class DirectedSpaces(NamedTuple):
    """A direction, and the spaces that the operator maps between in it."""

    direction: Direction
    source: Space
    target: Space


@dataclass(frozen=True)
class Spaces:
    """Spaces that the operator of a case declares."""

    domain: Space
    codomain: Space

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors of the domain, then those of the codomain."""
        return (*self.domain.tensors, *self.codomain.tensors)

    @property
    def mixed(self) -> bool:
        """True if some tensors are real and others complex, so that the pairing is the real part."""
        return len({tensor.element.is_complex for tensor in self.tensors}) > 1

    def directions(self) -> BothDirections[DirectedSpaces]:
        """F maps the domain to the codomain, F* the codomain's dual to the domain's dual."""
        return BothDirections(
            DirectedSpaces(Direction.FORWARD, self.domain, self.codomain),
            DirectedSpaces(Direction.ADJOINT, self.codomain.dual, self.domain.dual),
        )

    def outputs(self, observed: Iterable[BothDirections[T]]) -> Iterator[tuple[Direction, Space, list[T]]]:
        """Each direction, the space of its outputs, and the observations of all ranks."""
        for spaces, ranks in zip(self.directions(), zip(*observed, strict=True), strict=True):
            yield spaces.direction, spaces.target, list(ranks)

    def element_results(
        self, observed: Iterable[BothDirections[Local]], tolerance: Tolerance
    ) -> Mapping[str, ScheduleInvariant]:
        """Outputs of both directions as results that no schedule may change."""
        return {name: ElementResult(space, local, tolerance) for name, space, local in self.outputs(observed)}


class CheckedSubject(Protocol):
    """Properties of a subject by which a check decides whether it applies."""

    @property
    def is_layer(self) -> bool: ...
    @property
    def twice_differentiable(self) -> bool: ...
    @property
    def takes_steps(self) -> bool: ...
    @property
    def has_specification(self) -> bool: ...
    @property
    def reference(self) -> object: ...


class Check(ABC, Generic[ObservationT]):
    """One question about an operator or a layer.

    `observe` runs on every rank of a case and returns data, which is pickled if ranks are processes. `judge` runs in
    one place and gets the observations of all ranks, in rank order. So a check needs no communication for its verdict. If the ranks
    have to agree on something earlier, such as a bound on sums or the available forms of an operator, they communicate,
    collectively; the worlds recognise these calls as the lab's by the place of the call.

    A check has no state. Names are for users, who type and read them; code refers to a check by its object.
    """

    name: ClassVar[str]

    order: ClassVar[int | None] = None
    """Position among the checks of a subject, lowest first; `None` for a check that runs only on request, as the
    follow-up of another one or by its own command."""

    varies_values: ClassVar[bool] = False
    """True if the inputs of a layer may have values of all :data:`~adjointlab.checks.context.INPUT_VALUES`."""

    goes_back: ClassVar[bool] = True
    """False if it never applies the adjoint or runs a backward pass, so that messages sent only there are missing."""

    finds_leaks: ClassVar[bool] = False
    """True if it reports communicators that each call leaks. A single check does, so that leaks do not hide the verdicts of the others."""

    share: ClassVar[float] = 1.0
    """Fraction of the requested cases that the check draws: less than 1 if a few cases find almost all that it can find (docs/power.md)."""

    def cases_of(self, asked: int, subject: CheckedSubject) -> int:
        """The number of cases of `subject` that the check draws if `asked` are requested for every check."""
        return math.ceil(self.share * asked)

    @abstractmethod
    def observe(self, context: CheckContext) -> ObservationT:
        """Exercise the operator on this rank. Collective: every rank makes the same calls."""

    @abstractmethod
    def judge(self, spaces: Spaces, observations: Sequence[ObservationT]) -> Verdict:
        """Conclude from the observations of all ranks. Raises `Inapplicable` if they allow no conclusion."""

    def applies_to(self, subject: CheckedSubject) -> bool:
        """Return True if the subject has what the check compares; by default, if it is a linear operator."""
        return not subject.is_layer

    def follow_up(self) -> AnyCheck | None:
        """Check that explains a failure of this one; it runs once, on the smallest failing case."""
        return None

    def explained(self, verdict: Verdict, answer: Verdict | None) -> Verdict:
        """Failing `verdict`, together with the `answer` of the follow-up; `None` if that was inapplicable."""
        return verdict

    def premise(self) -> AnyCheck | None:
        """Check of an assumption of this one; if it fails on the same case, a failure of this one reports that."""
        return None

    def plainer_settings(self, setting: InputSetting) -> Iterator[tuple[Hint, InputSetting]]:
        """Settings that are simpler in one respect, each with the hint on a fault that vanishes with it."""
        unusual = [order for order in setting.orders if order != ORDERS[0]]
        if any(order in MIXED_ORDERS for order in unusual):
            primal, dual = map(unmixed, setting.orders)
            yield mixed_orders_hint(unusual), replace(setting, primal_order=primal, dual_order=dual)
        if unusual:
            yield memory_order_hint(unusual), replace(setting, primal_order=ORDERS[0], dual_order=ORDERS[0])

    def is_of_own_part(
        self, observations: Sequence[ObservationT], others: Sequence[ObservationT], rank: int
    ) -> bool | None:
        """Return True if the wrong results on `rank` are the same in both runs and should not be, `None` if that cannot be told.

        In the second run the arguments have other values wherever `rank` does not hold them.
        """
        return None

    def schedule_invariants(
        self, spaces: Spaces, observations: Sequence[ObservationT]
    ) -> Mapping[str, ScheduleInvariant]:
        """Results, by name, that depend on the case only, not on the order in which the ranks' messages arrive.

        Runs of the same case under other schedules must agree on them.
        """
        return {}

    def surroundings(self) -> AbstractContextManager[None]:
        """Context manager that every process enters around all cases of this check."""
        return nullcontext()


AnyCheck: TypeAlias = Check[Any]
"""A check with any type of observation: the engine passes observations on without looking into them."""

# The registry


@cache
def all_checks() -> Mapping[str, AnyCheck]:
    """All checks by name, found by importing the modules of this package; those that run on request come last."""
    package = adjointlab.checks
    found: dict[str, AnyCheck] = {}
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for value in vars(import_module(module.name)).values():
            # A module that imports the check of another has the same object among its variables.
            if isinstance(value, Check) and found.setdefault(value.name, value) is not value:
                raise TypeError(f"two checks are called {value.name!r}; the second is in {module.name}")
    on_request = [check for check in found.values() if check.order is None]
    ordinary = [check for check in found.values() if check.order is not None]
    # By name if two have the same position, so that the order does not depend on the file system.
    ordinary.sort(key=lambda check: (check.order, check.name))
    return MappingProxyType({check.name: check for check in (*ordinary, *on_request)})


def check_named(name: str) -> AnyCheck:
    """Return the check called `name`. Raises `ValueError` that lists the ones that users may request."""
    try:
        return all_checks()[name]
    except KeyError:
        known = ", ".join(check.name for check in all_checks().values() if check.order is not None)
        raise ValueError(
            f"check: {name!r} is not one of {known}{did_you_mean(str(name), known.split(', '))}"
        ) from None


def checks_of(subject: CheckedSubject, only: Collection[str] | None = None) -> tuple[str, ...]:
    """Names of the checks that apply to a subject, in order; limited to those in `only`, if it is given."""
    asked = [check for check in all_checks().values() if check.order is not None]
    return tuple(
        check.name for check in asked if (only is None or check.name in only) and check.applies_to(subject)
    )
