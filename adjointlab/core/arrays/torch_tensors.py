"""Torch tensors beyond plain arrays: DTensors, gradients, and the first backward pass of a process."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from adjointlab.core.arrays.devices import installed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

__all__ = [
    "convert_module",
    "element_type_in",
    "in_shape_of",
    "is_differentiable",
    "is_dtensor",
    "local_gradient",
    "local_part",
    "move_module",
    "warm_up_torch",
    "with_graph",
]


def local_part(tensor: Any) -> Any:
    """Return this rank's local tensor of a DTensor, and any other tensor unchanged. Gradients pass through.

    Waits for the result of a functional collective, since a caller may use only its graph, which would not wait.
    """
    local = tensor.to_local() if is_dtensor(tensor) else tensor
    getattr(local, "trigger_wait", lambda: None)()
    return local


def is_differentiable(tensor: torch.Tensor) -> bool:
    """Return True for a tensor of real or complex numbers, which can require a gradient."""
    return tensor.is_floating_point() or tensor.is_complex()


def in_shape_of(own: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """Return `given`, in the shape and type of `own` if neither has elements: an inactive rank may hold any such tensor."""
    return given if own.numel() or given.numel() else given.reshape(own.shape).to(own.dtype)


def with_graph(
    outputs: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the outputs that have a graph, from which a backward pass starts, and their cotangents."""
    pairs = [(y, in_shape_of(y, w)) for y, w in zip(outputs, cotangents, strict=True) if y.requires_grad]
    return [y for y, _ in pairs], [w for _, w in pairs]


def is_dtensor(tensor: object) -> bool:
    """Return True for a DTensor."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "placements")


def local_gradient(leaf: Any) -> Any:
    """Return this rank's local tensor of a leaf's gradient; `None` if it has none.

    The gradient of a DTensor may be a pending sum: it is redistributed to the placements of its leaf, which is collective. A sparse
    gradient, such as an embedding's, is returned as a dense one.
    """
    gradient = leaf.grad
    if is_dtensor(gradient) and gradient.placements != leaf.placements:
        gradient = gradient.redistribute(placements=leaf.placements)
    if gradient is None:
        return None
    held = local_part(gradient)
    return held.to_dense() if held.is_sparse else held


def move_module(module: Any, memory: str) -> None:
    """Move a torch module's parameters and buffers into `memory` if that is device memory."""
    if memory == "torch-cuda":
        module.to("cuda")


def element_type_in(dtype: torch.dtype, given: torch.dtype) -> torch.dtype:
    """Return the type of a tensor of type `given` in a module of type `dtype`: complex numbers stay complex, integers do not change."""
    import torch

    if not (given.is_floating_point or given.is_complex):
        return given
    # torch's `module.to(torch.float64)` drops the imaginary parts.
    return torch.promote_types(dtype, torch.complex64) if given.is_complex else dtype


def convert_module(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Convert a module's parameters and buffers to an element type; complex ones to the complex type of its precision."""
    module._apply(lambda tensor: tensor.to(element_type_in(dtype, tensor.dtype)))  # type: ignore[no-untyped-call]


@cache
def warm_up_torch(*, cotangents: bool = False) -> None:
    """Run a small backward pass, once per process: torch's first one imports modules and starts threads.

    With `cotangents` it starts from a given cotangent, which takes half a second more, since torch imports sympy.
    """
    if not installed("torch"):
        return
    import torch

    with suppress(Exception), torch.enable_grad():  # a failure will show in the cases
        ones = torch.ones(2, 2)
        product = torch.ones(2, 2, requires_grad=True) @ ones
        torch.autograd.backward(*((product, ones) if cotangents else (product.sum(),)))
