"""Assertions about second derivatives, checkpoints and forward mode of a layer and of its sequential twin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from adjointlab.core.layout import Layout
from adjointlab.layers.windows import local_window

from .twin_assertions import integer_cotangent

__all__ = ["assert_checkpoint_matches", "assert_second_derivatives_match", "assert_tangent_matches"]

RELATIVE = 1e-12


def assert_second_derivatives_match(
    comm: Any, layer: Any, twin: torch.nn.Module, x: torch.Tensor, *, power: int, wanted: Sequence[str]
) -> None:
    """Assert that the gradients of the squared norm of the `wanted` gradients of <yᵖ, c> are this rank's windows of the twin's.

    `wanted` are "x" and names of parameters. With power 1 the function itself is linear in y, so that nothing but the layer
    leads back to its inputs.
    """

    def second(module: Any, x: torch.Tensor, window: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
        leaves = {"x": x, **dict(module.named_parameters())}
        for leaf in leaves.values():
            leaf.grad = None
        y = module(x)
        y = y if power == 1 else y**power
        firsts = torch.autograd.grad(
            y, [leaves[name] for name in wanted], window(y.detach()), create_graph=True
        )
        torch.stack([(first**2).sum() for first in firsts]).sum().backward()
        return [leaf.grad for leaf in leaves.values()]

    (y_layout, *_), (x_layout, *_) = (
        [t.layout for t in space.tensors] for space in (layer.codomain, layer.domain)
    )
    cotangent = integer_cotangent(twin(x).detach())
    wants = second(twin, x.clone().requires_grad_(), lambda _: cotangent)
    gots = second(
        layer,
        local_window(x, x_layout, comm.Get_rank()).requires_grad_(),
        lambda _: local_window(cotangent, y_layout, comm.Get_rank()),
    )
    wholes = [x, *(parameter.detach() for parameter in twin.parameters())]
    layouts = [x_layout, *(tensor.layout for tensor in layer.parameter_space.tensors)]
    _assert_windows(comm, gots, wants, wholes, layouts)


def assert_checkpoint_matches(comm: Any, layer: Any, twin: torch.nn.Module, x: torch.Tensor) -> None:
    """Assert that gradients through a checkpoint are this rank's windows of the twin's without one."""
    (x_layout, *_) = (tensor.layout for tensor in layer.domain.tensors)
    local, whole = local_window(x, x_layout, comm.Get_rank()).requires_grad_(), x.clone().requires_grad_()
    (checkpoint(layer, local, use_reentrant=False) ** 2).sum().backward()  # type: ignore[no-untyped-call]
    (twin(whole) ** 2).sum().backward()
    leaves, wholes = [local, *layer.parameters()], [whole, *twin.parameters()]
    layouts = [x_layout, *(tensor.layout for tensor in layer.parameter_space.tensors)]
    _assert_windows(comm, [leaf.grad for leaf in leaves], [leaf.grad for leaf in wholes], wholes, layouts)


def assert_tangent_matches(comm: Any, layer: Any, twin: torch.nn.Module, x: torch.Tensor) -> None:
    """Assert that the tangent along an input is this rank's window of the twin's; inside a dual level."""

    def tangent(module: Any, x: torch.Tensor, v: torch.Tensor) -> Any:
        result = module(forward_ad.make_dual(x, v))  # type: ignore[no-untyped-call]
        return forward_ad.unpack_dual(result).tangent  # type: ignore[no-untyped-call]

    rank, v = comm.Get_rank(), torch.cos(x)
    (x_layout, *_), (y_layout, *_) = (
        [t.layout for t in space.tensors] for space in (layer.domain, layer.codomain)
    )
    want = tangent(twin, x, v)
    got = tangent(layer, local_window(x, x_layout, rank), local_window(v, x_layout, rank))
    _assert_windows(comm, [got], [want], [want], [y_layout])


def _assert_windows(
    comm: Any, gots: Sequence[Any], wants: Sequence[Any], wholes: Sequence[Any], layouts: Sequence[Layout]
) -> None:
    """Assert that each tensor is this rank's window of the twin's. Where torch has no gradient, zeros count as equal."""
    for got, want, whole, layout in zip(gots, wants, wholes, layouts, strict=True):
        want = torch.zeros_like(whole) if want is None else want
        window = local_window(want.detach(), layout, comm.Get_rank())
        got = torch.zeros_like(window) if got is None else got.reshape(window.shape)
        scale = max(1.0, float(want.detach().abs().max())) if want.numel() else 1.0
        torch.testing.assert_close(got.detach(), window, rtol=0, atol=RELATIVE * scale)
