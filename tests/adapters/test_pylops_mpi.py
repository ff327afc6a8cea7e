"""Arrays of PyLops-MPI are tensors of spaces: scattered ones are cut, others are copies that count once."""

from __future__ import annotations

from typing import Any

import pytest

import adjointlab as al
from adjointlab.adapters.pylops_mpi import MPIOperator, mpi_operator
from adjointlab.checks.verdict import Status
from adjointlab.engine.search import Budget, investigate
from adjointlab.worlds.world import RankContext

pylops = pytest.importorskip("pylops")
pylops_mpi = pytest.importorskip("pylops_mpi")


def columns(comm: Any, sizes: list[int]) -> Any:
    """A vertical stack of matrices of ones, from copies to parts."""
    import numpy as np

    operator = pylops_mpi.MPIVStack([pylops.MatrixMult(np.ones((sizes[comm.Get_rank()], 2)))], comm)
    copies = pylops_mpi.DistributedArray(2, comm, partition=pylops_mpi.Partition.BROADCAST)
    return operator, copies


def test_the_spaces_are_read_off_the_arrays(world: al.SimulatedWorld) -> None:
    def body(context: RankContext, payload: None) -> tuple[al.Space, al.Space]:
        operator = MPIOperator(context.comm, *columns(context.comm, [1, 3]))
        return operator.domain, operator.codomain

    copies = al.Space(al.Layout((2,), al.Partition((2,)), axes=(None,)), types=("invariant",))
    parts = al.Space(al.Layout.cut((4,), al.Partition((2,)), [(0, 1, 4)]), name="y")
    run = world.run(body, None, 2)
    assert run.completed, run
    assert run.values == ((copies, parts),) * 2


def without_sum(comm: Any, sizes: list[int]) -> Any:
    operator, copies = columns(comm, sizes)
    operator._allreduce = lambda comm, nccl, array, **_: array  # of the adjoint
    return operator, copies


@pytest.mark.parametrize(("make", "status"), [(columns, Status.COHERENT), (without_sum, Status.INCOHERENT)])
def test_an_operator_is_checked_in_one_line(world: al.SimulatedWorld, make: Any, status: Status) -> None:
    @al.subject.operator(mpi_operator(make))
    def stacks(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(sizes=[1 + rank % 3 for rank in range(ranks)])

    assert investigate(world, stacks, "adjoint", Budget(10, ranks=3, seed=1)).status is status
