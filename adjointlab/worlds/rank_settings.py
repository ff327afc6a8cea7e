"""Settings of the process that programs change for a while, swapped with the simulated rank as random streams are.

`warnings.catch_warnings`, `sdpa_kernel` and `loss_parallel` note what they find and put it back. Ranks that share a process enter and leave
such contexts in overlapping order: the first one to leave would take the setting from the others, and the last one leave it behind.
Each class here has the methods of :class:`~adjointlab.worlds.randomness.Library`; a rank begins with what stood before the run.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

__all__ = ["AttentionKernels", "DTensorHandlers", "WarningFilters", "settings_of_now"]


class _Setting:
    """A setting with which each rank begins as it stands when this is made."""

    def __init__(self) -> None:
        self._first = self.save()

    def save(self) -> object:
        raise NotImplementedError

    def restore(self, state: Any) -> None:
        raise NotImplementedError

    def seed(self, number: int) -> None:
        self.restore(self._first)


class WarningFilters(_Setting):
    """The filters of `warnings`, and the function that shows one: those that `catch_warnings` replaces."""

    def __init__(self) -> None:
        self._module: Any = warnings
        super().__init__()

    def save(self) -> object:
        module = self._module
        return module.filters, module.showwarning, module._showwarnmsg_impl

    def restore(self, state: Any) -> None:
        module = self._module
        if module.filters is not state[0]:
            module.filters = state[0]
            module._filters_mutated()  # Python remembers by line what has been shown
        _, module.showwarning, module._showwarnmsg_impl = state


class AttentionKernels(_Setting):
    """The kernels of attention that torch may choose, by `sdpa_kernel`."""

    def __init__(self, torch: Any) -> None:
        in_c = torch._C
        names = ("flash", "mem_efficient", "math", "cudnn")
        self._ask = [ask for name in names if (ask := getattr(in_c, f"_get_{name}_sdp_enabled", None))]
        self._set = [put for name in names if (put := getattr(in_c, f"_set_sdp_use_{name}", None))]
        super().__init__()

    def save(self) -> object:
        return [ask() for ask in self._ask]

    def restore(self, state: Any) -> None:
        if state != self.save():
            for put, enabled in zip(self._set, state, strict=True):
                put(enabled)


class DTensorHandlers(_Setting):
    """The operations that DTensor's dispatcher gives to functions of their own, by `loss_parallel`."""

    def __init__(self, dispatcher: Any) -> None:
        self._dispatcher = dispatcher
        super().__init__()

    def save(self) -> object:
        handlers = self._dispatcher._custom_op_handlers
        return handlers, dict(handlers)

    def restore(self, state: Any) -> None:
        handlers, entries = state
        if handlers != entries:
            handlers.clear()
            handlers.update(entries)
        self._dispatcher._custom_op_handlers = handlers


def settings_of_now() -> list[Any]:
    """The settings of the libraries that are imported."""
    torch: Any = sys.modules.get("torch")
    settings: list[Any] = [WarningFilters()]
    if torch is not None and hasattr(torch, "default_generator"):
        settings.append(AttentionKernels(torch))
    api: Any = sys.modules.get("torch.distributed.tensor._api")
    dispatcher = getattr(getattr(api, "DTensor", None), "_op_dispatcher", None)
    if hasattr(dispatcher, "_custom_op_handlers"):
        settings.append(DTensorHandlers(dispatcher))
    return settings
