"""Layers that return views of their parameters, tie them, or have no derivative at a point, and twins and references of other shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import adjointlab as al
from adjointlab.checks.check import checks_of
from adjointlab.checks.context import CheckContext, InputSetting
from adjointlab.checks.layers.jacobian import JACOBIAN
from adjointlab.checks.verdict import Status
from adjointlab.core.layer import Layer
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget, SearchResult
from adjointlab.engine.subject import Subject
from adjointlab.worlds.simulated.world import SimulatedWorld
from tests.checks.looks.harness import WORLD

pytestmark = pytest.mark.mpi_skip

SIDES = (6, 2)


def report(world: SimulatedWorld, subject: Subject, check: str, cases: int = 12) -> SearchResult:
    return investigate(world, subject, check, Budget(cases, seed=1, shrinking=0))


def assert_right(world: SimulatedWorld, subject: Subject) -> None:
    reports = {check: report(world, subject, check) for check in checks_of(subject)}
    assert {
        check: str(each.verdict) for check, each in reports.items() if each.status is not Status.COHERENT
    } == {}


def layers(layer: Callable[..., nn.Module], twin: Callable[..., nn.Module], *names: str) -> Subject:
    """A subject whose tensors are all cut along their rows, and whose parameters have these names."""

    def made(comm: Any, layout: al.Layout) -> nn.Module:
        return layer(layout.local_shape(comm.Get_rank()))

    @al.subject(
        layer=made,
        sequential=lambda layout: twin(SIDES),
        ranks=(1, 2, 3),
        name="Rows",
        twice_differentiable=True,
    )
    def draws(draw: Any, ranks: int) -> dict[str, Any]:
        ends = [draw(al.strategies.cuts(SIDES[0], ranks)), None]
        layout = al.Layout.cut(SIDES, al.Partition((ranks, 1)), ends)
        return {
            "layout": layout,
            "domain": al.Space(layout),
            "codomain": al.Space(layout, name="y"),
            "parameter_space": al.Space(*(al.Tensor(layout, name=name) for name in names)),
        }

    return draws


# Views of parameters.


class Positions(nn.Module):
    """Positions, of which each row of the input gets one."""

    def __init__(self, sides: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(sides, dtype=torch.float64))
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.weight[: len(x)]


class Transposed(Positions):
    def forward(self, x: Any) -> Any:
        return self.weight.T.T


class Expanded(Positions):
    def forward(self, x: Any) -> Any:
        return self.weight[None].expand(1, *x.shape)[0]


class Whole(Positions):
    def forward(self, x: Any) -> Any:
        return self.weight


@pytest.mark.parametrize("kind", [Positions, Transposed, Expanded, Whole])
def test_a_layer_may_return_a_view_of_a_parameter(world: SimulatedWorld, kind: type[nn.Module]) -> None:
    assert_right(world, layers(kind, kind, "weight"))


class SpoiledBySecondCall(Positions):
    """The parameter that the first call has returned, into which the second call writes."""

    def forward(self, x: Any) -> Any:
        if self.calls == 1 and len(x):
            with torch.no_grad():
                self.weight[-1] += 1
        return super().forward(x)


class SpoiledByBackwardPass(Positions):
    def after_backward(self) -> None:
        with torch.no_grad():
            self.weight += 1


class Buffered(Positions):
    """The same memory at every call, which is no parameter's."""

    def forward(self, x: Any) -> Any:
        y = super().forward(x).clone()
        if self.calls == 1:
            self.first = y
        elif len(x):
            self.first.data[-1] += 1
        return y


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (SpoiledBySecondCall, "sequential"),
        (SpoiledBySecondCall, "gradients"),
        (SpoiledByBackwardPass, "gradients"),
        (Buffered, "sequential"),
        (Buffered, "gradients"),
    ],
)
def test_a_layer_must_not_write_into_what_it_has_returned_be_it_a_view_of_a_parameter_or_not(
    world: SimulatedWorld, kind: type[nn.Module], check: str
) -> None:
    found = report(world, layers(kind, Positions, "weight"), check)
    assert found.verdict.headline == "the layer writes into what it has returned before", found.verdict


