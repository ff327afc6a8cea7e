"""The enumerations list what they say, a reduced bound of each primitive is proved, and planted bugs are found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.verdict import Status
from adjointlab.core.partition import Partition
from adjointlab.engine.case_body import body
from adjointlab.engine.discovery import Found, find
from adjointlab.engine.exhaust import exhaust
from adjointlab.engine.listed_cases import Bound, bound_of, every_case
from adjointlab.engine.run_case import run_case
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject
from adjointlab.primitives.all_gather import AllGather
from adjointlab.primitives.halo_exchange import HaloExchange
from adjointlab.primitives.halo_exchange_in_place import HaloExchangeInPlace
from adjointlab.primitives.repartition import Repartition
from adjointlab.primitives.subjects import building_blocks
from adjointlab.primitives.subjects import installed as subjects
from adjointlab.worlds.simulated.world import SimulatedWorld

PRIMITIVES = [
    found for found in find(["adjointlab.primitives.subjects.installed"]) if found.subject.every is not None
]

REDUCED = {"ranks": 2, "order": 2, "side": 2, "kernel": 2, "stride": 1, "dilation": 1}
HALOS = {"side": 1, "free": 1, "side2": 1, "side3": 1, "ring2": 1}
FURTHER = {
    "HaloExchange": HALOS,
    "HaloExchangeInPlace": HALOS,
    "Redistribute": {"order": 1},
    "Repartition": {"side": 1},
}
"""For those that list very many cases."""


def reduced(subject: Subject) -> Bound:
    return bound_of(subject, {**REDUCED, **FURTHER.get(subject.name, {})})


@pytest.mark.parametrize("found", PRIMITIVES, ids=lambda found: found.subject.name)
def test_a_reduced_bound_is_proved(found: Found) -> None:
    bound = reduced(found.subject)
    report = exhaust(found.subject, found.reference, bound, jobs=1)
    assert report.status is Status.COHERENT, report.verdict
    assert report.tried == len(list(every_case(found.subject, bound)))


def test_every_primitive_lists_its_cases() -> None:
    every = {found.subject.name for found in find(["adjointlab.primitives.subjects.installed"])}
    assert {found.subject.name for found in PRIMITIVES} == every


@pytest.mark.parametrize("found", PRIMITIVES, ids=lambda found: found.subject.name)
def test_no_case_is_listed_twice(found: Found) -> None:
    keys = [
        (case.ranks, repr(sorted(case.parameters.items())))
        for case in every_case(found.subject, reduced(found.subject))
    ]
    assert len(keys) == len(set(keys))


def test_all_cuts_are_listed() -> None:
    assert sorted(building_blocks.cuts(2, 3)) == [(0, a, b, 2) for a in range(3) for b in range(a, 3)]
    assert list(building_blocks.cuts(0, 2)) == [(0, 0, 0)]


def test_all_windows_are_listed() -> None:
    listed = list(building_blocks.windows(2, 1))
    assert len(listed) == len(set(listed))
    assert set(listed) == {(0, 0)} | {(a, b) for a in range(-1, 3) for b in range(a + 1, 4)}


def test_all_cuts_of_all_shapes_over_a_grid_are_listed() -> None:
    # Sides 0, 1 and 2 over two workers: 1 + 2 + 3 cuts.
    layouts = list(building_blocks.layouts(Partition((2,)), 2))
    assert len(layouts) == 6
    assert len(list(building_blocks.layouts(Partition((2, 1)), 2))) == 6 * 3


# Bugs that show in few of the cases


class InOrderOfRanks(AllGather):
    """The gathered blocks lie in the order of the ranks, not of the partition, in both directions."""

    def forward(self, x: Any, out: Any = None) -> Any:
        y = super().forward(x, out)
        y[...] = self._taken(y, self._order())
        return y

    def adjoint(self, y: Any, out: Any = None) -> Any:
        return super().adjoint(self._taken(y, np.argsort(self._order())), out)

    def _order(self) -> Any:
        """The partition's indices along x, as the ranks lie."""
        layout = self.domain.tensors[0].layout
        windows = zip(layout.partition.ranks, layout.windows[0], strict=True) if layout.order == 1 else ()
        return [index for _, window in sorted(windows) for index in range(*window)]

    def _taken(self, y: Any, order: Any) -> Any:
        return y[np.asarray(order, int)] if len(order) == y.shape[0] else y


