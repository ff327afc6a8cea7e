"""Contexts that change a setting of the process: each rank is in its own, and nothing is left behind."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel

import adjointlab as al
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.world import RankContext

SEEDS = range(4)


@pytest.fixture
def world() -> Iterator[SimulatedWorld]:
    world = SimulatedWorld(3)
    yield world
    world.close()


def values(world: SimulatedWorld, program: Any, seed: int, ranks: int = 3) -> tuple[Any, ...]:
    run = world.run(program, None, ranks, seed=seed)
    assert run.completed, run.outcomes
    return run.values


def passed_on(comm: Any) -> None:
    comm.sendrecv(0, (comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)
    comm.barrier()


@pytest.mark.parametrize("seed", SEEDS)
def test_filters_of_warnings_are_those_of_the_rank(world: SimulatedWorld, seed: int) -> None:
    def program(context: RankContext, _: object) -> tuple[bool, int]:
        with warnings.catch_warnings(record=context.rank == 1) as caught:
            warnings.simplefilter("always" if context.rank == 1 else "ignore")
            passed_on(context.comm)
            warnings.warn("within", stacklevel=1)
            passed_on(context.comm)
        return caught is None, len(caught or ())

    before = warnings.filters, list(warnings.filters), warnings.showwarning
    assert values(world, program, seed) == ((True, 0), (False, 1), (True, 0))
    assert (warnings.filters, list(warnings.filters), warnings.showwarning) == before
    with pytest.warns(UserWarning, match="afterwards"):
        warnings.warn("afterwards", stacklevel=1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("ask", "put", "other"),
    [
        (torch.get_default_dtype, torch.set_default_dtype, torch.float64),
        (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 1),
        (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly, True),
    ],
    ids=["default type", "determinism", "anomalies"],
)
def test_a_setting_of_torch_that_a_rank_puts_back_is_that_of_the_rank(
    world: SimulatedWorld, seed: int, ask: Any, put: Any, other: Any
) -> None:
    def program(context: RankContext, _: object) -> list[Any]:
        found = ask()
        passed_on(context.comm)
        if context.rank:
            put(other)
        passed_on(context.comm)
        seen = [found, ask()]
        put(found)
        passed_on(context.comm)
        return [*seen, ask()]

    before = ask()
    assert before != other
    assert values(world, program, seed) == tuple(
        [before, other if rank else before, before] for rank in range(3)
    )
    assert ask() == before


@pytest.mark.parametrize("seed", SEEDS)
def test_kernels_of_attention_are_those_of_the_rank(world: SimulatedWorld, seed: int) -> None:
    def enabled() -> tuple[bool, bool]:
        return torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled()

    def program(context: RankContext, _: object) -> list[tuple[bool, bool]]:
        passed_on(context.comm)
        seen = []
        with sdpa_kernel(SDPBackend.MATH if context.rank else SDPBackend.FLASH_ATTENTION):
            passed_on(context.comm)
            seen.append(enabled())
        passed_on(context.comm)
        return [*seen, enabled()]

    before = enabled()
    assert values(world, program, seed) == (
        [(True, False), before],
        [(False, False), before],
        [(False, False), before],
    )
    assert enabled() == before


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loss_over_classes_that_are_cut_has_torchs_gradient(world: SimulatedWorld, seed: int) -> None:
    whole = torch.arange(64.0, dtype=torch.float64).reshape(4, 16).sin().requires_grad_()
    targets = torch.tensor([1, 2, 3, 0])
    F.cross_entropy(whole, targets).backward()

    def program(context: RankContext, _: object) -> bool:
        with al.process_group(context.comm):
            mesh = init_device_mesh("cpu", (context.comm.size,))
            x = distribute_tensor(whole.detach().clone(), mesh, [Shard(1)]).requires_grad_()
            with loss_parallel():
                F.cross_entropy(x, targets).backward()
            assert isinstance(x.grad, DTensor)
            return torch.allclose(x.grad.full_tensor(), whole.grad)  # type: ignore[arg-type]

    handlers = dict(DTensor._op_dispatcher._custom_op_handlers)
    assert values(world, program, seed, 2) == (True, True)
    assert handlers == DTensor._op_dispatcher._custom_op_handlers


@pytest.mark.parametrize("seed", SEEDS)
def test_plain_tensors_are_replicated_on_the_rank_that_says_so(world: SimulatedWorld, seed: int) -> None:
    dispatcher: Any = DTensor._op_dispatcher

    def program(context: RankContext, _: object) -> tuple[bool, bool]:
        passed_on(context.comm)
        if context.rank:
            passed_on(context.comm)
            within = dispatcher._allow_implicit_replication
        else:
            with implicit_replication():
                passed_on(context.comm)
                within = dispatcher._allow_implicit_replication
        return within, dispatcher._allow_implicit_replication

    assert values(world, program, seed) == ((True, False), (False, False), (False, False))
    assert not dispatcher._allow_implicit_replication


@pytest.mark.usefixtures("forward_mode")
@pytest.mark.parametrize("seed", SEEDS)
def test_each_rank_has_a_level_of_dual_tensors_of_its_own(world: SimulatedWorld, seed: int) -> None:
    def tangent(context: RankContext) -> float:
        x = torch.ones(()) * context.rank
        with forward_ad.dual_level():
            passed_on(context.comm)
            dual = forward_ad.make_dual(x, 10 * x)
            passed_on(context.comm)
            within = forward_ad.unpack_dual(3 * dual).tangent
            with pytest.raises(RuntimeError, match="Nested forward mode AD"), forward_ad.dual_level():
                pass
        assert forward_ad.unpack_dual(dual).tangent is None
        return float(within)

    def program(context: RankContext, _: object) -> tuple[float, ...]:
        # Rank 2 enters one where others have left theirs, or have not entered them yet.
        if context.rank == 2:
            passed_on(context.comm)
        found = tangent(context), tangent(context)
        if context.rank != 2:
            passed_on(context.comm)
        return found

    assert values(world, program, seed) == ((0, 0), (30, 30), (60, 60))
    with forward_ad.dual_level():  # none is left open
        pass


@pytest.mark.usefixtures("forward_mode")
def test_a_level_of_dual_tensors_that_a_rank_leaves_open_is_closed_after_the_run(
    world: SimulatedWorld,
) -> None:
    def program(context: RankContext, _: object) -> int:
        level = forward_ad.enter_dual_level()
        if context.rank > 0:
            forward_ad.exit_dual_level()
        passed_on(context.comm)
        return level

    assert values(world, program, 0) == (0, 0, 0)
    with forward_ad.dual_level():
        pass


@pytest.mark.usefixtures("forward_mode")
@pytest.mark.parametrize("seed", SEEDS)
def test_functions_that_communicate_are_differentiated_forwards_by_each_rank(
    world: SimulatedWorld, seed: int
) -> None:
    def program(context: RankContext, _: object) -> tuple[float, float]:
        def inner(x: torch.Tensor) -> torch.Tensor:
            passed_on(context.comm)
            return x**3

        def outer(x: torch.Tensor) -> Any:
            passed_on(context.comm)
            return torch.func.jvp(inner, (x,), (torch.ones(()),))[1]  # 3 x²

        first, second = torch.func.jvp(outer, (torch.ones(()) * context.rank,), (torch.ones(()),))
        return float(first), float(second)

    assert values(world, program, seed) == ((0, 0), (3, 6), (12, 12))
