"""Linear operators as differentiable functions: reverse mode, forward mode, double backward, and what ranks may leave out."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from adjointlab import Layout, Partition
from adjointlab.layers import differentiable as bridge
from adjointlab.layers.differentiable import apply, carried, differentiable
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.worlds.forward_mode import dual_level
from adjointlab.worlds.run import Run
from adjointlab.worlds.world import RankContext, World

RANKS = 2
LINE = Partition((RANKS,))


def operators(comm: Any) -> tuple[Broadcast, AllSumReduce]:
    """From rank 1 to all ranks, and the sum over all ranks."""
    one = Partition((1,), [1])
    return (
        Broadcast(comm, Layout((3,), one), LINE, preserve_batch=False),
        AllSumReduce(comm, Layout((3,), LINE, axes=(None,)), (0,)),
    )


def x_of(rank: int) -> torch.Tensor:
    return torch.arange(1.0, 4.0, dtype=torch.float64) if rank == 1 else torch.zeros(0, dtype=torch.float64)


def composed(comm: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """z = A (r (B x)²) on every rank, where r is 1 and 2: every z is 3 x²."""
    spread, total = operators(comm)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = apply(spread, x)
        result: torch.Tensor = apply(total, y * y * (comm.Get_rank() + 1))
        return result

    return function


def run(world: World, body: Callable[[RankContext, Any], Any]) -> Run:
    if world.ranks < RANKS:
        pytest.skip(f"needs {RANKS} ranks")
    return world.run(body, None, RANKS)


def values_of(world: World, body: Callable[[RankContext, Any], Any]) -> tuple[Any, ...]:
    done = run(world, body)
    assert done.completed, done.outcomes
    return done.values


def test_reverse_mode_is_the_adjoint_of_the_composition(adjointlab_world: World) -> None:
    def body(context: RankContext, _: Any) -> Any:
        x = x_of(context.rank).requires_grad_()
        z = composed(context.comm)(x)
        z.sum().backward()
        return z.tolist(), x.grad.tolist() if x.grad is not None else None

    values = values_of(adjointlab_world, body)
    # Both ranks add z up: the derivative of 2 * 3 x² is 12 x.
    assert values == (([3.0, 12.0, 27.0], []), ([3.0, 12.0, 27.0], [12.0, 24.0, 36.0]))


def test_forward_mode_is_the_composition_itself(adjointlab_world: World) -> None:
    def body(context: RankContext, _: Any) -> Any:
        x = x_of(context.rank)
        z = composed(context.comm)(forward_ad.make_dual(x, torch.ones_like(x)))  # type: ignore[no-untyped-call]
        tangent = forward_ad.unpack_dual(z).tangent  # type: ignore[no-untyped-call]
        return tangent.tolist()

    with dual_level():  # opened before they begin: the ranks find it so
        assert values_of(adjointlab_world, body) == ([6.0, 12.0, 18.0],) * RANKS


def test_a_gradient_can_be_differentiated_again(adjointlab_world: World) -> None:
    def body(context: RankContext, _: Any) -> Any:
        x = x_of(context.rank).requires_grad_()
        z = composed(context.comm)(x)
        (first,) = torch.autograd.grad((z * z).sum(), [x], create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), [x])
        return first.tolist(), second.tolist()

    values = values_of(adjointlab_world, body)
    # Of 2 * 9 x⁴: 72 x³ and 216 x².
    assert values[1] == ([72.0, 576.0, 1944.0], [216.0, 864.0, 1944.0])


def cubed(comm: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """z = A (B x)³ on every rank, of which rank 0, which holds as much as the others, takes no part: z is x³ of rank 1."""
    spread, total = operators(comm)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = apply(spread, x)
        # On rank 0 zeros that depend on y, but linearly: in a graph of torch's their second derivative ends here.
        result: torch.Tensor = apply(total, y**3 if comm.Get_rank() == 1 else 0 * y)
        return result

    return function


def second_derivatives(context: RankContext, _: Any) -> Any:
    x = x_of(context.rank).requires_grad_()
    z = cubed(context.comm)(x)
    (first,) = torch.autograd.grad(z.sum() / RANKS, [x], create_graph=True)
    first.sum().backward()
    return None if x.grad is None else x.grad.tolist()


def test_a_second_pass_goes_where_the_function_of_one_rank_is_linear(adjointlab_world: World) -> None:
    assert values_of(adjointlab_world, second_derivatives)[1] == [6.0, 12.0, 18.0]


def test_without_the_way_back_to_the_application_that_rank_is_missed(
    adjointlab_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    if adjointlab_world.name != "simulated":
        pytest.skip("a hang on real ranks costs its patience")
    applied = bridge.applied
    monkeypatch.setattr(bridge, "applied", lambda operator, x, anchor=None: applied(operator, x))
    done = run(adjointlab_world, second_derivatives)
    assert any("rank 0 (which has ended)" in finding.text for finding in done.findings), done


def test_forward_mode_goes_through_a_backward_pass_where_the_function_of_one_rank_is_linear(
    adjointlab_world: World,
) -> None:
    def body(context: RankContext, _: Any) -> Any:
        leaf = x_of(context.rank).requires_grad_()
        x = forward_ad.make_dual(leaf, torch.ones_like(leaf))  # type: ignore[no-untyped-call]
        z = cubed(context.comm)(x)
        (first,) = torch.autograd.grad(z.sum() / RANKS, [x])
        return forward_ad.unpack_dual(first).tangent.tolist()  # type: ignore[no-untyped-call]

    with dual_level():
        assert values_of(adjointlab_world, body)[1] == [6.0, 12.0, 18.0]


def test_a_checkpoint_is_computed_again_where_the_function_saves_nothing(adjointlab_world: World) -> None:
    def body(context: RankContext, _: Any) -> Any:
        x = x_of(context.rank).requires_grad_()
        z = checkpoint(cubed(context.comm), x, use_reentrant=False)  # type: ignore[no-untyped-call]
        (z.sum() / RANKS).backward()
        assert x.grad is not None
        return x.grad.tolist()

    assert values_of(adjointlab_world, body)[1] == [3.0, 12.0, 27.0]


def test_a_graph_that_is_gone_is_torchs_error_on_every_rank(adjointlab_world: World) -> None:
    def body(context: RankContext, _: Any) -> None:
        x = x_of(context.rank).requires_grad_()
        z = cubed(context.comm)(x)
        z.sum().backward()
        with pytest.raises(RuntimeError, match="through the graph a second time"):
            z.sum().backward()

    done = run(adjointlab_world, body)
    assert done.completed, done.outcomes


def test_a_rank_takes_part_in_backward_though_nothing_there_requires_a_gradient(
    adjointlab_world: World,
) -> None:
    def body(context: RankContext, _: Any) -> Any:
        x = x_of(context.rank)
        x.requires_grad_(context.rank == 1)
        z = composed(context.comm)(x)
        z.sum().backward()
        return z.requires_grad, None if x.grad is None else x.grad.tolist()

    assert values_of(adjointlab_world, body) == ((True, None), (True, [12.0, 24.0, 36.0]))


def test_freezing_after_the_forward_pass_changes_no_message(adjointlab_world: World) -> None:
    def body(context: RankContext, _: Any) -> Any:
        leaf = x_of(context.rank).requires_grad_()
        z = composed(context.comm)(leaf)
        leaf.requires_grad_(context.rank != 1)
        z.sum().backward()
        return True

    done = run(adjointlab_world, body)
    assert done.completed, done.outcomes


def leaves_behind(result: torch.Tensor) -> list[torch.Tensor]:
    """The leaves that a backward pass from `result` reaches."""
    found, to_visit = [], [result.grad_fn]
    while to_visit:
        node: Any = to_visit.pop()
        if hasattr(node, "variable"):
            found.append(node.variable)
        to_visit += [before for before, _ in node.next_functions if before is not None]
    return found


def test_only_an_application_without_a_gradient_to_give_adds_a_leaf_to_the_graph(
    adjointlab_world: World,
) -> None:
    def body(context: RankContext, _: Any) -> Any:
        _, total = operators(context.comm)
        x = torch.ones(3, dtype=torch.float64)
        leaf = x.clone().requires_grad_()
        (reached,) = leaves_behind(apply(total, leaf))
        (anchor,) = leaves_behind(apply(total, x))
        return reached is leaf, anchor.numel()

    assert values_of(adjointlab_world, body) == ((True, 0),) * RANKS


def test_an_application_through_torch_calls_few_functions_of_python(adjointlab_world: World) -> None:
    """After other work the caches are cold, and then each function costs about a microsecond."""
    ours = tuple(f"{folder}{os.sep}" for folder in ("core", "layers", "primitives"))

    def body(context: RankContext, _: Any) -> Any:
        spread = Broadcast(context.comm, Layout((4,), LINE), LINE, preserve_batch=False)
        x, cotangent = torch.ones(2, dtype=torch.float64).requires_grad_(), torch.ones(2, dtype=torch.float64)
        calls: list[str] = []

        def profile(frame: FrameType, event: str, _: object) -> None:
            path = frame.f_code.co_filename
            if event == "call" and any(folder in path for folder in ours) and "site-packages" not in path:
                calls.append(frame.f_code.co_qualname)

        for _number in range(2):  # what is remembered is remembered the second time
            calls.clear()
            before = sys.getprofile()
            sys.setprofile(profile)
            try:
                apply(spread, x).backward(cotangent)
            finally:
                sys.setprofile(before)
        return len(calls), sorted(calls)

    for number, calls in values_of(adjointlab_world, body):
        assert 20 < number <= 46, calls  # 98 when each look-up was a call


def test_an_identity_is_left_out_but_what_it_takes_is_checked_and_every_result_requires_a_gradient(
    adjointlab_world: World,
) -> None:
    def body(context: RankContext, _: Any) -> Any:
        stays = Broadcast(context.comm, Layout((4,), LINE), LINE, preserve_batch=False)
        leaf, plain = (torch.ones(2, dtype=torch.float64) for _ in range(2))
        leaf.requires_grad_()
        with pytest.raises(ValueError, match=r"x: shape \(3,\) on rank"):
            carried(stays, torch.ones(3, dtype=torch.float64).requires_grad_())
        with torch.no_grad():
            unrecorded = carried(stays, plain)
        z = carried(stays, plain)
        return stays.is_identity, carried(stays, leaf) is leaf, unrecorded is plain, z.requires_grad

    assert values_of(adjointlab_world, body) == ((True,) * 4,) * RANKS


def test_what_moves_something_is_no_identity(adjointlab_world: World) -> None:
    def body(context: RankContext, _: Any) -> Any:
        spread, total = operators(context.comm)
        x = x_of(context.rank).requires_grad_()
        return spread.is_identity, total.is_identity, carried(spread, x).tolist()

    assert values_of(adjointlab_world, body) == ((False, False, [1.0, 2.0, 3.0]),) * RANKS


def test_checkpoints_and_no_grad_go_through(adjointlab_world: World) -> None:
    def body(context: RankContext, _: Any) -> Any:
        function = composed(context.comm)
        x = x_of(context.rank).requires_grad_()
        checkpoint(function, x, use_reentrant=False).sum().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            z = function(x)
        return x.grad.tolist() if x.grad is not None else None, z.requires_grad

    assert values_of(adjointlab_world, body) == (([], False), ([12.0, 24.0, 36.0], False))


def test_a_rank_that_stays_away_from_a_pruned_backward_pass_is_named(adjointlab_world: World) -> None:
    if adjointlab_world.name != "simulated":
        pytest.skip("a hang on real ranks costs its patience")

    def body(context: RankContext, _: Any) -> Any:
        spread, _total = operators(context.comm)
        x = x_of(context.rank).requires_grad_()
        y = differentiable(spread)(x)
        # Rank 1 asks for the gradient of x, rank 0 only for that of y.
        wanted = x if context.rank == 1 else y
        return torch.autograd.grad(y.sum(), [wanted])

    done = run(adjointlab_world, body)
    assert not done.completed
    assert any("rank 0 (which has ended)" in finding.text for finding in done.findings)


def test_an_application_does_not_bind_its_arguments_to_a_signature(
    adjointlab_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bind = inspect.Signature.bind
    bound: list[inspect.Signature] = []

    def recorded(signature: inspect.Signature, *arguments: Any, **named: Any) -> inspect.BoundArguments:
        bound.append(signature)
        return bind(signature, *arguments, **named)

    monkeypatch.setattr(inspect.Signature, "bind", recorded)

    def body(context: RankContext, _: Any) -> Any:
        x = x_of(context.rank).requires_grad_()
        composed(context.comm)(x).sum().backward()
        return True

    values_of(adjointlab_world, body)
    assert inspect.signature(bridge._Apply.forward) not in bound


def test_only_a_backward_pass_that_is_differentiated_applies_the_adjoint_as_a_function(
    adjointlab_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied = bridge.applied

    def body(context: RankContext, _: Any) -> Any:
        calls: list[object] = []

        def recorded(operator: Any, x: Any, anchor: Any = None) -> Any:
            calls.append(operator)
            return applied(operator, x, anchor)

        spread, _total = operators(context.comm)
        x = x_of(context.rank).requires_grad_()
        numbers = []
        for create_graph in (False, True):
            y = apply(spread, x)
            with monkeypatch.context() as patched:
                patched.setattr(bridge, "applied", recorded)
                torch.autograd.grad(y.sum(), [x], create_graph=create_graph)
            numbers.append(len(calls))
        return numbers

    if adjointlab_world.name == "simulated":
        pytest.skip("simulated ranks share the module that is patched")
    assert values_of(adjointlab_world, body) == ([0, 1],) * RANKS


def test_torchs_function_transforms_are_those_of_autograd(adjointlab_world: World) -> None:
    def body(context: RankContext, _: Any) -> Any:
        function = cubed(context.comm)
        x = x_of(context.rank)

        def value(x: torch.Tensor) -> torch.Tensor:
            return function(x).sum() / RANKS

        first = torch.func.grad(value)(x)
        second = torch.func.grad(lambda x: torch.func.grad(value)(x).sum())(x)
        tangent = torch.func.jvp(function, (x,), (torch.ones_like(x),))[1]
        return first.tolist(), second.tolist(), tangent.tolist()

    if adjointlab_world.name == "simulated":
        pytest.skip("a transform is a state of the process, which simulated ranks share")
    assert values_of(adjointlab_world, body)[1] == ([3.0, 12.0, 27.0], [6.0, 12.0, 18.0], [3.0, 12.0, 27.0])
