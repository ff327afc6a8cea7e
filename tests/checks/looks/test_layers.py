"""Looks of the checks of layers: with the sequential twin, of gradients, of the Jacobian, of second derivatives and of training."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from adjointlab.checks.check import AnyCheck, check_named
from adjointlab.checks.context import InputSetting
from adjointlab.checks.layers.passes import PassPlan
from tests.checks.looks.harness import Look, assert_seen
from tests.checks.looks.layers import (
    DoubledGradient,
    DoubledTangent,
    Weights,
    at,
    effect,
    in_call,
    made,
    second,
)


def doubled(value: Any) -> Any:
    return 2 * value


def last_lost(value: Any) -> Any:
    return torch.cat([value[:-1], 0 * value[-1:]])


def where_graph_is(wanted: bool) -> Any:
    """Doubles the output where the layer is to be differentiated, or where it is not."""

    def change(module: Any, here: str, value: Any) -> Any:
        return 2 * value if here == "y" and torch.is_grad_enabled() is wanted else value

    return change


def writes(value: Any) -> None:
    value[-1:] += 1


def spoils_earlier(module: Any, value: Any) -> None:
    """Writes into what an earlier call has returned."""
    if len(module.outputs) == 1:
        module.outputs[0].data[-1:] += 1


def where_strided(value: Any) -> Any:
    return 2 * value if value.numel() > 1 and value.stride(-1) != 1 else value


def reads_fresh_memory(value: Any) -> Any:
    return value + 0 * torch.empty_like(value)


def maximum_of_fresh_memory(value: Any) -> Any:
    """NaN shows nothing here, the number does."""
    return value + torch.nan_to_num(torch.empty_like(value))


def grad_of(change: Any) -> Any:
    """Change the gradient of what is given, by a hook."""

    def hooked(value: Any) -> Any:
        value = value.clone()
        if value.requires_grad:
            value.register_hook(change)
        return value

    return hooked


def cotangent_written(value: Any) -> Any:
    """Writes into the cotangent of the output."""

    class Writes(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: Any) -> Any:
            return y.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            result = g.clone()
            g[-1:] += 1
            return result

    return Writes.apply(value)


def look(
    name: str,
    change: Any,
    says: str,
    ranks: int = 3,
    seed: int = 0,
    rank: int = -1,
    values: str = "integers",
    order: Any = (),
    **declared: Any,
) -> Look:
    """A look at a layer with a change on one rank."""
    setting = InputSetting(seed, "torch", *order)
    return Look(name, made(change, rank, **declared), says, ranks, setting, Weights, values)  # fmt: skip


OUTPUTS, BUFFERS, PARAMETERS = (f"the layer's {kind} are not the sequential ones" for kind in ("outputs", "buffers", "parameters"))  # fmt: skip
SECOND = "the second one, with other data"

SEQUENTIAL = [
    look("outputs on rank 0", at("y", doubled), OUTPUTS, rank=0),
    look("outputs on the last rank", at("y", doubled), OUTPUTS),
    look("the last element", at("y", last_lost), OUTPUTS),
    look("the sign", at("y", torch.neg), OUTPUTS),
    look("the second pass", in_call(2, at("y", doubled)), SECOND),
    look("code without a graph", where_graph_is(False), OUTPUTS),
    look("no code with a graph", where_graph_is(True), ""),
    look("buffers on rank 0", effect("y", lambda module, _: module.calls.add_(1)), BUFFERS, rank=0),
    look("buffers of the second pass", in_call(2, effect("y", lambda module, _: module.calls.add_(1))), BUFFERS),
    look("parameters", effect("y", lambda module, _: module.weight.mul_(2)), PARAMETERS),
    look("an input that is written into", effect("x", lambda module, x: writes(x)), "the layer writes into an input"),
    look("an output that is written into later", effect("y", spoils_earlier), "the layer writes into what it has returned before"),
    look("strided inputs", at("x", where_strided), OUTPUTS, order=("strided",)),
    look("row-major inputs", at("x", lambda x: x if x.stride(-1) != 1 else 2 * x), OUTPUTS),
    look("NaN", at("y", lambda y: y * float("nan")), OUTPUTS),
    look("fresh memory of NaN", at("y", reads_fresh_memory), OUTPUTS, seed=0),
    look("fresh memory of a number", at("y", maximum_of_fresh_memory), OUTPUTS, seed=12),
    look("negative values", at("x", lambda x: torch.where(x > 0, x, 2 * x)), OUTPUTS, seed=2, values="negative"),
    look("large values", at("x", lambda x: x.clamp(max=1000)), OUTPUTS, values="large"),
    look("tiny values", at("x", lambda x: torch.where(abs(x) < 1e-6, 0 * x, x)), OUTPUTS, values="tiny"),
    look("large values of what is prepared and left as it is", at("x", lambda x: x.clamp(max=1000)), OUTPUTS, values="large", prepare=lambda x: (x.clone(),)),
    look("no large values of what is prepared otherwise", at("x", lambda x: x.clamp(max=1000)), "", values="large", prepare=lambda x: (x.abs(),)),
    look("no large values of what is prepared for the largest alone", at("x", lambda x: x.clamp(max=1000)), "", values="large", prepare=lambda x: (x.clamp(max=3),)),
    look("no large values of what is prepared for the smallest alone", at("x", lambda x: x.clamp(max=1000)), "", values="large", prepare=lambda x: (x.clamp(min=-3),)),
    look("infinite values", at("x", lambda x: x.clamp(max=1000)), OUTPUTS, values="infinite"),
    look("exactly, where no rounding is declared", at("y", lambda y: y * (1 + 2.0**-40)), OUTPUTS),
    look("exactly, where rounding is declared", at("y", lambda y: y * (1 + 2.0**-30)), OUTPUTS, rounding=2.0**-40),
    look("what rounding explains", at("y", lambda y: y * (1 + 2.0**-50)), "", rounding=2.0**-40),
    look("a right layer", None, ""),
]  # fmt: skip

INPUT, PARAMETER = (
    f"the layer's {kind} gradient is not the sequential one" for kind in ("input", "parameter")
)

ALL_TOGETHER, ALL_APART, ADDED = 0, 3, 9
"""Seeds whose plans have gradients of all tensors: forward twice and then backward twice, one after the other, added to earlier ones."""

WANTED_ON_THE_LAST = 5
"""The seed of a plan in which of three ranks the last alone wants a gradient of its input."""

GRADIENTS = [
    look("outputs with a graph", where_graph_is(True), OUTPUTS),
    look("input gradients on rank 0", at("x", DoubledGradient.apply), INPUT, rank=0),
    look("input gradients on the last rank", at("x", DoubledGradient.apply), INPUT),
    look("parameter gradients on rank 0", at("w", DoubledGradient.apply), PARAMETER, rank=0),
    look("parameter gradients on the last rank", at("w", DoubledGradient.apply), PARAMETER),
    look("the last element of a gradient", at("x", grad_of(last_lost)), INPUT, seed=6),
    look("the sign of a gradient", at("w", grad_of(torch.neg)), PARAMETER),
    look("input gradients of the second pass", in_call(2, at("x", DoubledGradient.apply)), SECOND),
    look("parameter gradients of the second pass", in_call(2, at("w", DoubledGradient.apply)), SECOND),
    look("input gradients of the second pass, apart", in_call(2, at("x", DoubledGradient.apply)), SECOND, seed=ALL_APART),
    look("a gradient where not all is required", at("x", lambda x: DoubledGradient.apply(x) if not x.requires_grad else x), "", seed=1),
    look("a gradient that the other ranks do not want", at("x", DoubledGradient.apply), INPUT, seed=WANTED_ON_THE_LAST),
    look("buffers", effect("y", lambda module, _: module.calls.add_(1)), BUFFERS),
    look("an input that is written into", effect("x", lambda module, x: writes(x)), "the layer writes into an input"),
    look("a cotangent that is written into", at("y", cotangent_written), "the layer writes into a cotangent"),
    look("strided cotangents", at("y", grad_of(where_strided)), INPUT, order=("row-major", "strided")),
    look("strided inputs", at("x", where_strided), OUTPUTS, order=("strided", "row-major")),
    look("NaN in a gradient", at("x", grad_of(lambda g: g * float("nan"))), INPUT),
    look("a gradient that is added to others", at("x", DoubledGradient.apply), ".grad held other gradients before", seed=ADDED),
    look("a right layer, passes together", None, "", seed=ALL_TOGETHER),
    look("a right layer, passes apart", None, "", seed=ALL_APART),
    look("a right layer, gradients added", None, "", seed=ADDED),
]  # fmt: skip


JACOBIAN = [
    look("reverse mode of inputs on rank 0", at("x", DoubledGradient.apply), "reverse mode is not the adjoint of forward mode", rank=0),
    look("reverse mode of inputs on the last rank", at("x", DoubledGradient.apply), "reverse mode is not the adjoint of forward mode"),
    look("reverse mode of parameters", at("w", DoubledGradient.apply), "reverse mode is not the adjoint of forward mode"),
    look("forward mode by inputs", at("x", DoubledTangent.apply), "reverse mode is not the adjoint of forward mode"),
    look("forward mode by parameters", at("w", DoubledTangent.apply), "reverse mode is not the adjoint of forward mode"),
    look("both modes alike by inputs", at("x", lambda x: 2 * x - x.detach()), "the Jacobian is not the sequential layer's"),
    look("both modes alike by parameters", at("w", lambda w: 2 * w - w.detach()), "the Jacobian is not the sequential layer's"),
    look("both modes alike on rank 0", at("x", lambda x: 2 * x - x.detach()), "the Jacobian is not the sequential layer's", rank=0),
    look("NaN", at("x", grad_of(lambda g: g * float("nan"))), "the layer's derivative is not finite"),
    look("a right layer", None, ""),
]  # fmt: skip

DOUBLE_BACKWARD = [
    look("second derivatives by inputs on rank 0", second("x"), "second derivative by an input", rank=0),
    look("second derivatives by inputs on the last rank", second("x"), "second derivative by an input"),
    look("second derivatives by parameters", second("w"), "second derivative by a parameter"),
    look("derivatives by a cotangent", second("g"), "derivative of gradients by a cotangent", seed=1, rounding=0.0),
    look("derivatives by a cotangent, rounding measured", second("g"), "derivative of gradients by a cotangent", seed=1, rounding=None),
    look("derivatives by a cotangent, rounding declared", second("g"), "derivative of gradients by a cotangent", seed=1, rounding=1e-12),
    look("derivatives by a cotangent that requires none", second("g"), "", seed=2, rounding=0.0),
    look("a right layer", None, "", seed=1, rounding=0.0),
    look("a right layer, rounding measured", None, "", seed=1, rounding=None),
]  # fmt: skip


def descent(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, 0.5, momentum=0.5)


def stands_still(parameters: Any) -> Any:
    """The state alone tells of the gradients."""
    return torch.optim.SGD(parameters, 0.0, momentum=0.5)


TWO_STEPS = {"optimizer": descent, "steps": 2}
AFTER = "the layer's parameters after the steps are not the sequential ones"

TRAINING = [
    look("parameters on rank 0", at("w", DoubledGradient.apply), AFTER, rank=0, **TWO_STEPS),
    look("parameters on the last rank", at("w", DoubledGradient.apply), AFTER, **TWO_STEPS),
    look("the second step", in_call(2, at("w", DoubledGradient.apply)), AFTER, **TWO_STEPS),
    look("no third step", in_call(3, at("w", DoubledGradient.apply)), "", **TWO_STEPS),
    look("a parameter that a pass changes", effect("y", lambda module, _: module.weight.data.add_(1)), AFTER, **TWO_STEPS),
    look("the state of the optimiser", at("w", DoubledGradient.apply), "the layer's momentum_buffer of the optimiser", optimizer=stands_still, steps=2),
    look("a right layer", None, "", **TWO_STEPS),
]  # fmt: skip


def test_twelve_seeds_have_every_plan_of_what_is_differentiated_in_which_order_and_added() -> None:
    plans = {PassPlan.of(seed, backward=True) for seed in range(12)}
    assert {(plan.requires_grad, plan.together, plan.accumulated) for plan in plans} == {
        (required, together, accumulated)
        for required in ("all", "some", "others on each rank")
        for together in (False, True)
        for accumulated in (False, True)
    }


def params(*tables: tuple[str, list[Look]]) -> Any:
    return pytest.mark.parametrize(
        ("check", "one"),
        [
            pytest.param(check_named(name), one, id=f"{name}: {one.name}")
            for name, table in tables
            for one in table
        ],
    )


@params(
    ("sequential", SEQUENTIAL),
    ("gradients", GRADIENTS),
    ("jacobian", JACOBIAN),
    ("double_backward", DOUBLE_BACKWARD),
    ("training", TRAINING),
)
def test_a_look_at_a_layer(check: AnyCheck, one: Look) -> None:
    assert_seen(check, one)
