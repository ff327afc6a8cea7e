"""The work of one rank does not grow with the number of ranks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from adjointlab.checks.context import InputSetting
from adjointlab.core.layout import Layout
from adjointlab.core.operator import LinearOperator
from adjointlab.core.partition import Partition
from adjointlab.engine.case import Case
from adjointlab.engine.case_body import body
from adjointlab.engine.run_case import run_case
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.halo_exchange import HaloExchange
from adjointlab.primitives.subjects.reductions import broadcasts
from adjointlab.primitives.sum_reduce import SumReduce
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.world import RankContext, Runner
from tests.instructions import instructions

FEW, MANY = 16, 256


def to_all(comm: Any) -> LinearOperator:
    return Broadcast(comm, Layout([4], Partition([1])), Partition([comm.size]))


def to_all_but_the_first(comm: Any) -> LinearOperator:
    return Broadcast(comm, Layout([4], Partition([1])), Partition([comm.size - 1], range(1, comm.size)))


def along_one_side_of_a_square(comm: Any) -> LinearOperator:
    side = math.isqrt(comm.size)
    return Broadcast(comm, Layout([side, 4], Partition([side, 1])), Partition([side, side]))


def each_to_itself(comm: Any) -> LinearOperator:
    return Broadcast(comm, Layout([comm.size], Partition([comm.size])), Partition([comm.size]))


def sum_of_all(comm: Any) -> LinearOperator:
    return SumReduce(comm, Layout([4], Partition([comm.size]), axes=[None]), Partition([1]))


def sum_of_all_for_all(comm: Any) -> LinearOperator:
    return AllSumReduce(comm, Layout([4], Partition([comm.size]), axes=[None]), [0])


def sums_of_rows(comm: Any) -> LinearOperator:
    side = math.isqrt(comm.size)
    return AllSumReduce(comm, Layout([side, 4], Partition([side, side]), axes=[0, None]), [1])


@cache
def _bulk_and_windows(*grid: int) -> tuple[Layout, Layout]:
    bulk = Layout([4 * side for side in grid], Partition(grid))
    wider = [[(start - 1, stop + 1) for start, stop in windows] for windows in bulk.windows]
    return bulk, Layout(bulk.shape, bulk.partition, wider)


def halos_in_a_ring(comm: Any) -> LinearOperator:
    return HaloExchange(comm, *_bulk_and_windows(comm.size), periodic=[0])


def halos_in_a_torus(comm: Any) -> LinearOperator:
    side = math.isqrt(comm.size)
    return HaloExchange(comm, *_bulk_and_windows(side, side), periodic=[0, 1])


def both_passes(context: RankContext, make: Callable[[Any], LinearOperator]) -> int:
    def work() -> None:
        operator = make(context.comm)
        (x,), (y,) = operator.domain.tensors, operator.codomain.tensors
        operator.forward(np.zeros(x.layout.local_shape(context.rank)))
        operator.adjoint(np.zeros(y.layout.local_shape(context.rank)))

    return instructions(work)


@pytest.mark.parametrize(
    "make",
    [
        to_all,
        to_all_but_the_first,
        along_one_side_of_a_square,
        each_to_itself,
        sum_of_all,
        sum_of_all_for_all,
        sums_of_rows,
        halos_in_a_ring,
        halos_in_a_torus,
    ],
)
def test_an_operator_and_its_passes_take_a_rank_as_many_steps_among_many_as_among_few(
    make: Callable[[Any], LinearOperator],
) -> None:
    world = SimulatedWorld(MANY)
    try:
        few, many = (
            # Some ranks do for all what is done once.
            statistics.median(world.run(both_passes, make, ranks).values)
            for ranks in (FEW, MANY)
        )
    finally:
        world.close()
    assert many <= 1.1 * few


@pytest.mark.parametrize("check", ["adjoint", "specification"])
def test_a_check_of_a_case_takes_a_rank_as_many_steps_among_many_as_among_few(check: str) -> None:
    observe = body(broadcasts)
    counts: list[int] = []

    def observe_counted(context: RankContext, case: Case) -> object:
        observations = []
        counts.append(instructions(lambda: observations.append(observe(context, case))))
        return observations[0]

    def per_rank(ranks: int) -> tuple[float, float]:
        """On a rank, and on the leader for each rank."""
        parameters = {"layout": Layout([4], Partition([1])), "partition": Partition([ranks])}
        case = Case("Broadcast", check, ranks, parameters, InputSetting(1), 0)
        counts.clear()

        def conduct(run: Runner) -> float:
            return instructions(lambda: run_case(run, case)) / ranks

        on_leader = world.lead(observe_counted, conduct)
        return statistics.median(counts), on_leader

    world = SimulatedWorld(MANY)
    try:
        few, many = (per_rank(ranks) for ranks in (FEW, MANY))
    finally:
        world.close()
    for least, most in zip(few, many, strict=True):
        assert most <= 1.1 * least
