"""Collectives that do not match are reported with both calls and their lines, even where MPI accepts them.

``mpiexec -n 3 python -m pytest tests/worlds/mpi_world/test_mismatches.py``
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.worlds.launch import is_launched
from adjointlab.worlds.run import Blocked
from tests.worlds.mpi_world.worlds import opened

pytestmark = pytest.mark.skipif(
    not is_launched(), reason="processes of MPI are needed: run under mpiexec -n 3"
)


@pytest.fixture(scope="module", params=[False, True], ids=["at the end", "strict"])
def world(request):
    with opened(patience=0.4, strict=request.param, least=2) as world:
        world.is_strict = request.param
        yield world


def reduced(comm, op=MPI.SUM, dtype="float64", count=3):
    comm.Allreduce(np.ones(count, dtype), np.empty(count, dtype), op)


def on_everyone(call):
    """The call on mpi4py's COMM_WORLD, which means the communicator of the run in a run."""

    def on_comm_world(comm):
        from mpi4py import MPI as mpi4py

        call(mpi4py.COMM_WORLD)

    return on_comm_world


def gathered_by_all(comm, own):
    comm.Allgatherv(own, [np.empty(2 * comm.size + 1), [2] * comm.size])


def gathered(comm, counts):
    own = np.ones(counts[comm.rank])
    comm.Gatherv(own, [np.empty(9), counts[: comm.size]] if comm.rank == 0 else None)


def scattered_sum(comm, counts):
    comm.Reduce_scatter(np.ones(sum(counts)), np.empty(counts[comm.rank]), counts)


def exchanged(comm, sent, received):
    comm.Alltoallv([np.ones(9), sent], [np.empty(9), received])


# What rank 0 does, and what the others do.
MISMATCHES = {
    "different collectives": (lambda comm: comm.Barrier(), reduced),
    "different collectives, an object's": (reduced, lambda comm: comm.allreduce(1)),
    "the roots differ: 0 and 1": (
        lambda comm: comm.Bcast(np.ones(3), 0),
        lambda comm: comm.Bcast(np.ones(3), 1),
    ),
    "the roots differ: 1 and 0": (
        lambda comm: comm.bcast("word", root=1),
        lambda comm: comm.bcast("word", root=0),
    ),
    "the operations differ: SUM and MAX": (reduced, lambda comm: reduced(comm, MPI.MAX)),
    "the operations differ: SUM and MIN": (
        on_everyone(reduced),
        on_everyone(lambda comm: reduced(comm, MPI.MIN)),
    ),
    "different collectives, of makers": (
        lambda comm: comm.Create(comm.group),
        lambda comm: comm.Create(comm.group.Incl([1])),
    ),
    "the datatypes differ: float64 and int64": (reduced, lambda comm: reduced(comm, dtype="int64")),
    "the numbers of elements differ: 3 and 2": (reduced, lambda comm: reduced(comm, count=2)),
    "the numbers of elements differ: (": (
        lambda comm: scattered_sum(comm, [2] * comm.size),
        lambda comm: scattered_sum(comm, [3, 1] + [2] * (comm.size - 2)),
    ),
    "rank 0 sends 3 elements to rank 1, which expects 2": (
        lambda comm: gathered_by_all(comm, np.ones(3)),
        lambda comm: gathered_by_all(comm, np.ones(2)),
    ),
    "rank 1 sends 2 elements to rank 0, which expects 1": (
        lambda comm: gathered(comm, [2, 1, *[2] * (comm.size - 2)]),
        lambda comm: gathered(comm, [2] * comm.size),
    ),
    "rank 0 sends 1 element to rank 1, which expects 2": (
        lambda comm: comm.Scatterv([np.ones(9), [2] + [1] * (comm.size - 1)], np.ones(2)),
        lambda comm: comm.Scatterv(None, np.ones(2)),
    ),
    "rank 0 sends 1 element to rank 1, which expects 2, of all to all": (
        lambda comm: exchanged(comm, [1] * comm.size, [1] * comm.size),
        lambda comm: exchanged(comm, [1] * comm.size, [2] * comm.size),
    ),
    "the datatypes differ: float64 and float32": (
        lambda comm: comm.Gatherv(np.ones(1), np.empty(comm.size)),
        lambda comm: comm.Gatherv(np.ones(2, "f"), None),
    ),
}


