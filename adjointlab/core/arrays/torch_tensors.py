"""Tensors of torch beyond plain arrays: DTensors, gradients, and the first backward pass of a process."""

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
    """The part of a torch tensor that this rank holds, of a DTensor; any other tensor as it is. Gradients pass through.

    A result of a functional collective waits when it is first used, which this is: a caller may need its graph alone.
    """
    local = tensor.to_local() if is_dtensor(tensor) else tensor
    getattr(local, "trigger_wait", lambda: None)()
    return local


def is_differentiable(tensor: torch.Tensor) -> bool:
    """Return True for a tensor of real or complex numbers, which can require a gradient."""
    return tensor.is_floating_point() or tensor.is_complex()


def in_shape_of(own: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """Return `given`, as `own` is where both are of zero volume: an inactive rank may hold any such tensor."""
    return given if own.numel() or given.numel() else given.reshape(own.shape).to(own.dtype)


def with_graph(
    outputs: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the outputs that have a graph, and their cotangents: a backward pass starts from these."""
    pairs = [(y, in_shape_of(y, w)) for y, w in zip(outputs, cotangents, strict=True) if y.requires_grad]
    return [y for y, _ in pairs], [w for _, w in pairs]


def is_dtensor(tensor: object) -> bool:
    """Return True for a DTensor of torch."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "placements")


def local_gradient(leaf: Any) -> Any:
    """The part that this rank holds of the gradient of a leaf; None if it has none.

    DTensor may leave the sum of a gradient for later: it has the placements of its leaf here. Collective then. A sparse one, as an
    embedding may have, is returned as a dense one.
    """
    gradient = leaf.grad
    if is_dtensor(gradient) and gradient.placements != leaf.placements:
        gradient = gradient.redistribute(placements=leaf.placements)
    if gradient is None:
        return None
    held = local_part(gradient)
    return held.to_dense() if held.is_sparse else held


def move_module(module: Any, memory: str) -> None:
    """Move a torch module's parameters and buffers into `memory`, if that is of a device; else they stay where they are."""
    if memory == "torch-cuda":
        module.to("cuda")


def element_type_in(dtype: torch.dtype, given: torch.dtype) -> torch.dtype:
    """The element type of a tensor of the type `given` in a module of another `dtype`; complex numbers stay complex, integers what they are."""
    import torch

    if not (given.is_floating_point or given.is_complex):
        return given
    # torch's own `module.to(torch.float64)` leaves the imaginary parts out.
    return torch.promote_types(dtype, torch.complex64) if given.is_complex else dtype


def convert_module(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Convert a module's parameters and buffers to an element type, or to the one of complex numbers of its precision."""
    module._apply(lambda tensor: tensor.to(element_type_in(dtype, tensor.dtype)))  # type: ignore[no-untyped-call]


@cache
def warm_up_torch(*, cotangents: bool = False) -> None:
    """Differentiate something small, once in a process: the first time, torch imports modules and starts threads.

    With `cotangents` for a given one, which takes it half a second more: that imports sympy.
    """
    if not installed("torch"):
        return
    import torch

    with suppress(Exception), torch.enable_grad():  # what is wrong with it shows in the cases
        ones = torch.ones(2, 2)
        product = torch.ones(2, 2, requires_grad=True) @ ones
        torch.autograd.backward(*((product, ones) if cotangents else (product.sum(),)))
