"""Arrays in the wrong memory are refused before the first message, and device memory is given back after a failure."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.core import arrays
from adjointlab.core.agreement import CheckedOperator
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.memory import Add
from adjointlab.primitives.subjects import installed
from adjointlab.primitives.transfer import Transfer
from adjointlab.worlds.run import Raised
from tests.gpu.device_cases import judged_subject
from tests.gpu.planted import BROADCAST
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

    with pytest.raises(BufferError, match="device 0, and the MPI library does not take device memory"):
        buffer_calls.native([cupy.empty(3), 3])
    assert buffer_calls.native(7) == 7


def _fill(x: Any) -> list[Any]:
    return [arrays.empty((2**16,), "float64", x) for _ in range(64)]


def _fill_and_explain(x: Any) -> list[Any]:
    """An error of its own in the place of that of CuPy, which stays with it as its cause."""
    try:
        return _fill(x)
    except MemoryError as problem:
        raise RuntimeError("there is less memory than this needs") from problem


@pytest.mark.parametrize("on", [(0, 1, 2, 3), (1,)])
def test_a_case_that_runs_out_of_memory_ends_on_every_rank_and_holds_none(
    world: al.SimulatedWorld, cupy: Any, on: tuple[int, ...]
) -> None:
    class Greedy(Broadcast):
        def forward(self, x: Any, out: Any = None) -> Any:
            kept = _fill(x) if self.comm.Get_rank() in on else [x]
            return super().forward(x, out) if kept else None

    Memory.limit = 2**22
    verdict = judged_subject(world, replace(installed.broadcasts, build=Greedy), BROADCAST, "adjoint")
    assert f"rank {on[0]} raised OutOfMemoryError: Out of memory allocating" in str(verdict)
    assert "blocked" not in str(verdict)
    assert counts["pools_freed"]
    gc.collect()
    assert sum(memory.raw.nbytes for memory in list(Memory.live)) < 2**19


@pytest.mark.parametrize("fill", [_fill, _fill_and_explain])
def test_an_error_holds_no_memory_of_a_device(cupy: Any, fill: Callable[[Any], list[Any]]) -> None:
    Memory.limit = 2**22
    with pytest.raises((MemoryError, RuntimeError)) as raised, arrays.rank_context("cupy", 0):
        fill(cupy.empty(1))
    assert sum(memory.raw.nbytes for memory in list(Memory.live)) < 2**19
    assert raised.value


def test_a_rank_has_a_stream_of_its_own_on_each_device(cupy: Any) -> None:
    with arrays.rank_context("cupy", 0):
        first = cupy.cuda.get_current_stream()
    with cupy.cuda.Device(1), arrays.rank_context("cupy", 0):
        other = cupy.cuda.get_current_stream()
    assert (first.device_id, other.device_id) == (0, 1)
    with arrays.rank_context("cupy", 0):
        assert cupy.cuda.get_current_stream() is first
