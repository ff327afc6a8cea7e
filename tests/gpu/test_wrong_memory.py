"""Arrays in the wrong memory are refused before the first message, and device memory is given back after a failure."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.core import arrays
from adjointlab.core.agreement import CheckedOperator
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.engine.search import Budget, investigate
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.memory import Add
from adjointlab.primitives.subjects import installed
from adjointlab.primitives.transfer import Transfer
from adjointlab.worlds.world import Raised
from tests.gpu.stand_in.arrays import Memory, counts

LAYOUT = Layout((3,), Partition((1,)))


def raised(world: al.SimulatedWorld, ranks: int, body: Callable[[Any], Any]) -> list[str]:
    """The errors of the ranks, by rank."""
    outcomes = world.run(lambda context, _: body(context.comm), None, ranks).outcomes
    return [str(each.exception) if isinstance(each, Raised) else "" for each in outcomes]


def test_arguments_of_one_operator_lie_on_one_device(world: al.SimulatedWorld, cupy: Any) -> None:
    def body(comm: Any) -> None:
        a = cupy.empty(3)
        with cupy.cuda.Device(1):
            b = cupy.empty(3)
        Add(comm, LAYOUT).forward(a, b)

    (error,) = raised(world, 1, body)
    assert error.startswith("b: lies on rank 0 on device 1, but the current device is 0")


def test_a_result_goes_to_the_device_of_the_argument(world: al.SimulatedWorld, cupy: Any) -> None:
    def body(comm: Any) -> None:
        Broadcast(comm, LAYOUT, Partition((1,))).forward(cupy.empty(3), out=np.empty(3))

    (error,) = raised(world, 1, body)
    assert error == "out: a numpy array on rank 0, but the argument is a cupy array"


def test_every_rank_raises_where_one_has_an_array_of_another_device(
    world: al.SimulatedWorld, cupy: Any
) -> None:
    def body(comm: Any) -> None:
        with cupy.cuda.Device(1 if comm.rank == 1 else 0):
            x = cupy.empty(3 if comm.rank == 0 else 0)
        CheckedOperator(Broadcast(comm, LAYOUT, Partition((3,)))).forward(x)

    errors = raised(world, 3, body)
    assert all("device 1" in error for error in errors), errors


def test_a_transfer_takes_what_lies_in_its_memory(world: al.SimulatedWorld, cupy: Any) -> None:
    (error,) = raised(world, 1, lambda comm: Transfer(comm, LAYOUT, "numpy", "cupy").forward(cupy.empty(3)))
    assert error == "x: lies in the memory cupy on rank 0, but it is taken from numpy"
    (error,) = raised(world, 1, lambda comm: Transfer(comm, LAYOUT, "numpy", "tape"))
    assert error == "target: 'tape' is not one of numpy, torch, cupy, torch-cuda"
    (error,) = raised(world, 1, lambda comm: Transfer(comm, LAYOUT, "torch", "cupy", dtype="bfloat16"))
    assert error == "dtype: target is the memory cupy, which has no bfloat16"


def test_an_mpi_library_that_does_not_take_device_memory_gets_none(cupy: Any) -> None:
    pytest.importorskip("mpi4py", reason="needs mpi4py (the extra mpi)")
    from adjointlab.worlds.mpi import buffer_calls

    with pytest.raises(BufferError, match="device 0, and the MPI library does not take memory of a device"):
        buffer_calls.native([cupy.empty(3), 3])
    assert buffer_calls.native(7) == 7


def test_memory_of_a_device_is_given_back_after_a_case_that_runs_out_of_it(
    world: al.SimulatedWorld, cupy: Any
) -> None:
    from dataclasses import replace

    class Greedy(Broadcast):
        def forward(self, x: Any, out: Any = None) -> Any:
            kept = [arrays.empty((2**16,), "float64", x) for _ in range(64)]
            return super().forward(x, out) if kept else None

    Memory.limit = 2**22
    subject = replace(installed.broadcasts, build=Greedy, arrays=("cupy",))
    verdict = investigate(world, subject, "adjoint", Budget(cases=3, seed=1, shrinking=0)).verdict
    assert "OutOfMemoryError" in str(verdict)
    assert counts["pools_freed"]
    gc.collect()
    assert sum(memory.raw.nbytes for memory in list(Memory.live)) < 2**19
