"""Work-around for torch's replacement of CUDA device guards on machines without a device: it must outlive the threads of the ranks."""

from __future__ import annotations

import sys
from functools import cache
from types import ModuleType

__all__ = ["hold_device_guards"]


def hold_device_guards() -> None:
    """Make torch create its replacement in this thread, before a rank does; called in the thread that starts the ranks.

    A torch that is built with CUDA, on a machine without a device, replaces the device guards when a `FakeTensorMode` is entered
    for the first time, as by each new operation on DTensors. In torch 2.11 the replacement is thread-local: it is destroyed when
    the thread ends, torch still points to it, and the next `FakeTensorMode`, in any thread, causes a segmentation fault.
    """
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "set_grad_enabled"):  # else it is still being imported
        _hold(torch)


@cache
def _hold(torch: ModuleType) -> None:
    replace_guards = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    if replace_guards is not None and torch.version.cuda and not torch.cuda.is_available():
        replace_guards()
