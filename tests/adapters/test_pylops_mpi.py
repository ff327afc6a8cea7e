"""Arrays of PyLops-MPI are tensors of spaces: scattered ones are cut, others are copies that count once."""

from __future__ import annotations

from typing import Any

import pytest

import adjointlab as al
from adjointlab.adapters.pylops_mpi import MPIOperator, mpi_operator
from adjointlab.checks.verdict import Status
from adjointlab.core.declaration import SubjectError
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
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


def identity(comm: Any, returned: Any) -> Any:
    """The identity of two elements a rank, whose adjoint returns what `returned` makes of its result."""

    class Identity(pylops_mpi.MPILinearOperator):
        def __init__(self) -> None:
            super().__init__(shape=(2 * comm.Get_size(),) * 2, dtype="float64", base_comm=comm)

        def _matvec(self, x: Any) -> Any:
            return x

        def _rmatvec(self, y: Any) -> Any:
            return returned(y)

    return Identity()


def of_another_size(y: Any) -> Any:
    return pylops_mpi.DistributedArray(y.global_shape[0] + 1, y.base_comm)


def of_other_shards(y: Any) -> Any:
    size = y.base_comm.Get_size()
    if size == 1:
        return y
    sizes = [3, *[2] * (size - 2), 1]
    result = pylops_mpi.DistributedArray(
        y.global_shape[0], y.base_comm, local_shapes=[(size,) for size in sizes]
    )
    result[:] = 0.0  # its memory may hold numbers whose squares overflow
    return result


@pytest.mark.parametrize(
    ("returned", "is_wrong_declaration", "said"),
    [
        (of_another_size, False, "rmatvec returned a SCATTER of shape (3,), and the other direction takes a SCATTER of shape (2,)"),
        (lambda y: y.local_array, False, "rmatvec returned an ndarray, not a DistributedArray"),
        (lambda y: None, False, "rmatvec returned None, not a DistributedArray"),
        (of_other_shards, True, "return a pair, the operator and a DistributedArray that is distributed as they are"),
    ],
)  # fmt: skip
def test_a_result_that_is_distributed_otherwise_is_told(
    world: al.SimulatedWorld, returned: Any, is_wrong_declaration: bool, said: str
) -> None:
    @al.subject.operator(mpi_operator(lambda comm: identity(comm, returned)), name="Identity")
    def identities(draw: Any, ranks: int) -> dict[str, Any]:
        return {}

    verdict = investigate(world, identities, "adjoint", Budget(10, ranks=2, seed=1)).verdict
    assert verdict.status is (Status.UNJUDGED if is_wrong_declaration else Status.INCOHERENT)
    assert said in str(verdict)


@pytest.mark.parametrize(("factor", "status"), [(1, Status.COHERENT), (1 + 1j, Status.INCOHERENT)])
def test_the_adjoint_of_a_real_to_complex_operator_may_return_complex_numbers_without_imaginary_parts(
    world: al.SimulatedWorld, factor: complex, status: Status
) -> None:
    def transform(comm: Any, length: int) -> Any:
        blocks = pylops_mpi.MPIBlockDiag([pylops.signalprocessing.FFT(length, real=True)], comm)
        right = blocks.rmatvec

        def scaled(y: Any) -> Any:
            result = right(y)
            result[:] = factor * result.local_array
            return result

        blocks.rmatvec = scaled
        return blocks, pylops_mpi.DistributedArray(length * comm.Get_size(), comm, dtype="float64")

    @al.subject.operator(mpi_operator(transform))
    def transforms(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(length=3 + ranks)

    assert investigate(world, transforms, "adjoint", Budget(5, ranks=2, seed=1)).status is status


def test_an_operator_that_refuses_scattered_arguments_is_told_that_they_were_taken_for_such(
    world: al.SimulatedWorld,
) -> None:
    @al.subject.operator(mpi_operator(lambda comm, sizes: columns(comm, sizes)[0]))
    def stacks(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(sizes=[1] * ranks)

    verdict = investigate(world, stacks, "adjoint", Budget(1, ranks=2, seed=1)).verdict
    assert verdict.status is Status.UNJUDGED
    assert "mpi_operator took arguments for scattered" in str(verdict)
    assert "return a pair, the operator and a DistributedArray" in str(verdict)


@pytest.mark.parametrize(
    "made",
    [None, pylops_mpi.MPILinearOperator, [1], (1, 2, 3), lambda comm: (columns(comm, [1])[1], columns(comm, [1])[0])],
)  # fmt: skip
def test_what_is_no_operator_is_a_wrong_declaration(world: al.SimulatedWorld, made: Any) -> None:
    def body(context: RankContext, payload: None) -> str:
        make = made if callable(made) and not isinstance(made, type) else lambda comm: made
        with pytest.raises(SubjectError, match="or a pair: it and a DistributedArray") as caught:
            mpi_operator(make)(context.comm)
        return str(caught.value)

    run = world.run(body, None, 1)
    assert run.completed, run


def test_an_operator_in_place_of_its_function_is_told() -> None:
    with pytest.raises(SubjectError, match="make: a list is not a function"):
        mpi_operator([])  # type: ignore[arg-type]


def test_a_function_that_takes_no_communicator_is_a_wrong_declaration(world: al.SimulatedWorld) -> None:
    def body(context: RankContext, payload: None) -> None:
        with pytest.raises(SubjectError, match=r"called as <lambda>\(comm, dims=…\), but <lambda>\(dims\)"):
            mpi_operator(lambda dims: None)(context.comm, dims=(3,))

    assert world.run(body, None, 1).completed


def test_a_stack_of_arrays_is_told_as_a_wrong_declaration(world: al.SimulatedWorld) -> None:
    def body(context: RankContext, payload: None) -> None:
        operator = pylops_mpi.MPIGradient((4, 3), base_comm=context.comm)
        with pytest.raises(SubjectError, match="y is a StackedDistributedArray"):
            MPIOperator(context.comm, operator)

    run = world.run(body, None, 2)
    assert run.completed, run
