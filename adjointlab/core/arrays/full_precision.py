"""Products of float32 that a device computes in float32: torch's convolutions take shorter factors unless they are told not to."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from functools import cache
from typing import Any

from adjointlab.core.arrays.libraries import module

__all__ = ["FullPrecision", "full_precision"]


class FullPrecision:
    """Context in which torch's convolutions and products on devices do not round float32 to TF32, whose factors have 11 bits.

    The settings are the process's, and its ranks enter and leave at any time: the first one changes them, the last one puts them back.
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
    """Change the settings; return what puts them back."""
    torch: Any = module("torch")
    cudnn = torch.backends.cudnn
    with ExitStack() as before:
        # Of torch 2.9 and later. Noted first, so put back last: the older names below set them too.
        operations = _operations(torch.backends)
        for operation in operations:
            before.callback(setattr, operation, "fp32_precision", operation.fp32_precision)
        # By the older names as well, or reading those would raise in user code, as it does where a program has mixed them itself.
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
    """The operations whose precision can be set one by one; none in older versions of torch."""
    if not hasattr(backends.cudnn, "conv"):
        return []
    return [backends.cudnn.conv, backends.cudnn.rnn, backends.cuda.matmul, backends.mkldnn.matmul]


# One for a process, as its settings are.
@cache
def full_precision() -> FullPrecision:
    """Return the context of this process."""
    return FullPrecision()
