"""Collectives within `torch.func.jvp`, which wraps tensors: they have the results that they have elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import adjointlab as al
from adjointlab.checks.verdict import Status
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.worlds.world import RankContext
from tests.torch_distributed.programs import PROGRAMS, values
from tests.torch_distributed.test_conformance import equal

pytestmark = pytest.mark.usefixtures("forward_mode")


def plain(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        while torch._C._functorch.is_gradtrackingtensor(result):
            result = torch._C._functorch.get_unwrapped(result)
        return result
    return list(map(plain, result)) if isinstance(result, list | tuple) else result


# Without those of objects, which torch itself does not serialise there.
@pytest.mark.parametrize(
    "name", [name for name, each in PROGRAMS.items() if torch.float64 in each.dtypes and name != "objects"]
)
def test_a_collective_of_wrapped_tensors_has_its_result(world: al.SimulatedWorld, name: str) -> None:
    program, dtype = PROGRAMS[name], torch.float64

    def wait(work: Any) -> None:
        if work is not None:
            work.wait()

    def body(context: RankContext, _: object) -> bool:
        results = []

        def function(x: torch.Tensor) -> torch.Tensor:
            results.append(program.run(x, wait, True))
            return x

        x = values(context.rank, dtype)
        with al.process_group(context.comm):
            torch.func.jvp(function, (x,), (torch.ones_like(x),))
        wanted = program.expected([values(rank, dtype) for rank in range(context.size)], context.rank)
        with torch._C._DisableFuncTorch():
            return equal(plain(results[0]), wanted)

    run = world.run(body, None, 3)
    assert run.completed, (run.outcomes, run.findings)
    assert all(run.values)


class Shift(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return moved(x, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return moved(gradient, -1)

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
        return moved(tangent, 1)


class WronglyShifted(Shift):
    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
        return moved(tangent, -1)


def moved(x: torch.Tensor, steps: int) -> torch.Tensor:
    rank, size = dist.get_rank(), dist.get_world_size()
    result = torch.empty_like(x)
    sends = dist.P2POp(dist.isend, x.contiguous(), (rank + steps) % size)
    receives = dist.P2POp(dist.irecv, result, (rank - steps) % size)
    for work in dist.batch_isend_irecv([sends, receives]) if size > 1 else []:
        work.wait()
    return result if size > 1 else x.clone()


@pytest.mark.parametrize("shift", [Shift, WronglyShifted])
def test_a_tangent_linear_model_is_checked_against_the_adjoint_one(
    world: al.SimulatedWorld, shift: type[torch.autograd.Function]
) -> None:
    def model(u: torch.Tensor) -> torch.Tensor:
        return u * shift.apply(u) + u**2

    def state(v: torch.Tensor) -> torch.Tensor:
        return torch.arange(len(v), dtype=v.dtype) + 1 + dist.get_rank()

    def tangent(v: torch.Tensor) -> Any:
        return torch.func.jvp(model, (state(v),), (v,))[1]

    def adjoint(w: torch.Tensor) -> Any:
        return torch.func.vjp(model, state(w))[1](w)[0]

    @al.subject.pair(tangent, adjoint, process_group=True)
    def models(draw: Any, ranks: int) -> dict[str, Any]:
        space = al.Space(al.Layout((2 * ranks,), al.Partition((ranks,))))
        return dict(domain=space, codomain=space)

    result = investigate(world, models, "adjoint", Budget(10, ranks=3, seed=1))
    assert result.status is (Status.COHERENT if shift is Shift else Status.INCOHERENT), result.verdict
