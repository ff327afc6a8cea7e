"""Every collective of torch.distributed has the same result in every world: the one that a few lines of plain torch compute.

``mpiexec -n 3 python -m pytest --with-mpi tests/torch_distributed/test_conformance.py`` runs the same over MPI.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import adjointlab as al
from adjointlab.worlds.world import RankContext, World, WorldName
from tests.torch_distributed.programs import PROGRAMS, values

SEEDS = (0, 1)  # of schedules, in simulation


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype is other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def body(context: RankContext, payload: tuple[str, bool]) -> list[str]:
    """The element types for which this rank has a wrong result."""
    name, async_op = payload
    program = PROGRAMS[name]
    wrong = []
    with al.process_group(context.comm):
        for dtype in program.dtypes:
            works = []

            def wait(work: Any, works: list[Any] = works) -> None:
                if work is not None:
                    work.wait()
                    works.append(work.is_completed())

            result = program.run(values(context.rank, dtype), wait, async_op)
            wanted = program.expected([values(rank, dtype) for rank in range(context.size)], context.rank)
            if not equal(result, wanted) or not all(works):
                wrong.append(f"{dtype}: {result}, not {wanted}")
    return wrong


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_collective_has_its_result(adjointlab_world: World, name: str, async_op: bool) -> None:
    in_simulation = adjointlab_world.name is WorldName.SIMULATED
    for ranks in (1, 2, 3) if in_simulation else (adjointlab_world.ranks,):
        for seed in SEEDS if in_simulation else (0,):
            run = adjointlab_world.run(body, (name, async_op), ranks, seed=seed)
            assert run.completed, (run.findings, run.outcomes)
            assert run.values == ([],) * ranks