# Tied parameters.


class Tied(nn.Module):
    """x a b, where a and b are one parameter."""

    def __init__(self, sides: tuple[int, ...]) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(sides, dtype=torch.float64))
        self.b = self.a

    def forward(self, x: Any) -> Any:
        return x * self.a * self.b


class Untied(Tied):
    def __init__(self, sides: tuple[int, ...]) -> None:
        super().__init__(sides)
        self.b = nn.Parameter(torch.ones(sides, dtype=torch.float64))


class Detached(Tied):
    def forward(self, x: Any) -> Any:
        return x * self.a * self.b.detach()


@pytest.mark.parametrize("names", ["ab", "ba", "a", "b"])
def test_tied_parameters_may_be_declared_under_one_name_or_under_both(
    world: SimulatedWorld, names: str
) -> None:
    assert_right(world, layers(Tied, Tied, *names))


@pytest.mark.parametrize("check", ["gradients", "jacobian", "double_backward"])
def test_a_wrong_gradient_of_tied_parameters_is_found(world: SimulatedWorld, check: str) -> None:
    found = report(world, layers(Detached, Tied, "a", "b"), check)
    assert found.status is Status.INCOHERENT, found.verdict


@pytest.mark.parametrize("check", ["sequential", "gradients"])
@pytest.mark.parametrize(("kind", "twin"), [(Tied, Untied), (Untied, Tied)])
def test_parameters_that_one_side_ties_and_the_other_does_not_are_found(
    world: SimulatedWorld, kind: type[nn.Module], twin: type[nn.Module], check: str
) -> None:
    found = report(world, layers(kind, twin, "a", "b"), check)
    assert found.status is Status.INCOHERENT, found.verdict


# Points without a derivative.


class Applied(nn.Module):
    def __init__(self, function: Callable[[Any], Any], forward_mode: bool) -> None:
        super().__init__()
        self.function, self.forward_mode = function, forward_mode

    def forward(self, x: Any) -> Any:
        return self.function(x)


def copies(
    function: Callable[[Any], Any], forward_mode: bool, prepare: Callable[..., Any] = lambda x: (x,)
) -> Subject:
    """A function of copies with values of their own, so that there is no sequential input."""

    def made(*_: Any) -> nn.Module:
        return Applied(function, forward_mode)

    @al.subject(layer=made, sequential=made, ranks=(2, 3), name="Applied", prepare=prepare)
    def draws(draw: Any, ranks: int) -> dict[str, Any]:
        space = al.Space(al.Layout((4,), al.Partition((ranks,)), axes=(None,)))
        return {"domain": space, "codomain": space, "rounding": 2.0**-40}

    return draws


@pytest.mark.parametrize("forward_mode", [True, False])
def test_a_layer_that_is_finite_at_no_point_without_a_twin_is_not_judged(
    world: SimulatedWorld, forward_mode: bool
) -> None:
    # The logarithm of a negative number is NaN, and its derivative is not.
    subject = copies(torch.log, forward_mode, prepare=lambda x: (-1 - abs(x),))
    found = report(world, subject, "jacobian")
    assert found.status is Status.UNJUDGED, found.verdict
    assert found.verdict.headline.startswith("no case could be judged"), found.verdict


@pytest.mark.parametrize("forward_mode", [True, False])
def test_one_that_is_finite_at_some_points_is_judged_at_those(
    world: SimulatedWorld, forward_mode: bool
) -> None:
    found = report(world, copies(torch.log, forward_mode, prepare=lambda x: (abs(x),)), "jacobian", cases=20)
    assert found.status is Status.COHERENT, found.verdict


