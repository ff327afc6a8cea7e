"""A hang in a backward pass says so, on which ranks, and what required a gradient where; one outside of it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.context import InputSetting
from adjointlab.engine.case import Case
from adjointlab.engine.run_case import judge
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.worlds.backward import BackwardPass, backward_lines
from adjointlab.worlds.launch import is_launched
from adjointlab.worlds.run import Blocked
from adjointlab.worlds.world import World

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def impatient() -> World:
    # Not closed: messages of a run that was ended may be on their way, and MPI gives a communicator's number to the next.
    world: World = al.MPIWorld(patience=0.5) if is_launched() else al.SimulatedWorld(2)
    if world.ranks < 2:
        pytest.skip("two processes are needed: run under mpiexec -n 2")
    return world


def calling_in_backward(call: Callable[[], object]) -> Any:
    """The identity, whose backward pass calls `call`."""

    class Identity(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            call()
            return gradient

    return Identity.apply


def collective_in_backward(comm: Any) -> Any:
    """The identity, whose backward pass is collective."""
    return calling_in_backward(lambda: comm.Allreduce(np.ones(1), np.empty(1)))


class Twin(torch.nn.Module):
    def __init__(self, layout: al.Layout) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(layout.shape, dtype=torch.float64))

    def forward(self, x: Any) -> Any:
        return x * self.weight


class Scaled(torch.nn.Module):
    """x times a weight of each rank's own, with a collective in the backward pass of x; it waits in vain where x needs none on some rank."""

    def __init__(self, comm: Any, layout: al.Layout) -> None:
        super().__init__()
        self.domain, self.codomain = al.Space(layout), al.Space(layout, name="y")
        self.parameter_space = al.Space(al.Tensor(layout, name="weight"))
        self.weight = torch.nn.Parameter(torch.ones(layout.local_shape(comm.Get_rank()), dtype=torch.float64))
        self.sum = collective_in_backward(comm)

    def forward(self, x: Any) -> Any:
        return self.sum(x) * self.weight


@al.subject(layer=Scaled, sequential=Twin, ranks=(2,), name="Scaled")
def scaled(draw: Any, ranks: int) -> dict[str, Any]:
    return dict(layout=al.Layout((2 * ranks,), (ranks,)))


@al.subject.autograd(
    lambda comm, x, layout: collective_in_backward(comm)(x) if comm.Get_rank() else x.detach(),
    ranks=(2,),
    name="Pruned",
)
def pruned(draw: Any, ranks: int) -> dict[str, Any]:
    layout = al.Layout((ranks,), (ranks,))
    return dict(domain=al.Space(layout), codomain=al.Space(layout, name="y"), layout=layout)


@pytest.mark.parametrize("in_backward", [True, False])
def test_a_wait_in_a_backward_pass_is_told_from_one_outside_of_it(
    impatient: World, in_backward: bool
) -> None:
    def body(context: Any, _: Any) -> None:
        rank = context.rank
        note = context.comm.note_backward
        note(BackwardPass({"x": rank == 0, "w": True}, rank == 0))

        def waits() -> object:
            return context.comm.recv(source=1)

        if rank == 0 and in_backward:
            x = torch.ones(2, dtype=torch.float64, requires_grad=True)
            calling_in_backward(waits)(x).sum().backward()
        elif rank == 0:
            waits()

    run = impatient.run(body, ranks=2)
    first = run.outcomes[0]
    assert isinstance(first, Blocked)
    assert first.in_backward is in_backward
    lines = dict(judge(Case("waits", "adjoint", 2, {}, InputSetting(), 0), run).lines)
    if not in_backward:
        assert "backward" not in lines
        return
    assert lines["backward"].splitlines() == [
        "rank 0 was in backward",
        "rank 1 had no backward pass, as nothing that it returned requires a gradient",
        "x requires a gradient on rank 0",
        "w requires a gradient on every rank",
        "if its messages may depend on what requires a gradient, and this is the same on all ranks wherever it is used, declare "
        "uniform_requires_grad = True",
    ]


