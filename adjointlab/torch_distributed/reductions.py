"""Reduction operations of torch.distributed as MPI's, on element types that MPI has.

======================  =====================================  ==========================================
torch.distributed       MPI                                    element type
======================  =====================================  ==========================================
SUM, PRODUCT, MIN, MAX  SUM, PROD, MIN, MAX                    the tensor's; half types in ``float32``,
                                                               rounded once
AVG, PREMUL_SUM         SUM, then or before that the scaling   as above
BAND, BOR, BXOR         the same                               integers, bool
SUM, MAX of bool        MAX (any)                              ``uint8``
PRODUCT, MIN of bool    MIN (all)                              ``uint8``
======================  =====================================  ==========================================

Complex tensors are added and multiplied; most of c10d passes them on as real and imaginary parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

from adjointlab import MPI
from adjointlab.torch_distributed.memory import Staged, copy_into, elements_of
from adjointlab.typing import NumpyArray

__all__ = ["Reduction", "reduction_of"]

_OPERATIONS: Final = {
    "SUM": MPI.SUM,
    "AVG": MPI.SUM,
    "PREMUL_SUM": MPI.SUM,
    "PRODUCT": MPI.PROD,
    "MIN": MPI.MIN,
    "MAX": MPI.MAX,
    "BAND": MPI.BAND,
    "BOR": MPI.BOR,
    "BXOR": MPI.BXOR,
}
_OF_BOOL: Final = {"SUM": MPI.MAX, "PRODUCT": MPI.MIN}
_BITWISE: Final = frozenset({"BAND", "BOR", "BXOR"})
_OF_COMPLEX: Final = frozenset({"SUM", "AVG", "PREMUL_SUM", "PRODUCT"})
_SCALED: Final = frozenset({"AVG", "PREMUL_SUM"})
_HALF: Final = frozenset({torch.float16, torch.bfloat16})
_REDUCED: Final = frozenset(
    {torch.float32, torch.float64, torch.complex64, torch.complex128, torch.uint8, torch.int8, torch.int16}
    | {torch.int32, torch.int64, torch.bool}
    | _HALF
)


class Reduction(NamedTuple):
    """A reduction of tensors of one element type: MPI's operation, and what precedes and follows it."""

    name: str
    op: MPI.Op
    computed_in: torch.dtype
    factor: Any = None  # of PREMUL_SUM: by which each rank multiplies its elements first
    divisor: int = 1  # of AVG

    def operand(self, tensor: torch.Tensor) -> NumpyArray:
        """The elements that a rank contributes: its own memory if they need no conversion."""
        array: NumpyArray = self._converted(tensor).numpy()
        return array

    def in_place(self, tensor: torch.Tensor) -> Staged:
        """The elements that a rank contributes, in memory that also receives the result for `tensor`."""
        flat = self._converted(tensor)
        return Staged(flat.numpy(), self._finish(flat, tensor))

    def result(self, tensor: torch.Tensor) -> Staged:
        """Room for the result for `tensor`."""
        flat = elements_of(tensor)
        if tensor.dtype is not self.computed_in:
            flat = (
                flat.view(torch.uint8)
                if tensor.dtype is torch.bool
                else torch.empty_like(flat, dtype=self.computed_in)
            )
        return Staged(flat.numpy(), self._finish(flat, tensor))

    def _converted(self, tensor: torch.Tensor) -> torch.Tensor:
        flat = elements_of(tensor)
        if tensor.dtype is torch.bool:
            flat = flat.view(torch.uint8)
        elif tensor.dtype is not self.computed_in:
            flat = flat.to(self.computed_in)
        return flat if self.factor is None else flat * self.factor

    def _finish(self, flat: torch.Tensor, tensor: torch.Tensor) -> Callable[[], None] | None:
        is_own_memory = flat.data_ptr() == tensor.data_ptr() and tensor.is_contiguous()
        if is_own_memory and self.divisor == 1:
            return None

        def finish() -> None:
            if self.divisor > 1:
                is_integer = not (flat.is_floating_point() or flat.is_complex())
                flat.div_(self.divisor, rounding_mode="trunc" if is_integer else None)
            if not is_own_memory:
                copy_into(tensor, flat)

        return finish


def reduction_of(op: Any, dtype: torch.dtype, ranks: int) -> Reduction:
    """The reduction `op` of torch.distributed for elements of `dtype` on this number of `ranks`."""
    kind = str(getattr(op, "op", op)).rpartition(".")[2]
    if kind not in _OPERATIONS or dtype not in _REDUCED:
        raise NotImplementedError(f"a process group of adjointlab has no ReduceOp.{kind} of {dtype}")
    if not _is_defined(kind, dtype):
        raise ValueError(f"ReduceOp.{kind} is not defined for {dtype}")
    operation = _OPERATIONS[kind]
    factor = op.__getstate__()[1] if kind == "PREMUL_SUM" else None
    return Reduction(
        kind,  # without a factor: each rank has its own
        _OF_BOOL.get(kind, operation) if dtype is torch.bool else operation,
        torch.float32 if dtype in _HALF else torch.uint8 if dtype is torch.bool else dtype,
        factor,
        ranks if kind == "AVG" else 1,
    )


def _is_defined(kind: str, dtype: torch.dtype) -> bool:
    if dtype.is_complex:
        return kind in _OF_COMPLEX
    if dtype is torch.bool:
        return kind not in _SCALED
    return not (dtype.is_floating_point and kind in _BITWISE)
