"""The answers of a process group's backend to the questions of several versions of torch."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import adjointlab as al
from adjointlab.worlds.world import RankContext

CPU = torch.device("cpu")


@pytest.mark.parametrize("question", ["supports_coalescing", "supports_splitting", "supports_time_estimate"])
def test_a_backend_has_nothing_beyond_the_calls_of_its_group(world: al.SimulatedWorld, question: str) -> None:
    """torch 2.14 asks for the first before `batch_isend_irecv`, and takes what has no backend at all for an error."""

    def program(context: RankContext, _: object) -> tuple[bool, bool]:
        with al.process_group(context.comm):
            group = dist.group.WORLD
            assert group is not None
            backend = group._get_backend(CPU)
            return getattr(backend, question), backend.supports_tensor_alloc(CPU)

    assert world.run(program, None, 2).values == ((False, False),) * 2