@pytest.mark.skipif(is_launched(), reason="simulated ranks find it in less time")
@pytest.mark.parametrize(
    ("subject", "check", "expected"),
    [
        (
            scaled,
            "gradients",
            {"was in backward", "weight requires a gradient", "x requires a gradient on rank "},
        ),
        (
            pruned,
            "adjoint",
            {"rank 1 was in backward", "rank 0 had no backward pass", "x requires a gradient on every rank"},
        ),
    ],
    ids=["layer", "autograd function"],
)
def test_a_failure_says_what_required_a_gradient_where(subject: Any, check: str, expected: set[str]) -> None:
    world = al.SimulatedWorld(2)
    found = investigate(world, subject, check, Budget(cases=60, seed=1))
    world.close()
    text = dict(found.verdict.lines)["backward"]
    assert {phrase for phrase in expected if phrase in text} == expected


def test_tensors_alike_share_a_line_and_a_run_without_backward_has_none() -> None:
    passes = [BackwardPass({"x": True, "w": True, "b": False}, True)] * 3
    assert list(backward_lines([False] * 3, passes)) == []
    assert list(backward_lines([True, False, True], [*passes[:2], None])) == [
        "ranks 0, 2 were in backward",
        "x, w require a gradient on ranks 0, 1",
        "b requires a gradient on no rank",
    ]
    again = passes[0]._replace(again=True)
    assert "rank 1 went through one graph for the second time, as with retain_graph=True" in list(
        backward_lines([True] * 3, [passes[0], again, passes[2]])
    )


def test_a_hang_names_what_a_backward_pass_did_not_reach_and_on_which_ranks() -> None:
    passes = [BackwardPass({"x": True, "w": True}, True)] * 3
    left_out = passes[0]._replace(without=("w",))
    told = list(backward_lines([True, False, False], [passes[0], left_out, left_out]))
    assert told[2:] == [
        "on ranks 1, 2 a backward pass has ended without a gradient of w, on which the loss did not depend there"
    ]
    # That it had no backward pass is said already.
    without_graph = left_out._replace(has_graph=False)
    assert not any("ended" in line for line in backward_lines([True] * 3, [*passes[:2], without_graph]))


def test_a_parameter_of_one_rank_alone_does_not_require_a_gradient_otherwise_on_the_others() -> None:
    passes = [BackwardPass({"x": True, "w": True}, True), BackwardPass({"x": True}, True)]
    assert list(backward_lines([True, False], passes)) == [
        "rank 0 was in backward",
        "x requires a gradient on every rank",
        "w requires a gradient on rank 0",
    ]


class LeftOut(Scaled):
    """The sum of x and a weight, with a collective in the backward pass of the weight, which rank 1 leaves out."""

    uniform_requires_grad = True

    def __init__(self, comm: Any, layout: al.Layout) -> None:
        super().__init__(comm, layout)
        self.is_first = comm.Get_rank() == 0
        self.made = 1  # as an attribute of a user's may be called

    def forward(self, x: Any) -> Any:
        return x + (self.sum(self.weight) if self.is_first else self.weight.detach())


class AddedTwin(Twin):
    def forward(self, x: Any) -> Any:
        return x + self.weight


@al.subject(layer=LeftOut, sequential=AddedTwin, ranks=(2,), name="LeftOut")
def left_out_on_a_rank(draw: Any, ranks: int) -> dict[str, Any]:
    return dict(layout=al.Layout((2 * ranks,), (ranks,)))


@pytest.mark.skipif(is_launched(), reason="simulated ranks find it in less time")
def test_a_rank_that_leaves_a_parameter_out_of_its_loss_is_told_where_the_others_wait_for_it() -> None:
    world = al.SimulatedWorld(2)
    found = investigate(world, left_out_on_a_rank, "gradients", Budget(cases=20, seed=1))
    world.close()
    assert (
        "on rank 1 a backward pass has ended without a gradient of weight"
        in dict(found.verdict.lines)["backward"]
    )
