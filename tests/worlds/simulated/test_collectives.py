"""Every collective gives what the standard says, blocking or not, in place or not, for all seeds."""

import operator

import numpy as np
import pytest

from adjointlab import MPI
from tests.worlds.simulated.completed import values

SIZES = (1, 2, 3, 4)
COUNTS = (2, 0, 3, 1)
"""Elements on each rank, for the vector forms."""


@pytest.fixture(params=[(0, False), (0, True), (1, True), (2, True), (3, True)], ids=str)
def how(request):
    """Seed, and whether the non-blocking form is called."""
    return request.param


def call(comm, name, blocking, *arguments, **keywords):
    if blocking:
        getattr(comm, f"I{name.lower()}")(*arguments, **keywords).Wait()
    else:
        getattr(comm, name)(*arguments, **keywords)


def data(rank, count=3):
    return 10.0 * rank + np.arange(1.0, count + 1)


@pytest.mark.parametrize("size", SIZES)
def test_broadcast_and_reductions(size, how):
    seed, late = how
    everything = np.array([data(rank) for rank in range(size)])

    def body(comm):
        rank, root = comm.rank, size - 1
        buffer = data(rank)
        call(comm, "Bcast", late, buffer, root=root)
        np.testing.assert_array_equal(buffer, data(root))

        buffer = np.zeros(3)
        call(comm, "Reduce", late, data(rank), buffer if rank == root else None, MPI.MAX, root)
        np.testing.assert_array_equal(buffer, everything.max(0) if rank == root else 0)
        buffer = data(rank)
        call(comm, "Reduce", late, MPI.IN_PLACE if rank == root else buffer, buffer, root=root)
        np.testing.assert_array_equal(buffer, everything.sum(0) if rank == root else data(rank))

        buffer = np.zeros(3)
        call(comm, "Allreduce", late, data(rank), buffer, op=MPI.PROD)
        np.testing.assert_array_equal(buffer, everything.prod(0))
        buffer = data(rank)
        call(comm, "Allreduce", late, MPI.IN_PLACE, buffer)
        np.testing.assert_array_equal(buffer, everything.sum(0))

        for own in (MPI.IN_PLACE, data(rank)):
            buffer = data(rank)
            call(comm, "Scan", late, own, buffer)
            np.testing.assert_array_equal(buffer, everything[: rank + 1].sum(0))
            buffer = data(rank)
            call(comm, "Exscan", late, own, buffer)
            if rank:  # undefined on the first
                np.testing.assert_array_equal(buffer, everything[:rank].sum(0))
        call(comm, "Barrier", late)

    values(body, size, seed)


@pytest.mark.parametrize("size", SIZES)
def test_gathers_and_scatters(size, how):
    seed, late = how
    whole = np.concatenate([data(rank) for rank in range(size)])

    def body(comm):
        rank, root = comm.rank, size - 1
        is_root = rank == root
        for in_place in (False, True):
            buffer = np.zeros(3 * size)
            buffer[3 * rank : 3 * rank + 3] = data(rank)
            own = MPI.IN_PLACE if in_place and is_root else data(rank)
            call(comm, "Gather", late, own, buffer if is_root else None, root)
            if is_root:
                np.testing.assert_array_equal(buffer, whole)

            buffer = np.zeros(3)
            place = MPI.IN_PLACE if in_place and is_root else buffer
            call(comm, "Scatter", late, whole if is_root else None, place, root)
            if place is buffer:
                np.testing.assert_array_equal(buffer, data(rank))

            buffer = np.zeros(3 * size)
            buffer[3 * rank : 3 * rank + 3] = data(rank)
            call(comm, "Allgather", late, MPI.IN_PLACE if in_place else data(rank), buffer)
            np.testing.assert_array_equal(buffer, whole)

            send = np.arange(2.0 * size) + 100 * rank
            buffer = send.copy() if in_place else np.zeros(2 * size)
            call(comm, "Alltoall", late, MPI.IN_PLACE if in_place else send, buffer)
            expected = [[100 * other + 2 * rank, 100 * other + 2 * rank + 1] for other in range(size)]
            np.testing.assert_array_equal(buffer, np.ravel(expected))

    values(body, size, seed)