class WithInteger(nn.Module):
    """x + q, where the parameter q is an integer."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Parameter(torch.ones(4, dtype=torch.int64), requires_grad=False)

    def forward(self, x: Any) -> Any:
        return x + self.q


def test_differences_leave_integer_parameters_as_they_are() -> None:
    layout = al.Layout((4,), (2,), axes=[None])
    x, y, nothing = al.Space(layout), al.Space(layout, name="y"), al.Space()
    q = al.Space(al.Tensor(layout, "int64", name="q"))

    def observe(rank_context: Any, _: object) -> Any:
        comm = rank_context.comm
        layer = Layer(comm, WithInteger(), x, y, q, nothing)
        return JACOBIAN.observe(CheckContext(lambda: layer, InputSetting(2, "torch"), comm, WithInteger))

    with JACOBIAN.surroundings():
        run = WORLD.run(observe, None, 2)
    assert run.completed, run
    for products in run.values:
        assert float(products.differences.product.real) == pytest.approx(
            float(products.reverse.real), abs=1e-9
        )


# Shapes of the twin and of the reference.


class Counted(nn.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(shape, dtype=torch.float64))

    def forward(self, x: Any) -> Any:
        if not self.calls.numel():
            self.calls = torch.zeros_like(x)
        self.calls = self.calls + 1
        return 2 * x


def counted(shape: tuple[int, ...]) -> Subject:
    """A layer with a buffer of three elements, and a twin with one of this shape."""

    @al.subject(
        layer=lambda comm: Counted((3,)), sequential=lambda: Counted(shape), ranks=(1, 2), name="Counted"
    )
    def draws(draw: Any, ranks: int) -> dict[str, Any]:
        copied = al.Layout((3,), al.Partition((ranks,)), axes=[None])
        return {
            "domain": al.Space(copied, types=["invariant"]),
            "codomain": al.Space(copied, types=["invariant"]),
            "buffer_space": al.Space(al.Tensor(copied, types=("invariant",), name="calls")),
        }

    return draws


@pytest.mark.parametrize("check", ["sequential", "gradients", "jacobian"])
def test_a_twin_whose_buffer_has_another_shape_is_refused_by_name(world: SimulatedWorld, check: str) -> None:
    headline = report(world, counted((1,)), check).verdict.headline
    assert headline.endswith(
        "the sequential twin's buffer calls has shape (1,), but the layer's is laid out as (3,)"
    )


@pytest.mark.parametrize("check", ["sequential", "gradients"])
def test_a_buffer_of_the_twin_may_get_its_shape_from_the_first_call(
    world: SimulatedWorld, check: str
) -> None:
    for shape in ((3,), (0,)):
        found = report(world, counted(shape), check)
        assert found.status is Status.COHERENT, found.verdict


class Twice(al.LinearOperator):
    """Two copies of x."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        layout = al.Layout((4,), (comm.Get_size(),))
        self.domain, self.codomain = (
            al.Space(layout),
            al.Space(al.Tensor(layout, name="y"), al.Tensor(layout, name="z")),
        )

    def forward(self, x: Any) -> Any:
        return x.copy(), x.copy()

    def adjoint(self, y: Any, z: Any) -> Any:
        return y + z


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        (lambda x: x, "the reference returned 1 tensor, but the codomain has 2"),
        (lambda x: (x, x, x), "the reference returned 3 tensors, but the codomain has 2"),
        (lambda x: (x, x), ""),
        (lambda x: (x, np.zeros(4)), "the distributed result is not the sequential one"),
    ],
)
def test_a_reference_returns_as_many_tensors_as_the_codomain_has(
    world: SimulatedWorld, reference: Callable[[Any], Any], says: str
) -> None:
    @al.subject(Twice, reference=reference, ranks=(1, 2))
    def draws(draw: Any, ranks: int) -> dict[str, Any]:
        return {}

    found = report(world, draws, "sequential")
    assert says in found.verdict.headline, found.verdict
    assert (found.status is Status.COHERENT) == (not says)
