"""A retry of the failing case tells of a fault what it needs, and nothing of its neighbour that does not need it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.check import check_named
from adjointlab.checks.context import InputSetting
from adjointlab.checks.declarations import declaration_hint
from adjointlab.checks.hints import FaultKind, scaled_alike_hint
from adjointlab.checks.told import hints_told
from adjointlab.checks.verdict import Verdict
from adjointlab.core.vectors import Draw, local_values
from adjointlab.engine.case import Case
from adjointlab.engine.case_body import body
from adjointlab.engine.even_cuts import Cuts, has_uneven_cuts, with_cuts
from adjointlab.engine.retries import with_hints_of_retries
from adjointlab.engine.run_case import run_case, with_follow_up
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject
from adjointlab.worlds.world import Runner
from tests.planted import halos, layers, parallel_layers, reductions
from tests.planted.fault_kinds import MAY_BE_NAMED
from tests.planted.recreated import table
from tests.planted.right_operators import GatherToAll, cut, unchanged
from tests.planted.right_operators import with_cuts as cuts_drawn

pytestmark = pytest.mark.mpi_skip

BUGS = {
    bug.bug: bug
    for bug in (*reductions.PLANTED, *halos.PLANTED, *table.FAULTS, *layers.PLANTED, *parallel_layers.PLANTED)
}


def kinds_told(world: al.SimulatedWorld, subject: Subject, check: str, cases: int = 40) -> set[FaultKind]:
    verdict = investigate(world, subject, check, Budget(cases, 3, seed=1, shrinking=0.5)).verdict
    assert not verdict.is_coherent
    return {hint.kind for hint in hints_told(verdict)}


def test_every_planted_bug_says_which_kinds_may_be_named() -> None:
    assert set(MAY_BE_NAMED) == set(BUGS)


# The square root of the number of ranks


class Scaled(GatherToAll):
    """A gather whose directions are multiplied by powers of the number of ranks."""

    powers = (-0.5, -0.5)

    def forward(self, x: Any) -> Any:
        return super().forward(x) * self.size ** self.powers[0]

    def adjoint(self, y: Any) -> Any:
        return super().adjoint(y) * self.size ** self.powers[1]


class ScaledForward(Scaled):
    """The neighbour whose forward alone is scaled."""

    powers = (-0.5, 0.0)


class ScaledByRanks(Scaled):
    """The neighbour that is scaled by the number of ranks, not by its root."""

    powers = (-1.0, -1.0)


@pytest.mark.parametrize(
    ("operator", "kinds"),
    [
        (Scaled, {FaultKind.BY_ROOT}),
        (ScaledForward, set()),
        (ScaledByRanks, {FaultKind.HALVED}),  # shrunk to two ranks
    ],
)
def test_a_root_is_told_where_both_directions_have_it(
    world: al.SimulatedWorld, operator: type[Scaled], kinds: set[FaultKind]
) -> None:
    subject = al.subject(operator, reference=unchanged)(cuts_drawn)
    assert kinds_told(world, subject, "sequential") == kinds


@pytest.mark.parametrize(
    ("factors", "size", "kind"),
    [
        ((math.sqrt(2), math.sqrt(2)), 2, FaultKind.TIMES_ROOT),
        ((1 / math.sqrt(3), 1 / math.sqrt(3)), 3, FaultKind.BY_ROOT),
        ((math.sqrt(2), 1.0), 2, None),
        ((1 / math.sqrt(2), math.sqrt(2)), 2, None),
        ((2.0, 2.0), 4, None),
        ((1.41, 1.41), 2, None),
    ],
)
def test_both_matrices_have_the_same_root_as_their_factor(
    factors: tuple[float, float], size: int, kind: FaultKind | None
) -> None:
    due = np.arange(6.0).reshape(2, 3)
    hint = scaled_alike_hint((factors[0] * due, due), (factors[1] * due, due), size)
    assert (None if hint is None else hint.kind) is kind


# Cuts


def case_of(parameters: dict[str, Any]) -> Case:
    return Case("s", "adjoint", 3, parameters, InputSetting(), 0)


@pytest.mark.parametrize(
    ("cuts", "ends"),
    [
        (Cuts.EVEN, (0, 2, 4, 6)),
        (Cuts.LONGER, (0, 3, 6, 9)),
        (Cuts.MOVED, (0, 1, 4, 6)),
        (Cuts.WITH_EMPTY, (0, 3, 3, 6)),
    ],
)
def test_cuts_in_parameters_become_even_or_uneven_ones(cuts: Cuts, ends: tuple[int, ...]) -> None:
    spaces = [al.Space(cut((2, 5), (0, 1, 1, 2), "float64"))]
    given: list[dict[str, Any]] = [
        {"shape": (2, 5), "ends": (0, 1, 1, 2), "width": 5},
        {"shape": [2, 5], "ends": [[0, 1, 1, 2], [0, 5]], "width": 5},
        {"layout": spaces[0].tensors[0].layout},
    ]
    first, second, third = (with_cuts(case_of(each), spaces).get(cuts) for each in given)
    assert first is not None
    assert first.parameters == {"shape": (ends[-1], 5), "ends": ends, "width": 5}
    assert second is not None
    assert second.parameters == {"shape": [ends[-1], 5], "ends": [list(ends), [0, 5]], "width": 5}
    assert third is not None
    layout = third.parameters["layout"]
    assert (layout.shape, layout.ends(0)) == ((ends[-1], 5), ends)
    assert has_uneven_cuts([al.Space(layout)]) is (cuts not in (Cuts.EVEN, Cuts.LONGER))


@pytest.mark.parametrize(
    ("cuts", "ends"), [(Cuts.EVEN, (0, 2, 4, 6)), (Cuts.MOVED, (0, 1, 4, 6)), (Cuts.WITH_EMPTY, (0, 3, 3, 6))]
)
def test_a_whole_tensor_of_the_shape_stays_whole(cuts: Cuts, ends: tuple[int, ...]) -> None:
    spaces = [al.Space(cut((2,), (0, 1, 1, 2), "float64"))]
    whole = al.Layout((2,), al.Partition((3,)), axes=(None,))
    other = with_cuts(case_of({"layout": spaces[0].tensors[0].layout, "whole": whole}), spaces).get(cuts)
    assert other is not None
    assert other.parameters["layout"].ends(0) == ends
    assert other.parameters["whole"] == al.Layout((6,), al.Partition((3,)), axes=(None,))


def test_balanced_cuts_that_no_parameter_says_follow_from_the_side() -> None:
    spaces = [al.Space(al.Layout((3, 2), al.Partition((2, 1))))]
    case = case_of({"input_shape": (3, 2), "partition": al.Partition((2, 1))})
    even, moved = (with_cuts(case, spaces).get(cuts) for cuts in (Cuts.EVEN, Cuts.MOVED))
    assert even is not None
    assert even.parameters["input_shape"] == (4, 2)
    assert moved is not None
    assert moved.parameters["input_shape"] == (5, 2)


def test_where_parameters_do_not_say_the_cut_there_is_no_other_case() -> None:
    spaces = [al.Space(cut((2,), (0, 1, 1, 2), "float64"))]
    assert with_cuts(case_of({"rows": 2}), spaces).get(Cuts.EVEN) is None


class LosesTheLastPart(GatherToAll):
    """The neighbour of a shard that is dropped for an uneven cut: it is dropped for every cut."""

    def adjoint(self, y: Any) -> Any:
        rows = super().adjoint(y)
        return np.zeros_like(rows) if self.rank == self.size - 1 > 0 else rows


class DoublesBesideEmptyParts(GatherToAll):
    """Doubles the result where a part is empty."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) * (1 if all(self.sizes) else 2)