@pytest.mark.parametrize("size", SIZES)
def test_vector_forms_with_gaps_and_empty_parts(size, how):
    seed, late = how
    counts = list(COUNTS[:size])
    gaps = [sum(counts[:rank]) + rank for rank in range(size)]  # one element between neighbours
    spread = np.full(sum(counts) + size, -1.0)
    for rank in range(size):
        spread[gaps[rank] : gaps[rank] + counts[rank]] = data(rank, counts[rank])

    def body(comm):
        rank = comm.rank
        own = data(rank, counts[rank])
        buffer = np.full(spread.size, -1.0)
        call(comm, "Gatherv", late, own, [buffer, (counts, gaps), MPI.DOUBLE] if rank == 0 else None)
        if rank == 0:
            np.testing.assert_array_equal(buffer, spread)

        buffer = np.full(spread.size, -1.0)
        call(comm, "Allgatherv", late, own, [buffer, counts, gaps, "d"])
        np.testing.assert_array_equal(buffer, spread)
        call(comm, "Allgatherv", late, MPI.IN_PLACE, [buffer, counts, gaps, "d"])
        np.testing.assert_array_equal(buffer, spread)
        packed = np.zeros(sum(counts))
        call(comm, "Allgatherv", late, own, [packed, counts])
        np.testing.assert_array_equal(packed, np.concatenate([data(r, counts[r]) for r in range(size)]))

        buffer = np.zeros(counts[rank])
        call(comm, "Scatterv", late, [spread, counts, gaps, MPI.DOUBLE] if rank == 0 else None, buffer)
        np.testing.assert_array_equal(buffer, own)

        # Rank r sends COUNTS[(r + s) % 4] elements to rank s.
        sends = [COUNTS[(rank + other) % 4] for other in range(size)]
        send = np.concatenate([100 * rank + data(other, n) for other, n in enumerate(sends)])
        buffer = np.zeros(sum(sends))
        call(comm, "Alltoallv", late, [send, sends], [buffer, sends])
        expected = [100 * other + data(rank, COUNTS[(rank + other) % 4]) for other in range(size)]
        np.testing.assert_array_equal(buffer, np.concatenate(expected))

    values(body, size, seed)


@pytest.mark.parametrize("size", SIZES)
def test_reduce_scatter(size, how):
    seed, late = how
    counts = list(COUNTS[:size])
    total = sum(data(rank, sum(counts)) for rank in range(size))
    blocks = sum(data(rank, 2 * size) for rank in range(size))

    def body(comm):
        rank = comm.rank
        start = sum(counts[:rank])
        mine = total[start : start + counts[rank]]
        for given in (counts, None):
            buffer = np.zeros(counts[rank])
            call(comm, "Reduce_scatter", late, data(rank, sum(counts)), buffer, given)
            np.testing.assert_array_equal(buffer, mine)
        buffer = data(rank, sum(counts))
        call(comm, "Reduce_scatter", late, MPI.IN_PLACE, buffer, counts)
        np.testing.assert_array_equal(buffer[: counts[rank]], mine)

        buffer = np.zeros(2)
        call(comm, "Reduce_scatter_block", late, data(rank, 2 * size), buffer)
        np.testing.assert_array_equal(buffer, blocks[2 * rank : 2 * rank + 2])
        buffer = data(rank, 2 * size)
        call(comm, "Reduce_scatter_block", late, MPI.IN_PLACE, buffer)
        np.testing.assert_array_equal(buffer[:2], blocks[2 * rank : 2 * rank + 2])

    values(body, size, seed)