class DropsPeriodicCorners(HaloExchange):
    """Corners before the tensor in two periodic dimensions are zero, in both directions."""

    def forward(self, x: Any, out: Any = None) -> Any:
        return self._dropped(super().forward(x, out))

    def adjoint(self, y: Any, out: Any = None) -> Any:
        return super().adjoint(self._dropped(np.array(y)), out)

    def _dropped(self, y: Any) -> Any:
        window = self.codomain.tensors[0].layout.window(self.comm.Get_rank())
        if window is not None and len(self.geometry.periodic) == 2:
            y[tuple(slice(0, max(0, -start)) for start, _ in window)] = 0
        return y


class EverySummandIsTheSum(Repartition):
    """Of a tensor of order 2 all workers get what only one of those that hold summands should."""

    def __init__(self, comm: Any, layout: al.Layout, target: al.Layout, **types: Any) -> None:
        super().__init__(comm, layout, target, **types)
        given = types.get("target_types", ())
        if layout.order == 2 and "partial" in given:
            types["target_types"] = ["replicated" if kind == "partial" else kind for kind in given]
        self._wrong = Repartition(comm, layout, target, **types)

    def forward(self, x: Any, out: Any = None) -> Any:
        return self._wrong.forward(x, out)


class KeepsOldMemory(Repartition):
    """Cells that should be zero in `out` stay as they are."""

    def forward(self, x: Any, out: Any = None) -> Any:
        y = super().forward(x)
        if out is None:
            return y
        out[y != 0] = y[y != 0]
        return out


class DoesNothingInPlace(HaloExchangeInPlace):
    def forward_(self, x: Any) -> Any:
        return x


class LeavesTheHaloInPlace(HaloExchangeInPlace):
    """The halo is added to its owners' bulks, and not cleared."""

    def adjoint_(self, y: Any) -> Any:
        halo = np.array(y)
        bulk = self._bulk(y) if self._phases is not None else None
        super().adjoint_(y)
        kept = None if bulk is None else np.array(bulk)
        y[...] = halo
        if bulk is not None:
            bulk[...] = kept
        return y


def planted(kind: type[al.LinearOperator], right: Subject) -> Subject:
    return al.subject(kind, every=right.every)(right.draws)


FORWARD = "forward is not what its specification says"
PLANTED: list[tuple[Subject, dict[str, int], str]] = [
    (planted(InOrderOfRanks, subjects.all_gathers), {"ranks": 2, "order": 1}, FORWARD),
    (planted(DropsPeriodicCorners, subjects.halo_exchanges), {"ranks": 1, "kernel": 1, **HALOS}, FORWARD),
    (planted(EverySummandIsTheSum, subjects.repartitions), {"side": 1}, FORWARD),
    (
        planted(KeepsOldMemory, subjects.repartitions),
        {"ranks": 2},
        "forward into `out` gives a random vector another image than its matrix does",
    ),
    (
        planted(DoesNothingInPlace, subjects.halo_exchanges_in_place),
        {"ranks": 2},
        "forward in place gives a random vector another image than its matrix does",
    ),
    (
        planted(LeavesTheHaloInPlace, subjects.halo_exchanges_in_place),
        {"ranks": 2},
        "adjoint in place gives a random vector another image than its matrix does",
    ),
]


@pytest.mark.parametrize(
    ("subject", "bound", "headline"), PLANTED, ids=[subject.name for subject, _, _ in PLANTED]
)
def test_a_bug_that_shows_in_few_cases_is_among_them(
    subject: Subject, bound: dict[str, int], headline: str
) -> None:
    def first_failure(run: Any) -> str:
        for case in every_case(subject, bound_of(subject, bound)):
            outcome = run_case(run, case)
            assert outcome is not None
            if not outcome[0].is_coherent:
                return outcome[0].headline
        return "none"

    world = SimulatedWorld()
    try:
        assert world.lead(body(subject), first_failure) == headline
    finally:
        world.close()


@pytest.mark.parametrize("number", [3, 4, 5])
def test_a_wrong_form_is_found_by_the_purity_check_and_by_no_other(number: int) -> None:
    drawn = PLANTED[number][0]
    world = SimulatedWorld(4)
    # The others, which ask for no form, would not see it in more cases either.
    cases = dict.fromkeys(CHECKS, 15) | {"purity": 60}
    reports = {name: investigate(world, drawn, name, Budget(cases[name], seed=1)) for name in CHECKS}
    world.close()
    assert [name for name, report in reports.items() if report.status is not Status.COHERENT] == ["purity"]


CHECKS = ("adjoint", "matrix", "specification", "linearity", "declared", "purity", "reentrancy")
