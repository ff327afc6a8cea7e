"""Observations of the check of a Jacobian, of y = x + p, whose derivatives are the directions themselves."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import adjointlab as al
from adjointlab.checks.context import CheckContext, InputSetting
from adjointlab.checks.layers.drawn_values import pass_keys
from adjointlab.checks.layers.jacobian import JACOBIAN, JacobianProducts
from adjointlab.checks.layers.point import unit_roundoff
from adjointlab.checks.whole_tensors import no_sequential_tensor
from adjointlab.core.layer import Layer
from adjointlab.core.space import Tensor
from adjointlab.core.vectors import Draw, local_values
from tests.checks.looks.harness import WORLD

SIDE = 6
ROUNDINGS = 64 * 2.0**-53


class Sum(nn.Module):
    """x + p, and what each call saw: whether its parameter required a gradient, what the buffer was, and whether all were integers."""

    def __init__(self, side: int = SIDE, dtype: Any = torch.float64) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.zeros(side, dtype=dtype))
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))
        self.seen: list[tuple[bool, float, bool]] = []

    def forward(self, x: Any) -> Any:
        has_integers = all(bool((each == each.round()).all()) for each in (x, self.p))
        self.seen.append((self.p.requires_grad, float(self.calls), has_integers))
        self.calls += 1
        return x + self.p


CUT, COPIES = al.Layout((SIDE,), (2,)), al.Layout((SIDE,), (2,), axes=[None])
CALLS = al.Space(al.Tensor(al.Layout((), (2,), [], ()), types=("invariant",), name="calls"))


def layer(comm: Any, layout: al.Layout, **given: Any) -> Layer:
    space = al.Space(layout)
    module = given.pop("module", Sum)(layout.local_shape(comm.Get_rank())[0])
    module.forward_mode = given.pop("forward_mode", True)
    y, p = al.Space(layout, name="y"), al.Space(al.Tensor(layout, name="p"))
    return Layer(comm, module, space, y, p, CALLS, **given)


def observed(layout: al.Layout = CUT, seed: int = 2, **given: Any) -> tuple[Any, ...]:
    """The observation of each of two ranks, with its context."""

    def observe(rank_context: Any, _: object) -> Any:
        comm = rank_context.comm
        context = CheckContext(partial(layer, comm, layout, **given), InputSetting(seed, "torch"), comm, Sum)
        return JACOBIAN.observe(context), context

    with JACOBIAN.surroundings():
        run = WORLD.run(observe, None, 2)
    assert run.completed, run
    return run.values


def directions(context: CheckContext) -> tuple[Any, Any, Any]:
    """Those of inputs and of parameters, and the cotangent."""
    of, rank, seed = context.layer, context.rank, context.setting.seed
    return (
        local_values(of.domain, 0, rank, Draw(seed, 7, "primal", 4)),
        local_values(of.parameters, 0, rank, Draw(seed, 8, "primal", 4)),
        local_values(of.codomain.dual, 0, rank, pass_keys(context, 0)["cotangents"]),
    )


@pytest.mark.parametrize("forward_mode", [True, False])
def test_inner_products_and_norms_are_those_of_the_directions(forward_mode: bool) -> None:
    total = 0.0
    seen = observed(forward_mode=forward_mode, rounding=2.0**-20, reach=3.0)
    along = [directions(context) for _, context in seen]
    for (products, context), (vx, vp, w) in zip(seen, along, strict=True):
        image = vx + vp if forward_mode else 0 * vx
        squares = (float(image @ image), float(w @ w), float(vx @ vx + vp @ vp), float(2 * w @ w))
        forward = float(image @ w)
        assert products.norms == pytest.approx([square**0.5 for square in squares], rel=1e-14)
        assert (None if products.forward is None else float(products.forward.real)) == (
            forward if forward_mode else None
        )
        assert float(products.reverse.real) == float((vx + vp) @ w)
        assert (products.allowed, products.parameters, products.reach) == (2.0**-20, SIDE, 3.0)
        assert (products.differences, products.copies) == (None, "")
        assert (products.twin is None) == (context.rank > 0)
        total += float((vx + vp) @ w)
    twin = seen[0][0].twin
    assert float(twin.product.real) == total
    assert twin.allowances is None
    assert twin.weights == {
        "inputs": [sum(float(abs(vx).sum()) for vx, _, _ in along)],
        "parameters": [sum(float(abs(vp).sum()) for _, vp, _ in along)],
    }


@pytest.mark.parametrize("forward_mode", [True, False])
def test_of_copies_that_differ_differences_are_observed(forward_mode: bool) -> None:
    for products, context in observed(COPIES, forward_mode=forward_mode, rounding=0.0):
        vx, vp, w = directions(context)
        found = products.differences
        assert float(found.product.real) == pytest.approx(float((vx + vp) @ w), abs=1e-9)
        assert 0 <= found.error < 1e-9
        assert found.weight == float(abs(w).sum())
        assert products.twin is None
        assert products.norms[0] == pytest.approx(float((vx + vp) @ (vx + vp)) ** 0.5)
        assert products.copies == no_sequential_tensor(context.layer.domain.tensors[0])


@pytest.mark.parametrize(
    ("layout", "seed", "forward_mode", "rounding", "allowed"),
    [
        (CUT, 1, True, 0.0, 0.0),
        (CUT, 1, False, 0.0, 0.0),
        (CUT, 0, True, None, ROUNDINGS),
        (CUT, 0, True, 2.0**-60, 2.0**-60),
        # Without a twin, the point is of fractions, which round: for odd seeds, and without forward mode.
        (COPIES, 0, True, 0.0, 0.0),
        (COPIES, 1, True, 0.0, ROUNDINGS),
        (COPIES, 2, True, 0.0, 0.0),
        (COPIES, 3, True, 0.0, ROUNDINGS),
        (COPIES, 0, False, 0.0, ROUNDINGS),
        (COPIES, 1, False, 2.0**-60, ROUNDINGS),
        (COPIES, 1, True, 2.0**-20, 2.0**-20),
        (COPIES, 0, True, None, ROUNDINGS),
    ],
)
def test_what_rounding_may_change_is_declared_or_some_units_in_the_last_place(
    layout: al.Layout, seed: int, forward_mode: bool, rounding: float | None, allowed: float
) -> None:
    for products, context in observed(layout, seed, forward_mode=forward_mode, rounding=rounding):
        assert products.allowed == allowed
        (*_, has_integers), *_ = context.layer.module.seen
        assert has_integers == (layout is CUT or (seed % 2 == 0 and forward_mode))


def test_passes_start_from_the_same_buffers_and_those_after_the_first_ask_for_no_gradient() -> None:
    for _, context in observed(COPIES, seed=0):
        first, *others = context.layer.module.seen
        assert first == (True, 0.0, True)
        # In forward mode, at the point, and at five steps on either side of it.
        assert others == [(False, 0.0, True)] * 2 + [(False, 0.0, False)] * 10


class Frozen(Sum):
    """With a parameter that is an integer, and another that is not differentiated."""

    def __init__(self, side: int = SIDE) -> None:
        super().__init__(side)
        self.q = nn.Parameter(torch.ones(side, dtype=torch.int64), requires_grad=False)

    def forward(self, x: Any) -> Any:
        return super().forward(x) + self.q


@pytest.mark.parametrize(
    ("frozen", "of_p", "of_x"),
    [
        (None, True, True),
        (frozenset({"p"}), False, True),
        (frozenset({"x"}), True, True),
        (frozenset(), True, True),
    ],
)
def test_parameters_require_a_gradient_unless_they_are_frozen_or_integers(
    frozen: frozenset[str] | None, of_p: bool, of_x: bool
) -> None:
    def made(comm: Any) -> Layer:
        from dataclasses import replace

        one = layer(comm, CUT, module=Frozen, frozen=frozen)
        q = al.Tensor(CUT, "int64", name="q")
        return replace(one, parameters=al.Space(one.parameters.tensors[0], q))

    def observe(rank_context: Any, _: object) -> Any:
        comm = rank_context.comm
        context = CheckContext(partial(made, comm), InputSetting(2, "torch"), comm, Frozen)
        observation = JACOBIAN.observe(context)
        return observation, context

    with JACOBIAN.surroundings():
        run = WORLD.run(observe, None, 2)
    assert run.completed, run
    for products, context in run.values:
        vx, vp, w = directions(context)
        assert context.layer.module.seen[0][0] == of_p
        # A frozen parameter has no gradient, and a tangent all the same.
        assert float(products.reverse.real) == float(vx @ w) + (float(vp @ w) if of_p else 0)


def tensor(dtype: str, name: str = "x") -> Tensor:
    return Tensor(CUT, dtype, name=name)


@pytest.mark.parametrize(
    ("domain", "parameters", "codomain", "unit"),
    [
        ("float64", "float64", "float64", 2.0**-53),
        ("float32", "float64", "float64", 2.0**-24),
        ("float64", "float32", "float64", 2.0**-24),
        ("float64", "float64", "float16", 2.0**-11),
        ("complex64", "float64", "float64", 2.0**-24),
        ("int32", "float64", "float64", 2.0**-53),
        ("int32", "int32", "int32", 2.0**-53),
    ],
)
def test_the_unit_roundoff_is_that_of_the_tensor_with_the_fewest_bits(
    domain: str, parameters: str, codomain: str, unit: float
) -> None:
    spaces = (al.Space(tensor(dtype)) for dtype in (domain, codomain, parameters))
    assert unit_roundoff(Layer(None, None, *spaces, CALLS)) == unit  # type: ignore[arg-type]


def test_a_layer_without_forward_mode_is_told_how_to_say_so() -> None:
    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    class Module(Sum):
        def forward(self, x: Any) -> Any:
            return Reverse.apply(super().forward(x))

    def notes(has_forward_mode: bool) -> Any:
        def observe(rank_context: Any, _: object) -> Any:
            comm = rank_context.comm
            made = partial(layer, comm, CUT, module=Module, has_forward_mode=has_forward_mode)
            context = CheckContext(made, InputSetting(2, "torch"), comm, Module)
            try:
                return JACOBIAN.observe(context)
            except Exception as error:
                return error.__notes__

        with JACOBIAN.surroundings():
            return WORLD.run(observe, None, 2).values

    assert (
        notes(has_forward_mode=True)
        == (
            [
                "raised in forward mode: a module that has none says so by its attribute forward_mode = False, or by "
                "forward_mode=False in the strategy's dictionary"
            ],
        )
        * 2
    )
    for products in notes(has_forward_mode=False):
        assert isinstance(products, JacobianProducts)
        assert products.forward is None