@pytest.mark.parametrize(
    ("operator", "kinds"),
    [
        (reductions.UnevenShardDropped, {FaultKind.UNEVEN}),
        (LosesTheLastPart, set()),
        (DoublesBesideEmptyParts, {FaultKind.EMPTY}),
    ],
)
def test_faults_that_need_uneven_cuts_or_empty_parts_are_told_apart(
    world: al.SimulatedWorld, operator: type[GatherToAll], kinds: set[FaultKind]
) -> None:
    subject = al.subject(operator, reference=unchanged)(cuts_drawn)
    told = kinds_told(world, subject, "adjoint", cases=20)
    assert told & {FaultKind.UNEVEN, FaultKind.EMPTY} == kinds


# Layers


LINEAR = {
    "partition": al.Partition((1, 1)),
    "input_shape": (1,),
    "in_features": 1,
    "out_features": 1,
    "bias": False,
    "dtype": "float64",
}
CONVOLUTION = {
    "dims": 1,
    "partition": al.Partition((1, 1, 1, 2)),
    "input_shape": (1, 1, 2),
    "in_channels": 1,
    "out_channels": 1,
    "kernel_size": (1,),
    "stride": (1,),
    "padding": ((0, 0),),
    "dilation": (1,),
    "groups": 1,
    "bias": True,
    "padding_mode": "zeros",
    "dtype": "float64",
}
NORM = {
    "partition": al.Partition((2,)),
    "input_shape": (2,),
    "normalized_shape": (2,),
    "eps": 1e-5,
    "elementwise_affine": False,
    "dtype": "float64",
}
BATCH_NORM = {
    "partition": al.Partition((1, 1, 2)),
    "input_shape": (2, 1, 1),
    "num_features": 1,
    "eps": 1e-5,
    "momentum": 0.1,
    "affine": False,
    "track_running_stats": False,
    "bias": False,
    "dtype": "float64",
    "training": False,
}
APART, TOGETHER, ACCUMULATED = 3, 12, 9
"""Keys of plans in which all require a gradient: passes apart, forward together, and with gradients that were there before."""