@pytest.mark.parametrize("why", MISMATCHES)
def test_a_mismatch_is_reported_with_both_calls_and_their_lines(world, why):
    first, second = MISMATCHES[why]
    run = world.run(lambda context, _: (first if context.rank == 0 else second)(context.comm))

    # Whether the library lets it pass, raises an error or waits: the report says what it is.
    mismatches = [finding for finding in run.findings if finding.kind == "mismatched collective"]
    assert len(mismatches) == 1, run
    text = mismatches[0].text
    assert why.partition(",")[0] in text
    assert re.search(rf"rank 0 calls \w+\(.*\) at {re.escape(__file__)}:\d+", text)
    assert re.search(rf"rank 1 calls \w+\(.*\) at {re.escape(__file__)}:\d+", text)


@pytest.mark.parametrize("why", MISMATCHES)
def test_a_strict_world_leaves_them_before_they_are_carried_out(world, why):
    first, second = MISMATCHES[why]
    if world.is_strict:
        run = world.run(lambda context, _: (first if context.rank == 0 else second)(context.comm))

        assert all(isinstance(outcome, Blocked) for outcome in run.outcomes)


def test_collectives_that_match_are_let_pass(world):
    def body(context, _):
        comm, rank = context.comm, context.rank
        total, part = np.empty(2), np.empty(1)
        comm.Allreduce(np.ones(2), total)
        comm.Allreduce(MPI.IN_PLACE, total)
        comm.Bcast([np.ones(3), MPI.DOUBLE] if rank == 0 else np.empty(3), root=0)
        comm.Reduce(np.ones(2), total if rank == 1 else None, MPI.MAX, 1)
        comm.Gather(MPI.IN_PLACE if rank == 0 else np.ones(2), np.ones(2 * comm.size) if rank == 0 else None)
        comm.Scatter(np.arange(float(comm.size)) if rank == 0 else None, part)
        comm.Allgather(part, np.empty(comm.size))
        comm.Alltoall(np.ones(comm.size), np.empty(comm.size))
        comm.Allgatherv(np.ones(rank), [np.empty(9), list(range(comm.size))])
        comm.Reduce_scatter_block(np.ones(comm.size), part)
        comm.Ibarrier().Wait()
        return comm.bcast(comm.allreduce(rank)), comm.Split(rank % 2).allgather(rank)

    assert world.run(body).completed


def test_crossed_collectives_are_reported_with_their_communicators(world):
    def body(context, _):
        one, other = context.comm, context.comm.Dup()
        third = context.comm.Dup()
        for comm in {0: (one, other), 1: (third, other)}.get(context.rank, (other, third)):
            comm.Barrier()

    run = world.run(body)
    reported = "\n".join(finding.text for finding in run.findings)
    everyone = " ".join(map(str, range(world.ranks)))
    assert re.search(r"rank 0 in Barrier\(\) at", reported), reported
    assert re.search(rf"rank 1 in Barrier\(comm=ranks {everyone} #2\) at", reported), reported


def test_groups_that_differ_are_reported_both(world):
    def body(context, _):
        comm = context.comm
        comm.Create(comm.group.Incl([0, 1] if context.rank == 0 else [1]))

    run = world.run(body)
    assert [finding.kind for finding in run.findings] == ["mismatched collective"], run
    assert "rank 0 calls Create(group=[0, 1]) at" in run.findings[0].text
    assert "rank 1 calls Create(group=[1]) at" in run.findings[0].text


def test_edges_of_a_graph_that_one_end_alone_names_are_reported_with_both_lists(world):
    def body(context, _):
        context.comm.Create_dist_graph_adjacent([], [1] if context.rank == 0 else [])

    run = world.run(body)
    assert [finding.kind for finding in run.findings] == ["mismatched collective"], run
    assert "rank 0 calls Create_dist_graph_adjacent(sources=[], destinations=[1]) at" in run.findings[0].text
    assert "rank 1 calls Create_dist_graph_adjacent(sources=[], destinations=[]) at" in run.findings[0].text


def test_the_first_collective_that_was_called_from_different_lines_is_named(world):
    def one_too_many(context, _):
        if context.rank == 0:
            context.comm.Barrier()
        context.comm.Barrier()

    run = world.run(one_too_many)
    (finding,) = run.findings
    line = one_too_many.__code__.co_firstlineno + 2
    assert "in collective 2, only some ranks take part" in finding.text
    assert f"collective 1 was called from different places: rank 0 at {__file__}:{line}; " in finding.text
