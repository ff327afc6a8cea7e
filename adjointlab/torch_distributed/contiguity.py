"""Memory layouts that a process group accepts: layouts are refused that gloo refuses, or for which it silently returns wrong numbers.

Observed with gloo in torch 2.13, on CPUs: `docs/torch-distributed.md` has the table. For tensors on a device, layouts that torch's code
for nccl refuses are refused too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from adjointlab.worlds.call_sites import call_site

if TYPE_CHECKING:
    import torch

__all__ = [
    "NotContiguous",
    "check_contiguous",
    "check_dense",
    "check_for_nccl",
    "check_in_order_of",
    "check_laid_out_as",
    "layout_of",
]

_REFUSED: Final = "gloo refuses it"
_REFUSED_BY_NCCL: Final = "nccl refuses it"
_SILENT: Final = (
    "real backends refuse it, or read its memory in storage order, and silently give wrong numbers"
)


class NotContiguous(ValueError, RuntimeError):
    """A tensor has a memory layout that a real backend cannot use.

    Both a `ValueError`, which gloo raises for collectives, and a `RuntimeError`, which it raises for messages.
    """


def check_contiguous(
    call: str, argument: str, tensors: Sequence[torch.Tensor], *, is_refused: bool = False
) -> None:
    """Raise :class:`NotContiguous` unless every one of `tensors` is contiguous.

    `argument` is the name of this argument of `call`. With `is_refused`, gloo raises an error too; otherwise it may be silently wrong.
    """
    for name, tensor in _named(argument, tensors):
        if not tensor.is_contiguous():
            raise _problem(call, name, "is not contiguous", tensor, _REFUSED if is_refused else _SILENT)


def check_in_order_of(call: str, argument: str, parts: Sequence[torch.Tensor], output: torch.Tensor) -> None:
    """Raise :class:`NotContiguous` unless the elements of each part have the same order in memory as those of `output`.

    gloo copies parts to dense memory in their own order, and the result in storage order. So parts may have gaps, but `output` may not.
    """
    if _have_shape_of(output, parts):
        _check_layouts(call, argument, parts, output, _dense)
    else:
        _check_row_major(call, argument, parts)
        check_contiguous(call, "output", [output])


def check_laid_out_as(call: str, argument: str, parts: Sequence[torch.Tensor], output: torch.Tensor) -> None:
    """Raise :class:`NotContiguous` unless each part and `output` have equal strides, without gaps: gloo copies in storage order."""
    if _have_shape_of(output, parts):
        _check_layouts(call, argument, parts, output, _strides_and_sizes)
    else:
        check_contiguous(call, argument, parts)
        check_contiguous(call, "output", [output])


def _have_shape_of(output: torch.Tensor, parts: Sequence[torch.Tensor]) -> bool:
    """Return False for parts that gloo refuses because of their shapes."""
    return all(part.shape == output.shape for part in parts)


def _check_layouts(
    call: str,
    argument: str,
    parts: Sequence[torch.Tensor],
    output: torch.Tensor,
    layout: Callable[[torch.Tensor], object],
) -> None:
    """Raise :class:`NotContiguous` unless `output` is dense and the `layout` of each part is that of `output`."""
    check_dense(call, output, "output")
    for name, part in _named(argument, parts):
        if layout(part) != _strides_and_sizes(output):
            raise _problem(call, name, _not_in_order(output), part, _SILENT)


def _not_in_order(output: torch.Tensor) -> str:
    if output.is_contiguous():
        return "is not contiguous"
    return f"does not have the layout of the output, whose strides are {output.stride()}"


def _dense(tensor: torch.Tensor) -> list[tuple[int, int]] | None:
    """As :func:`_strides_and_sizes`, for a tensor without gaps whose elements have the same order; None if elements share memory."""
    entries = _strides_and_sizes(tensor)
    strides, least, number = [0] * len(entries), 1, 1
    for place in sorted(range(len(entries)), key=lambda place: entries[place][0]):
        stride, size = entries[place]
        if stride < least:
            return None
        strides[place] = number
        least, number = stride * size, number * size
    return [(stride, size) for stride, (_, size) in zip(strides, entries, strict=True)]


def _check_row_major(call: str, argument: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raise :class:`NotContiguous` unless the elements of all `tensors` are in row-major order, with or without gaps."""
    for name, tensor in _named(argument, tensors):
        least = 1
        for stride, size in reversed(_strides_and_sizes(tensor)):
            if stride < least:
                raise _problem(call, name, "is not in row-major order", tensor, _SILENT)
            least = stride * size


def check_dense(call: str, tensor: torch.Tensor, argument: str = "tensor") -> None:
    """Raise :class:`NotContiguous` unless the elements of `tensor` fill its memory, in any order and without sharing."""
    if not _is_strided(tensor):
        return
    expected = 1
    for stride, size in sorted(_strides_and_sizes(tensor)):
        if stride != expected and tensor.numel():
            problem = "has gaps between its elements, or elements that share memory"
            raise _problem(call, argument, problem, tensor, _SILENT)
        expected *= size


def check_for_nccl(call: str, argument: str, tensor: torch.Tensor) -> None:
    """Raise :class:`NotContiguous` for a tensor on a device that is contiguous neither in row-major order nor with channels last."""
    import torch

    if not tensor.is_cuda or not _is_strided(tensor):
        return
    channels_last = {4: torch.channels_last, 5: torch.channels_last_3d}
    orders = (torch.contiguous_format, channels_last.get(tensor.dim(), torch.contiguous_format))
    if not any(tensor.is_contiguous(memory_format=order) for order in orders):
        raise _problem(call, argument, "is not contiguous", tensor, _REFUSED_BY_NCCL)


def layout_of(tensor: torch.Tensor) -> tuple[tuple[str, object], ...]:
    """Arguments for the label of a call that give the memory order, which must be equal on all ranks; none for row-major."""
    if not _is_strided(tensor) or tensor.is_contiguous():
        return ()
    return (("strides", tuple(stride for stride, _ in _strides_and_sizes(tensor))),)


def _named(argument: str, tensors: Sequence[torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Each strided, nonempty tensor with its name for a message; the others have no memory order."""
    for index, tensor in enumerate(tensors):
        if _is_strided(tensor) and tensor.numel():
            yield argument if len(tensors) == 1 else f"{argument}[{index}]", tensor


def _is_strided(tensor: torch.Tensor) -> bool:
    """Return False for sparse tensors, say, which are refused when their elements are read."""
    import torch

    return tensor.layout is torch.strided


def _strides_and_sizes(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """Stride and size of each dimension, except those of size one, whose strides have no meaning."""
    return [(stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1]


def _problem(call: str, argument: str, problem: str, tensor: torch.Tensor, consequence: str) -> NotContiguous:
    return NotContiguous(
        f"{call} at {call_site()}: its {argument} {problem} (shape {tuple(tensor.shape)}, strides {tensor.stride()}); "
        f"{consequence}; pass a contiguous tensor, as .contiguous() returns"
    )