def of_case(
    world: al.SimulatedWorld, name: str, parameters: dict[str, Any], setting: InputSetting
) -> set[FaultKind]:
    """The kinds that are told of a planted bug in a small case."""
    bug = BUGS[name]
    partition = parameters["partition"]
    case = Case(bug.subject.name, bug.check, partition.size, parameters, setting, 0)

    def conduct(run: Runner) -> Verdict:
        judgement = run_case(run, case)
        assert judgement is not None
        assert not judgement.verdict.is_coherent
        explained = with_follow_up(run, case, judgement.verdict)
        return with_hints_of_retries(run, case, explained, bug.subject, may_change_parameters=True)

    with check_named(bug.check).surroundings():
        verdict = world.lead(body(bug.subject), conduct, bug.subject.location)
    return {hint.kind for hint in hints_told(verdict)}


@pytest.mark.parametrize(
    ("bug", "parameters", "setting", "kinds"),
    [
        ("bias gradient not summed", CONVOLUTION, InputSetting(APART, "torch"), {FaultKind.OWN_PART}),
        ("weight gradient averaged", CONVOLUTION, InputSetting(APART, "torch"), {FaultKind.HALVED}),
        ("root mean square of the own part", NORM, InputSetting(APART, "torch"), {FaultKind.OWN_PART}),
        ("variance averaged over uneven parts", BATCH_NORM, InputSetting(APART, "torch"), {FaultKind.UNEVEN}),
        ("input saved on the module", LINEAR, InputSetting(TOGETHER, "torch"), {FaultKind.KEPT}),
        ("accumulated gradient lost", LINEAR, InputSetting(ACCUMULATED, "torch"), {FaultKind.ACCUMULATED}),
        (
            "cotangent taken for contiguous",
            LINEAR | {"input_shape": (2, 1), "out_features": 2, "partition": al.Partition((1, 1, 1))},
            InputSetting(APART, "torch", dual_order="column-major"),
            {FaultKind.STRIDES},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fault_of_a_layer_is_told_and_none_of_its_neighbours(
    world: al.SimulatedWorld,
    bug: str,
    parameters: dict[str, Any],
    setting: InputSetting,
    kinds: set[FaultKind],
) -> None:
    assert of_case(world, bug, parameters, setting) == kinds
    assert kinds <= MAY_BE_NAMED[bug]


@pytest.mark.parametrize("kind", ["varying", "replicated"])
def test_values_beyond_a_rank_change_where_it_does_not_hold_them(kind: str) -> None:
    partition = al.Partition((2, 2))
    layout = al.Layout((5,), partition, [((0, 3), (2, 5))], axes=[0])
    space = al.Space(al.Tensor(layout, types=(al.LocalType.VARYING, al.LocalType(kind))))
    draw, beyond = (Draw(1, 0, "primal", 2**20, beyond=each) for each in (None, (0, 2)))
    same = [local_values(space, 0, r, draw) == local_values(space, 0, r, beyond) for r in range(4)]
    shared = kind == "replicated"
    assert same[0].all()
    assert same[1].tolist() == [shared] * 3  # another copy of what rank 0 holds
    assert not same[2].any()
    assert not same[3].any()


# Declarations


def test_other_types_are_tried_of_one_of_several_tensors() -> None:
    copies = al.Layout((1,), al.Partition((2,)), axes=[None])
    x = al.Tensor(copies, name="x")
    y, z = (al.Tensor(copies, name=name) for name in "yz")
    # The sum of both copies of x, on both ranks, is y; z is x. The adjoint takes y for invariant.
    forward = np.vstack([np.ones((2, 2)), np.eye(2)])
    adjoint = np.vstack([np.eye(2), np.eye(2)])
    assert declaration_hint(al.Space(x), al.Space(y, z), forward, adjoint) == "y were declared invariant"
    neither = np.vstack([np.eye(2), 2 * np.eye(2)])
    assert declaration_hint(al.Space(x), al.Space(y, z), forward, neither) == ""
    assert declaration_hint(al.Space(x), al.Space(y, z), forward, forward) == ""
