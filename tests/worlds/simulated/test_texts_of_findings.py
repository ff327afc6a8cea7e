"""Calls that do not fit together are told with their communicator, themselves and their counts, in ranks of the run."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.worlds.run import Blocked, PeerFailed, Run
from adjointlab.worlds.simulated.world import SimulatedWorld

pytestmark = pytest.mark.mpi_skip

WORLD = SimulatedWorld(4)


def run(body: Callable[[Any], Any], ranks: int, seed: int = 0) -> Run:
    return WORLD.run(lambda context, _: body(context.comm), ranks=ranks, seed=seed)


def text_of(result: Run) -> str:
    """The text of the only finding, without its places."""
    (finding,) = result.findings
    return f"{finding.kind}: " + re.sub(r" at \S+:\d+", "", finding.text)


def on_odd_ranks(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def body(comm: Any) -> None:
        part = comm.Split(comm.rank % 2)
        if comm.rank % 2:
            call(part)

    return body


def after(count: int, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def body(comm: Any) -> None:
        for _ in range(count):
            comm.Barrier()
        call(comm)

    return body


def typed(*datatypes: Any) -> Any:
    return [np.ones(2), ([1, 1], [0, 8]), list(datatypes)]


# Ranks, what each does, and what is found.
TEXTS: dict[str, tuple[int, Callable[[Any], Any], str]] = {
    "a root on a part": (
        4,
        on_odd_ranks(lambda part: part.Bcast(np.ones(1), root=part.rank)),
        "in collective 1 of ranks 1, 3, the root is 1 on one and 0 on the other\n"
        "  rank 3 calls Bcast(root=1, comm=ranks 1 3)\n"
        "  rank 1 calls Bcast(root=0, comm=ranks 1 3)",
    ),
    "parts on a part": (
        4,
        on_odd_ranks(lambda part: part.Alltoallv([np.ones(2), [1, 1]], [np.ones(4), [1, 1 + part.rank]])),
        "in collective 1 of ranks 1, 3, rank 3 sends 1 element to itself, and expects 2\n"
        "  rank 3 calls Alltoallv(comm=ranks 1 3), sending [1, 1] and expecting [1, 2] elements",
    ),
    "more than is gathered": (
        2,
        lambda comm: comm.Allgather(np.ones(3), np.ones(4)),
        "in collective 1, rank 0 sends 6 elements to itself, and expects 4\n  rank 0 calls Allgather()",
    ),
    "less than is gathered": (
        2,
        lambda comm: comm.Allgather(np.ones(3), np.ones(8)),
        "in collective 1, rank 0 sends 6 elements to itself, and expects 8\n  rank 0 calls Allgather()",
    ),
    "another part than is gathered": (
        2,
        lambda comm: comm.Allgatherv(np.ones(3), [np.ones(4), [3, 1]]),
        "in collective 1, rank 1 sends 3 elements to rank 0, which expects 1\n"
        "  rank 1 calls Allgatherv(), expecting [3, 1] elements\n"
        "  rank 0 calls Allgatherv(), expecting [3, 1] elements",
    ),
    "less than the part that is gathered": (
        2,
        lambda comm: comm.Allgatherv(np.ones(3), [np.ones(7), [3, 4]]),
        "in collective 1, rank 1 sends 3 elements to rank 0, which expects 4\n"
        "  rank 1 calls Allgatherv(), expecting [3, 4] elements\n"
        "  rank 0 calls Allgatherv(), expecting [3, 4] elements",
    ),
    "less than the root gathers": (
        3,
        lambda comm: comm.Gatherv(np.ones(1), [np.ones(4), [1, 1, 2]], root=1),
        "in collective 1, rank 2 sends 1 element to rank 1, which expects 2\n"
        "  rank 2 calls Gatherv(root=1)\n"
        "  rank 1 calls Gatherv(root=1), expecting [1, 1, 2] elements",
    ),
    "more than the root scatters": (
        3,
        lambda comm: comm.Scatterv([np.ones(4), [1, 1, 2]], np.ones(1), root=2),
        "in collective 1, rank 2 sends 2 elements to itself, and expects 1\n"
        "  rank 2 calls Scatterv(root=2), sending [1, 1, 2] elements",
    ),
    "less than is exchanged": (
        3,
        lambda comm: comm.Alltoallv(
            [np.ones(3), [1, 1, 1]], [np.ones(4), [1, 2, 1] if comm.rank == 2 else [1, 1, 1]]
        ),
        "in collective 1, rank 1 sends 1 element to rank 2, which expects 2\n"
        "  rank 1 calls Alltoallv(), sending [1, 1, 1] and expecting [1, 1, 1] elements\n"
        "  rank 2 calls Alltoallv(), sending [1, 1, 1] and expecting [1, 2, 1] elements",
    ),
    "another part than the root gathers": (
        2,
        lambda comm: comm.Gatherv(np.ones(3), [np.ones(5), [3, 2]]),
        "in collective 1, rank 1 sends 3 elements to rank 0, which expects 2\n"
        "  rank 1 calls Gatherv(root=0)\n"
        "  rank 0 calls Gatherv(root=0), expecting [3, 2] elements",
    ),
    "another part than the root scatters": (
        3,
        lambda comm: comm.Scatterv([np.ones(8), [3, 3, 2]], np.ones(3), root=1),
        "in collective 1, rank 1 sends 2 elements to rank 2, which expects 3\n"
        "  rank 1 calls Scatterv(root=1), sending [3, 3, 2] elements\n"
        "  rank 2 calls Scatterv(root=1)",
    ),
    "another datatype of a part": (
        2,
        lambda comm: comm.Alltoallw(typed(MPI.DOUBLE, MPI.DOUBLE), typed(MPI.DOUBLE, MPI.FLOAT)),
        "in collective 1, rank 1 sends DOUBLE to rank 0, which expects FLOAT\n"
        "  rank 1 calls Alltoallw(), sending [8, 8] and expecting [8, 4] elements\n"
        "  rank 0 calls Alltoallw(), sending [8, 8] and expecting [8, 4] elements",
    ),
    "fewer elements than counts": (
        2,
        lambda comm: comm.Reduce_scatter(np.ones(2), np.empty(1 + comm.rank)),
        "in collective 1, send count 2, but the receive counts [1, 2] sum to 3\n"
        "  rank 0 calls Reduce_scatter(op=SUM)\n"
        "  rank 1 calls Reduce_scatter(op=SUM)",
    ),
    "groups that differ": (
        3,
        lambda comm: comm.Create(comm.group.Incl([0, 2] if comm.rank < 2 else [2])),
        "in collective 1, rank 2, a member of the group, gives another one\n"
        "  rank 0 calls Create(group=[0, 2])\n"
        "  rank 2 calls Create(group=[2])",
    ),
} | {
    f"the collective after {count}": (
        2,
        after(count, lambda comm: comm.Bcast(np.ones(1), root=comm.rank)),
        f"in collective {count + 1}, the root is 1 on one and 0 on the other\n"
        "  rank 1 calls Bcast(root=1)\n"
        "  rank 0 calls Bcast(root=0)",
    )
    for count in range(1, 6)
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_mismatch_is_told_in_full(name: str) -> None:
    ranks, body, expected = TEXTS[name]
    assert text_of(run(body, ranks)) in (
        f"mismatched collective: {expected}",
        # Who arrives first, and so is named first, is not what this is about.
        f"mismatched collective: {_exchanged(expected)}",
    )


def test_datatypes_of_parts_without_elements_need_not_agree() -> None:
    def body(comm: Any) -> Any:
        buffer = np.zeros(2)
        counts = [2 - 2 * comm.rank, 0]
        sent = [np.full(2, 3.0), (counts, [0, 16]), [MPI.DOUBLE, MPI.FLOAT]]
        comm.Alltoallw(sent, [buffer, (counts, [0, 16]), [MPI.DOUBLE, MPI.INT64_T]])
        return buffer.tolist()

    assert run(body, 2).values == ([3.0, 3.0], [0.0, 0.0])


def _exchanged(text: str) -> str:
    reason, *calls = text.split("\n")
    values = re.sub(r"the root is (\d) on one and (\d) on", r"the root is \2 on one and \1 on", reason)
    return "\n".join([values, *calls[::-1]]) if values != reason else text


def test_those_that_do_not_fit_wait_for_each_other_and_the_rest_for_them() -> None:
    result = run(on_odd_ranks(lambda part: part.Bcast(np.ones(1), root=part.rank)), 4)
    _, one, _, other = result.outcomes
    assert isinstance(one, Blocked)
    assert isinstance(other, Blocked)
    assert (one.call, one.waits_for) == ("Bcast(root=0, comm=ranks 1 3)", (3,))
    assert (other.call, other.waits_for) == ("Bcast(root=1, comm=ranks 1 3)", (1,))

    # Rank 0 sends itself too much, as all do: the others have failed peers.
    first, *others = run(lambda comm: comm.Allgather(np.ones(3), np.ones(6)), 3).outcomes
    assert isinstance(first, Blocked)
    assert first.waits_for == (0,)
    assert [type(each) for each in others] == [PeerFailed, PeerFailed]
    assert [each.peers for each in others] == [(0,), (0,)]


ONES = np.ones


def of(comm: Any) -> Any:
    """A datatype that differs on the last rank."""
    return "f4" if comm.rank == comm.size - 1 else "f8"


BUFFERS: dict[str, Callable[[Any, Any], Any]] = {
    "Bcast": lambda comm, t: comm.Bcast(ONES(2, t)),
    "Reduce": lambda comm, t: comm.Reduce(ONES(2, t), None if comm.rank else ONES(2, t)),
    "Reduce in place": lambda comm, t: comm.Reduce(
        MPI.IN_PLACE if comm.rank == 0 else ONES(2, t), ONES(2, t)
    ),
    "Allreduce": lambda comm, t: comm.Allreduce(ONES(2, t), ONES(2, t)),
    "Allreduce in place": lambda comm, t: comm.Allreduce(MPI.IN_PLACE, ONES(2, t)),
    "Scan": lambda comm, t: comm.Scan(ONES(2, t), ONES(2, t)),
    "Exscan": lambda comm, t: comm.Exscan(ONES(2, t), ONES(2, t)),
    "Reduce_scatter": lambda comm, t: comm.Reduce_scatter(ONES(3, t), ONES(1, t), [1, 1, 1]),
    "Reduce_scatter_block": lambda comm, t: comm.Reduce_scatter_block(ONES(3, t), ONES(1, t)),
    "Gather": lambda comm, t: comm.Gather(ONES(2, t), None if comm.rank else ONES(6, t)),
    "Gatherv": lambda comm, t: comm.Gatherv(ONES(2, t), None if comm.rank else [ONES(6, t), [2, 2, 2]]),
    "Scatter": lambda comm, t: comm.Scatter(None if comm.rank else ONES(6, t), ONES(2, t)),
    "Scatterv": lambda comm, t: comm.Scatterv(None if comm.rank else [ONES(6, t), [2, 2, 2]], ONES(2, t)),
    "Allgather": lambda comm, t: comm.Allgather(ONES(2, t), ONES(6, t)),
    "Allgatherv": lambda comm, t: comm.Allgatherv(ONES(2, t), [ONES(6, t), [2, 2, 2]]),
    "Alltoall": lambda comm, t: comm.Alltoall(ONES(3, t), ONES(3, t)),
    "Alltoallv": lambda comm, t: comm.Alltoallv([ONES(3, t), [1, 1, 1]], [ONES(3, t), [1, 1, 1]]),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_a_datatype_of_its_own_on_one_rank_is_told(name: str) -> None:
    call = BUFFERS[name]
    assert run(lambda comm: call(comm, "f8"), 3).completed
    text = text_of(run(lambda comm: call(comm, of(comm)), 3))
    assert "in collective 1, the datatype is float64 on one and float32 on the other\n" in text


OP = MPI.MIN
ROOTED: dict[str, Callable[[Any, int], Any]] = {
    "Bcast": lambda comm, root: comm.Bcast(ONES(1), root),
    "Reduce": lambda comm, root: comm.Reduce(ONES(1), ONES(1), OP, root),
    "Gather": lambda comm, root: comm.Gather(ONES(1), ONES(3), root),
    "Gatherv": lambda comm, root: comm.Gatherv(ONES(1), [ONES(3), [1, 1, 1]], root),
    "Scatter": lambda comm, root: comm.Scatter(ONES(3), ONES(1), root),
    "Scatterv": lambda comm, root: comm.Scatterv([ONES(3), [1, 1, 1]], ONES(1), root),
    "bcast": lambda comm, root: comm.bcast(1, root),
    "gather": lambda comm, root: comm.gather(1, root),
    "scatter": lambda comm, root: comm.scatter([1, 1, 1], root),
    "reduce": lambda comm, root: comm.reduce(1, OP, root),
}


@pytest.mark.parametrize("name", ROOTED)
def test_a_root_of_its_own_on_one_rank_is_told(name: str) -> None:
    call = ROOTED[name]
    for root in range(3):
        assert run(lambda comm, root=root: call(comm, root), 3).completed  # type: ignore[misc]
    text = text_of(run(lambda comm: call(comm, 2 if comm.rank == 1 else 1), 3))
    assert "in collective 1, the root is 1 on one and 2 on the other\n" in text
    for root in (-1, 3):
        with_it = run(lambda comm, root=root: call(comm, root), 3)  # type: ignore[misc]
        for outcome in with_it.outcomes:
            assert str(getattr(outcome, "message", outcome)).endswith(
                f"Invalid root {root}: must be nonnegative and less than 3"
            )


REDUCING: dict[str, Callable[[Any, Any], Any]] = {
    "Reduce": lambda comm, op: comm.Reduce(ONES(1), ONES(1), op),
    "Allreduce": lambda comm, op: comm.Allreduce(ONES(1), ONES(1), op),
    "Scan": lambda comm, op: comm.Scan(ONES(1), ONES(1), op),
    "Exscan": lambda comm, op: comm.Exscan(ONES(1), ONES(1), op),
    "Reduce_scatter": lambda comm, op: comm.Reduce_scatter(ONES(3), ONES(1), [1, 1, 1], op),
    "Reduce_scatter_block": lambda comm, op: comm.Reduce_scatter_block(ONES(3), ONES(1), op),
    "reduce": lambda comm, op: comm.reduce(1, op),
    "allreduce": lambda comm, op: comm.allreduce(1, op),
    "scan": lambda comm, op: comm.scan(1, op),
    "exscan": lambda comm, op: comm.exscan(1, op),
}


@pytest.mark.parametrize("name", REDUCING)
def test_an_operation_of_its_own_on_one_rank_is_told(name: str) -> None:
    call = REDUCING[name]
    text = text_of(run(lambda comm: call(comm, MPI.MAX if comm.rank == 1 else MPI.SUM), 3))
    assert "in collective 1, the operation is SUM on one and MAX on the other\n" in text


@pytest.mark.parametrize("source", [MPI.ANY_SOURCE, 1])
def test_a_receive_waits_for_its_source_or_for_all_other_ranks(source: int) -> None:
    def body(comm: Any) -> None:
        if comm.rank == 2:
            comm.Recv(np.ones(1), source, 4)

    for seed in range(2):
        result = run(body, 4, seed)
        others = (1,) if source == 1 else (0, 1, 3)
        named = "1" if source == 1 else "ANY_SOURCE"
        assert text_of(result) == (
            "deadlock: 1 of 4 ranks wait, and none can proceed\n"
            f"  rank 2 in Recv(source={named}, tag=4), waits for "
            + ", ".join(f"rank {rank} (which has ended)" for rank in others)
        )
        assert result.outcomes[2].waits_for == others  # type: ignore[union-attr]


def test_calls_of_two_communicators_in_different_orders_are_told_with_both() -> None:
    def body(comm: Any) -> None:
        part = comm.Split(0, -comm.rank)
        for each in (comm, part) if comm.rank else (part, comm):
            each.Barrier()

    text = text_of(run(body, 2))
    assert text.startswith(
        "mismatched collective: rank 0 and rank 1 call collectives of two communicators in different orders\n"
        "  rank 0 is in one of the communicator of ranks 1 0, made\n"
        "  rank 1 is in one of the communicator of ranks 0 1\n"
        "2 of 2 ranks wait"
    )


@pytest.mark.parametrize("of_lab", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("in_backward", [(False, False), (False, True), (True, False)])
def test_a_collective_of_different_places_is_told_where_all_of_them_are_of_user_code(
    of_lab: tuple[bool, bool], in_backward: tuple[bool, bool]
) -> None:
    def body(comm: Any) -> Any:
        calls: list[Any] = [
            SimpleNamespace(
                task=SimpleNamespace(rank=rank),
                call=SimpleNamespace(is_lab=is_lab, in_backward=backward, where=f"mine.py:{rank}"),
            )
            for rank, (is_lab, backward) in enumerate(zip(of_lab, in_backward, strict=True))
        ]
        comm._shared._note_divergence(4, calls)
        return comm._run.divergences.lines()

    places = [
        f"{rank} at mine.py:{rank}{' in backward' * backward}" for rank, backward in enumerate(in_backward)
    ]
    told = f"  collective 5 was called from different places: rank {places[0]}; rank {places[1]}"
    found = WORLD.run(lambda context, _: body(context.comm) if context.rank == 0 else None, ranks=2).values[0]
    assert found == (() if any(of_lab) else (told,))


@pytest.mark.parametrize("behind", [0, 1])
def test_of_further_collectives_of_different_places_the_first_between_forward_and_backward_is_told(
    behind: int,
) -> None:
    def body(comm: Any) -> Any:
        found = []
        for number, in_backward in enumerate((False, False, True, True)):
            calls: list[Any] = [
                SimpleNamespace(
                    task=SimpleNamespace(rank=rank),
                    call=SimpleNamespace(
                        is_lab=False, in_backward=in_backward and rank == behind, where=f"{rank}"
                    ),
                )
                for rank in range(2)
            ]
            comm._shared._note_divergence(number, calls)
            found.append(comm._run.divergences.lines()[0].split()[1])
        return found

    assert WORLD.run(lambda context, _: body(context.comm), ranks=1).values == (["1", "1", "3", "3"],)
