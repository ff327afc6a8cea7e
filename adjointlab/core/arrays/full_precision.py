"""Float32 products on a device in full precision: by default torch's convolutions round the factors to TF32."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from functools import cache
from typing import Any

from adjointlab.core.arrays.libraries import module

__all__ = ["FullPrecision", "full_precision"]


class FullPrecision:
    """Context in which torch's convolutions and products on devices do not round float32 to TF32, whose factors have 11 bits.

    The settings belong to the process, and its ranks enter and leave at any time: the first one changes them, the last one restores them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = _changed()
            self._inside += 1

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._before.close()


def _changed() -> ExitStack:
    """Change the settings; return the stack of callbacks that restore them."""
    torch: Any = module("torch")
    cudnn = torch.backends.cudnn
    with ExitStack() as before:
        # In torch 2.9 and later. Saved first, so restored last: the older names below set them too.
        operations = _operations(torch.backends)
        for operation in operations:
            before.callback(setattr, operation, "fp32_precision", operation.fp32_precision)
        # Set the older names as well: otherwise user code that reads them would raise, as it does in a program that mixes both.
        with suppress(RuntimeError):
            before.callback(setattr, cudnn, "allow_tf32", cudnn.allow_tf32)
            cudnn.allow_tf32 = False
        with suppress(RuntimeError):
            before.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("highest")
        for operation in operations:
            operation.fp32_precision = "ieee"
        return before.pop_all()


def _operations(backends: Any) -> list[Any]:
    """Return the operations whose precision can be set individually; none in older versions of torch."""
    if not hasattr(backends.cudnn, "conv"):
        return []
    return [backends.cudnn.conv, backends.cudnn.rnn, backends.cuda.matmul, backends.mkldnn.matmul]


# One per process, like the settings.
@cache
def full_precision() -> FullPrecision:
    """Return the context of this process."""
    return FullPrecision()
