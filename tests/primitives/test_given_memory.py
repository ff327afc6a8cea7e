"""Memory that is given for a result: what cannot take it is refused, before a message of the rank that has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.primitives.all_gather import AllGather
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.discard import Discard
from adjointlab.primitives.halo_exchange import HaloExchange
from adjointlab.primitives.halo_exchange_in_place import HaloExchangeInPlace
from adjointlab.primitives.redistribute import Redistribute
from adjointlab.primitives.reduce_scatter import ReduceScatter
from adjointlab.primitives.repartition import Repartition
from adjointlab.primitives.sum_reduce import SumReduce

GRID = Partition((3,))
CUT, WHOLE = Layout((6,), GRID), Layout((6,), GRID, axes=(None,))
WINDOWS = Layout((6,), GRID, [[(0, 3), (1, 5), (3, 6)]])

OPERATORS: dict[str, Callable[[Any], Any]] = {
    "AllGather": lambda comm: AllGather(comm, CUT, 0),
    "AllSumReduce": lambda comm: AllSumReduce(comm, WHOLE, [0]),
    "Broadcast": lambda comm: Broadcast(comm, Layout((6,), Partition((1,))), GRID),
    "Discard": lambda comm: Discard(comm, WHOLE, 0, 0),
    "HaloExchange": lambda comm: HaloExchange(comm, CUT, WINDOWS),
    "HaloExchangeInPlace": lambda comm: HaloExchangeInPlace(comm, CUT, WINDOWS),
    "Redistribute": lambda comm: Redistribute(comm, GRID, (6,), [[0]], [[]]),
    "Redistribute to the same": lambda comm: Redistribute(comm, GRID, (6,), [[0]], [[0]]),
    "ReduceScatter": lambda comm: ReduceScatter(comm, WHOLE, 0, 0),
    "Repartition": lambda comm: Repartition(comm, CUT, Layout((6,), Partition((3,), [1, 2, 0]))),
    "SumReduce": lambda comm: SumReduce(comm, WHOLE, Partition((1,))),
}

Given = tuple[Any, Any]


def sharing(memory: np.ndarray[Any, Any], of_x: int, of_y: int) -> Given:
    return memory[:of_x], memory[of_x - 1 : of_x - 1 + of_y]


def sharing_in_torch(memory: np.ndarray[Any, Any], of_x: int, of_y: int) -> Given:
    x, y = sharing(memory, of_x, of_y)
    return torch.from_numpy(x), torch.from_numpy(y)


def read_only(memory: np.ndarray[Any, Any], of_x: int, of_y: int) -> Given:
    out = np.zeros(of_y)
    out.setflags(write=False)
    return memory[:of_x], out


def recorded(memory: np.ndarray[Any, Any], of_x: int, of_y: int) -> Given:
    return torch.from_numpy(memory[:of_x]), torch.zeros(of_y, dtype=torch.float64, requires_grad=True)


def of_another_library(memory: np.ndarray[Any, Any], of_x: int, of_y: int) -> Given:
    return memory[:of_x], torch.zeros(of_y, dtype=torch.float64)


WRONG = {
    sharing: "shares memory with the argument",
    sharing_in_torch: "shares memory with the argument",
    read_only: "an array on rank . that must not be written into",
    recorded: "an array on rank . that must not be written into",
    of_another_library: "a torch array on rank ., but the argument is a numpy array",
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("direction", ["forward", "adjoint"])
@pytest.mark.parametrize("name", OPERATORS)
def test_memory_that_cannot_take_the_result_is_refused_on_every_rank_that_gives_it(
    name: str, direction: str, wrong: Callable[..., Given], spmd: Any
) -> None:
    def body(comm: Any) -> None:
        rank, operator = comm.Get_rank(), OPERATORS[name](comm)
        spaces = [space.tensors[0].layout for space in (operator.domain, operator.codomain)]
        source, target = spaces if direction == "forward" else spaces[::-1]
        if not (source.local_size(rank) and target.local_size(rank)):
            return
        argument, out = wrong(np.ones(20), source.local_size(rank), target.local_size(rank))
        with pytest.raises(ValueError, match=f"^out: {WRONG[wrong]}"):
            getattr(operator, direction)(argument, out=out)

    spmd(3, body)


@pytest.mark.parametrize("direction", ["forward_", "adjoint_"])
def test_in_place_what_cannot_be_written_is_refused_before_the_first_message(
    direction: str, spmd: Any
) -> None:
    def body(comm: Any) -> None:
        operator = HaloExchangeInPlace(comm, CUT, WINDOWS)
        fixed = np.ones(WINDOWS.local_shape(comm.Get_rank()))
        fixed.setflags(write=False)
        with pytest.raises(ValueError, match=r"^[xy]: an array on rank . that must not be written into"):
            getattr(operator, direction)(fixed)

    spmd(3, body)


@pytest.mark.parametrize("direction", ["forward", "adjoint"])
@pytest.mark.parametrize("name", OPERATORS)
def test_a_graph_that_saved_the_memory_refuses_it_once_a_result_was_written_there(
    name: str, direction: str, spmd: Any
) -> None:
    def body(comm: Any) -> None:
        rank, operator = comm.Get_rank(), OPERATORS[name](comm)
        spaces = [space.tensors[0].layout for space in (operator.domain, operator.codomain)]
        source, target = spaces if direction == "forward" else spaces[::-1]
        out = torch.ones(target.local_shape(rank), dtype=torch.float64)
        given = {"out": out} if target.partition.is_active(rank) else {}
        squared = torch.ones_like(out, requires_grad=True) * out
        getattr(operator, direction)(torch.ones(source.local_shape(rank), dtype=torch.float64), **given)
        if given:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                squared.sum().backward()

    spmd(3, body)


@pytest.mark.parametrize("direction", ["forward_", "adjoint_"])
def test_a_graph_that_saved_a_tensor_refuses_it_once_it_was_exchanged_in_place(
    direction: str, spmd: Any
) -> None:
    def body(comm: Any) -> None:
        operator = HaloExchangeInPlace(comm, CUT, WINDOWS)
        x = torch.ones(operator.domain.tensors[0].layout.local_shape(comm.Get_rank()), dtype=torch.float64)
        squared = torch.ones_like(x, requires_grad=True) * x
        getattr(operator, direction)(x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            squared.sum().backward()

    spmd(3, body)