@pytest.mark.parametrize(("size", "root"), [(size, root) for size in SIZES for root in range(size)])
def test_object_forms(size, root):
    def body(comm):
        rank = comm.rank
        assert comm.bcast({"from": rank}, root) == {"from": root}
        assert comm.gather(rank, root) == (list(range(size)) if rank == root else None)
        assert comm.scatter([f"to {r}" for r in range(size)] if rank == root else None, root) == f"to {rank}"
        assert comm.allgather((rank,)) == [(r,) for r in range(size)]
        assert comm.alltoall([(rank, r) for r in range(size)]) == [(r, rank) for r in range(size)]
        assert comm.reduce([rank], root=root) == (list(range(size)) if rank == root else None)
        assert comm.allreduce(rank, MPI.MAX) == size - 1
        assert comm.allreduce(rank + 1, op=operator.mul) == np.prod(range(1, size + 1))
        assert comm.scan(str(rank)) == "0123"[: rank + 1]
        assert comm.exscan(str(rank)) == ("0123"[:rank] or None)
        comm.barrier()

    for seed in range(3):
        values(body, size, seed)


@pytest.mark.parametrize("root", range(4))
@pytest.mark.parametrize("late", [False, True])
def test_any_rank_may_be_the_root(root, late):
    whole = np.concatenate([data(rank) for rank in range(4)])

    def body(comm):
        rank, is_root = comm.rank, comm.rank == root
        buffer = data(rank)
        call(comm, "Bcast", late, buffer, root)
        np.testing.assert_array_equal(buffer, data(root))
        for name, expected in {
            "Reduce": whole.reshape(4, 3).sum(0),
            "Gather": whole,
            "Gatherv": whole,
        }.items():
            buffer = np.zeros(expected.size)
            call(comm, name, late, data(rank), buffer if is_root else None, root=root)
            np.testing.assert_array_equal(buffer, expected if is_root else 0)
        for name in ("Scatter", "Scatterv"):
            buffer = np.zeros(3)
            call(comm, name, late, whole if is_root else None, buffer, root)
            np.testing.assert_array_equal(buffer, data(rank))

    values(body)


@pytest.mark.parametrize("op", list(MPI.Op), ids=lambda op: op.value)
def test_every_operation_on_the_dtypes_that_mpi_defines_it_for(op):
    kinds = {
        "L": "?bBhHiIlL",
        "B": "bBhHiIlL",
        "M": "bBhHiIlLefdg",
        "S": "bBhHiIlLefdgFD",
        "P": "bBhHiIlLefdgFD",
    }
    allowed = kinds[op.value[0]]
    ufuncs = {"SUM": "add", "PROD": "multiply", "MAX": "maximum", "MIN": "minimum"} | {
        name + each: prefix + each.lower()
        for name, prefix in (("L", "logical_"), ("B", "bitwise_"))
        for each in ("AND", "OR", "XOR")
    }

    def body(comm):
        for code in "?bBhHiIlLefdgFD":
            mine = np.array([0, 1, 3]).astype(code) + np.array(comm.rank).astype(code)
            result = np.zeros(3, code)
            if code not in allowed:
                with pytest.raises(MPI.Exception, match="not defined for this datatype"):
                    comm.Allreduce(mine, result, op)
                continue
            comm.Allreduce(mine, result, op)
            other = np.array([0, 1, 3]).astype(code) + np.array(1 - comm.rank).astype(code)
            np.testing.assert_array_equal(result, getattr(np, ufuncs[op.value])(mine, other).astype(code))

    values(body, 2)


def test_a_reduction_goes_in_the_order_of_ranks_in_the_dtype_of_the_buffer():
    def body(comm):
        buffer = np.array([[1e8, 1.0, -1e8, 1.0][comm.rank]], np.float32)
        comm.Allreduce(MPI.IN_PLACE, buffer)
        return buffer[0]

    expected = np.float32(0)
    for each in (1e8, 1.0, -1e8, 1.0):
        expected += np.float32(each)
    for seed in range(5):
        assert values(body, 4, seed) == (expected,) * 4


def test_aliased_buffers_are_refused():
    def body(comm):
        buffer = np.ones(4)
        with pytest.raises(MPI.Exception, match="must not be aliased"):
            comm.Allreduce(buffer[:3], buffer[1:])

    values(body, 1)
