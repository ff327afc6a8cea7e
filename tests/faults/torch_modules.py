"""Distributed layers and functions of torch: gradients that are missing or wrong, buffers, graphs, modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import adjointlab as al
from tests.faults.declaring import WRONG, RuntimeFault, declared, slug_of

GRADIENT = ("input gradient", "parameter gradient", "gradients of parameters")
RAISED = ("raised RuntimeError",)


class Scaled(nn.Module):
    """y = w x, element by element: as the sequential module, and, each worker with its own part, as the layer."""

    def __init__(self, side: int, rank: int = 0) -> None:
        super().__init__()
        self.rank = rank
        self.weight = nn.Parameter(torch.ones(side, dtype=torch.float64))
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.weight * x


def scaled_case(draw: Any, ranks: int) -> dict[str, Any]:
    """A case of a module with the weight and the buffer of `Scaled`."""
    everyone = al.Partition((ranks,))
    layout = al.Layout.cut((6,), everyone, [draw(al.strategies.cuts(6, ranks))])
    calls = al.Tensor(al.Layout((), everyone, [], ()), types=("invariant",), name="calls")
    return {
        "layout": layout,
        "domain": al.Space(layout),
        "codomain": al.Space(layout, name="y"),
        "parameter_space": al.Space(al.Tensor(layout, name="weight")),
        "buffer_space": al.Space(calls),
    }


def layer(
    name: str, forward: Callable[[Any, Any], Any], check: str, found: tuple[str, ...], **row: Any
) -> RuntimeFault:
    """A row whose layer has another forward pass, on its second rank: ``forward(module, x)``."""

    def faulty(self: Any, x: Any) -> Any:
        return forward(self, x) if self.rank == 1 else Scaled.forward(self, x)

    slug = "".join(part.title() for part in slug_of(name).split("_")[1:])
    kind = type(slug, (Scaled,), {"forward": faulty})

    def make(comm: Any, layout: al.Layout) -> Any:
        return kind(layout.local_shape(comm.Get_rank())[0], comm.Get_rank())

    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return scaled_case(draw, ranks)

    cases.__name__ = cases.__qualname__ = slug_of(name)
    subject = al.subject.layer(make, lambda layout: Scaled(6), ranks=(2, 3), name=slug)(cases)
    return RuntimeFault(name, subject, found, found, check=check, **row)


def function(name: str, change: Callable[[Any], Any], found: tuple[str, ...], **row: Any) -> RuntimeFault:
    """A row of a function that torch differentiates: ``change(x)`` on the second rank, and a copy on the others."""
    slug = "".join(part.title() for part in slug_of(name).split("_")[1:])

    def apply(comm: Any, x: Any) -> Any:
        return change(x) if comm.Get_rank() == 1 else x.clone()

    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        layout = al.Layout((2 * ranks,), al.Partition((ranks,)))
        return {"domain": al.Space(layout), "codomain": al.Space(layout, name="y")}

    cases.__name__ = cases.__qualname__ = slug_of(name)
    apply.__name__ = slug
    return RuntimeFault(name, al.subject.autograd(apply)(cases), found, found, **row)


class WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, y: Any) -> Any:
        return 2 * y


class NoBackward(WrongBackward):
    @staticmethod
    def backward(ctx: Any, y: Any) -> Any:
        return None


class RaisingBackward(WrongBackward):
    @staticmethod
    def backward(ctx: Any, y: Any) -> Any:
        raise RuntimeError("in backward")


class WritesIntoTheCotangent(WrongBackward):
    @staticmethod
    def backward(ctx: Any, y: Any) -> Any:
        y.mul_(2)
        return y


def by_weight(change: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """A forward pass with a change of the weight that it uses."""

    def forward(module: Any, x: Any) -> Any:
        module.calls += 1
        return change(module.weight) * x

    return forward


def buffer_forgotten(module: Any, x: Any) -> Any:
    return module.weight * x


def new_parameter(module: Any, x: Any) -> Any:
    module.late = nn.Parameter(torch.ones(1))
    return Scaled.forward(module, x)


def weight_changed(module: Any, x: Any) -> Any:
    with torch.no_grad():
        module.weight.add_(1)
    return Scaled.forward(module, x)


def input_changed(module: Any, x: Any) -> Any:
    result = Scaled.forward(module, x)
    with torch.no_grad():
        x.mul_(2)
    return result


def grad_off(module: Any, x: Any) -> Any:
    torch.set_grad_enabled(False)
    return Scaled.forward(module, x)


def exits(module: Any, x: Any) -> Any:
    raise SystemExit(0)


FAULTS = declared(
    globals(),
    (
        layer(
            "layer: gradient of the weight missing",
            by_weight(lambda weight: weight.detach()),
            "gradients",
            GRADIENT,
        ),
        layer(
            "layer: gradient of the input missing",
            lambda module, x: Scaled.forward(module, x.detach()),
            "gradients",
            GRADIENT,
        ),
        layer(
            "layer: gradient of the input wrong",
            lambda module, x: Scaled.forward(module, WrongBackward.apply(x)),
            "gradients",
            GRADIENT,
        ),
        layer("layer: gradient of the weight wrong", by_weight(WrongBackward.apply), "gradients", GRADIENT),
        layer(
            "layer: output wrong", lambda module, x: Scaled.forward(module, x) + 1, "sequential", ("outputs",)
        ),
        layer("layer: buffer not updated", buffer_forgotten, "sequential", ("buffers",)),
        layer(
            "layer: parameter made in a call",
            new_parameter,
            "sequential",
            ("SubjectError", "raised ValueError"),
        ),
        layer("layer: writes into its weight", weight_changed, "sequential", ("outputs", "parameters")),
        layer(
            "layer: writes into its input", input_changed, "sequential", ("the layer writes into an input",)
        ),
        layer(
            "layer: wrong dtype",
            lambda module, x: Scaled.forward(module, x).float(),
            "sequential",
            ("an output is not in its declared space", "outputs"),
        ),
        layer(
            "layer: NaN",
            lambda module, x: Scaled.forward(module, x) * float("nan"),
            "sequential",
            ("outputs",),
        ),
        layer("layer: sys.exit(0)", exits, "sequential", ("raised SystemExit",)),
        layer(
            "layer: gradients switched off for good",
            grad_off,
            "gradients",
            (*GRADIENT, *RAISED),
            is_fatal=True,
        ),
        function("backward: wrong", WrongBackward.apply, WRONG),
        function("backward: gradient missing", NoBackward.apply, WRONG),
        function("backward: graph cut", lambda x: x.detach().clone(), (*WRONG, *RAISED)),
        function("backward: raises", RaisingBackward.apply, RAISED),
        function(
            "backward: writes into its argument",
            WritesIntoTheCotangent.apply,
            ("adjoint writes into its argument",),
            check="purity",
        ),
        function(
            "backward: forward in the place of its argument",
            lambda x: x.mul_(2),
            ("forward writes into its argument", *RAISED),
            check="purity",
        ),
    ),
)
