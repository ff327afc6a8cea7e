"""A layer that is right but for one fault on one rank, and its sequential twin: y = w x², with a count of its calls.

DoubledGradient(x)    the identity, whose gradient is doubled
DoubledTangent(x)     the identity, whose tangent (in forward mode) is doubled
Weighted(x, w)        w x²; in its backward pass, DoubledGradient of what `second` names makes second derivatives wrong alone
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

import adjointlab as al
from adjointlab.core.layer import Layer

SIDE = 6


class DoubledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 2 * g

    @staticmethod
    def jvp(ctx: Any, t: Any) -> Any:
        return t.clone()


class DoubledTangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g.clone()

    @staticmethod
    def jvp(ctx: Any, t: Any) -> Any:
        return 2 * t


class Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, w: Any, second: str) -> Any:
        ctx.save_for_backward(x, w)
        ctx.save_for_forward(x, w)
        ctx.second = second
        return w * x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        of = dict(zip("xw", ctx.saved_tensors, strict=True)) | {"g": g}
        if ctx.second:
            of[ctx.second] = DoubledGradient.apply(of[ctx.second])
        return 2 * of["w"] * of["x"] * of["g"], of["x"] * of["x"] * of["g"], None

    @staticmethod
    def jvp(ctx: Any, tx: Any, tw: Any, _: Any) -> Any:
        x, w = ctx.saved_tensors
        return 2 * w * x * tx + x * x * tw


class Weights(nn.Module):
    """The layer on a part of the elements, or the twin on all; `change` gives it its fault."""

    def __init__(self, side: int = SIDE, change: Callable[[Any, str, Any], Any] | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(side, dtype=torch.float64))
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))
        self.change = change or (lambda module, place, value: value)
        self.second = ""
        self.outputs: list[Any] = []

    def forward(self, x: Any) -> Any:
        self.calls += 1
        x, w = self.change(self, "x", x), self.change(self, "w", self.weight)
        y = self.change(self, "y", Weighted.apply(x, w, self.second))
        self.outputs.append(y)
        return y


def layer(comm: Any, change: Any = None, rank: int = 0, **declared: Any) -> Layer:
    """The layer with a change on one rank (-1 is the last), cut into even parts."""
    size = comm.Get_size()
    everyone = al.Partition((size,))
    layout = al.Layout((SIDE,), everyone)
    is_here = comm.Get_rank() == rank % size
    module = Weights(layout.local_shape(comm.Get_rank())[0], change if is_here else None)
    calls = al.Tensor(al.Layout((), everyone, [], ()), types=("invariant",), name="calls")
    return Layer(
        comm,
        module,
        al.Space(layout),
        al.Space(layout, name="y"),
        al.Space(al.Tensor(layout, name="weight")),
        al.Space(calls),
        **declared,
    )


def made(change: Any = None, rank: int = 0, **declared: Any) -> Callable[[Any], Layer]:
    """Makes the layer from a communicator."""
    return partial(layer, change=change, rank=rank, **declared)


# Changes: ``change(module, place, value)`` with the value of x, w or y at that place.


def at(place: str, change: Callable[[Any], Any]) -> Any:
    """Change the value at one place."""
    return lambda module, here, value: change(value) if here == place else value


def in_call(number: int, change: Any) -> Any:
    """The change in one call alone, counted from 1."""
    return lambda module, here, value: change(module, here, value) if module.calls == number else value


def second(name: str) -> Any:
    """Makes derivatives of the gradients by one of x, w and g (the cotangent) twice as large."""

    def change(module: Any, here: str, value: Any) -> Any:
        module.second = name
        return value

    return change


def effect(place: str, act: Callable[[Any, Any], object]) -> Any:
    """Do something to the module or the value at a place, and return the value."""

    def change(module: Any, here: str, value: Any) -> Any:
        if here == place:
            with torch.no_grad():
                act(module, value)
        return value

    return change
