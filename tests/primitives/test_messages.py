"""The messages of a primitive and those of the code around it do not meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.primitives.halo_exchange import HaloExchange
from adjointlab.primitives.halo_exchange_in_place import HaloExchangeInPlace
from adjointlab.primitives.repartition import Repartition
from adjointlab.primitives.send_receive import SendReceive

HALVES = Layout((4,), Partition((2,)))
WINDOWS = Layout((4,), Partition((2,)), [[(0, 3), (1, 4)]])

OPERATORS: dict[str, Callable[[Any], Any]] = {
    "HaloExchange": lambda comm: HaloExchange(comm, HALVES, WINDOWS),
    "HaloExchangeInPlace": lambda comm: HaloExchangeInPlace(comm, HALVES, WINDOWS),
    "Repartition": lambda comm: Repartition(comm, HALVES, Layout((4,), Partition((2,), [1, 0]))),
    "SendReceive": lambda comm: SendReceive(comm, Layout((4,), Partition((1,))), 1, form="move"),
}


@pytest.mark.parametrize("direction", ["forward", "adjoint"])
@pytest.mark.parametrize("name", OPERATORS)
def test_a_callers_message_with_a_tag_of_its_own_waits_for_the_caller(
    name: str, direction: str, spmd: Any
) -> None:
    def body(comm: Any) -> Any:
        rank, operator = comm.Get_rank(), OPERATORS[name](comm)
        space = operator.domain if direction == "forward" else operator.codomain
        local = rank + np.ones(space.tensors[0].layout.local_shape(rank))
        alone = getattr(operator, direction)(local)
        request = comm.Isend(np.array([100.0 + rank]), dest=1 - rank, tag=5)
        beside = getattr(operator, direction)(local)
        comm.Recv(got := np.zeros(1), source=1 - rank, tag=5)
        request.Wait()
        np.testing.assert_array_equal(beside, alone)
        return got[0]

    assert spmd(2, body) == (101, 100)
