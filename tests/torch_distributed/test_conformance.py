"""Every collective of torch.distributed has the same result in every world: the one that a few lines of plain torch compute.

``mpiexec -n 3 python -m pytest --with-mpi tests/torch_distributed/test_conformance.py`` runs the same over MPI, and
``torchrun --nproc-per-node 3 -m pytest tests/torch_distributed/test_conformance.py`` on gloo, whose differences are declared.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

import adjointlab as al
from adjointlab.worlds.world import RankContext, World, WorldName
from tests.torch_distributed.programs import ON_GLOO, PROGRAMS, Difference, values

SEEDS = (0, 1)  # of schedules, in simulation


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype is other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


class Results(NamedTuple):
    """The element types for which a rank has a wrong result, and those for which it differs as declared."""

    wrong: list[str]
    differing: set[torch.dtype]


def body(context: RankContext, payload: tuple[str, bool, tuple[Difference, ...]]) -> Results:
    name, async_op, differences = payload
    program, results = PROGRAMS[name], Results([], set())
    declared = {dtype: each.error for each in differences for dtype in each.dtypes}
    with al.process_group(context.comm):
        for dtype in program.dtypes:
            works = []

            def wait(work: Any, works: list[Any] = works) -> None:
                if work is not None:
                    work.wait()
                    works.append(work.is_completed())

            try:
                result = program.run(values(context.rank, dtype), wait, async_op)
            except RuntimeError as error:
                if not declared.get(dtype) or declared[dtype] not in str(error):
                    raise
                results.differing.add(dtype)
                continue
            wanted = program.expected([values(rank, dtype) for rank in range(context.size)], context.rank)
            if not equal(result, wanted) or not all(works):
                if declared.get(dtype) == "":
                    results.differing.add(dtype)
                else:
                    results.wrong.append(f"{dtype}: {result}, not {wanted}")
    return results


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_collective_has_its_result(adjointlab_world: World, name: str, async_op: bool) -> None:
    in_simulation = adjointlab_world.name is WorldName.SIMULATED
    differences = ON_GLOO[name] if adjointlab_world.name is WorldName.TORCH else ()
    differences = tuple(each for each in differences if each.async_op in (None, async_op))
    declared = {dtype for each in differences for dtype in each.dtypes} & set(PROGRAMS[name].dtypes)
    for ranks in (1, 2, 3) if in_simulation else (adjointlab_world.ranks,):
        for seed in SEEDS if in_simulation else (0,):
            run = adjointlab_world.run(body, (name, async_op, differences), ranks, seed=seed)
            assert run.completed, (run.findings, run.outcomes)
            assert [each.wrong for each in run.values] == [[]] * ranks
            assert set().union(*(each.differing for each in run.values)) == declared
