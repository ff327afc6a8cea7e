"""Process-wide settings that programs change temporarily, swapped with the simulated rank like random streams.

`warnings.catch_warnings`, `sdpa_kernel`, `loss_parallel` and user-written contexts for torch's default dtype save a setting and restore it. Ranks
that share a process enter and leave such contexts in overlapping order: the first one to leave would reset the setting for the others, and the
last one would leave a changed setting behind.
Each class here has the methods of :class:`~adjointlab.worlds.randomness.Library`; a rank begins with the settings from before the run.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["DTensorHandlers", "ForwardMode", "TorchSettings", "WarningFilters", "settings_of_now"]


class _Setting:
    """A setting; each rank begins with its value when this object was made."""

    def __init__(self) -> None:
        self._first = self.save()

    def save(self) -> object:
        raise NotImplementedError

    def restore(self, state: Any) -> None:
        raise NotImplementedError

    def seed(self, number: int) -> None:
        self.restore(self._first)


class WarningFilters(_Setting):
    """The filters of `warnings`, and the functions that show one: the attributes that `catch_warnings` replaces."""

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
            module._filters_mutated()  # invalidates Python's record of the lines that have warned
        _, module.showwarning, module._showwarnmsg_impl = state


class TorchSettings(_Setting):
    """torch's default dtype, attention kernels (`sdpa_kernel`), deterministic mode and anomaly detection."""

    def __init__(self, torch: Any) -> None:
        in_c = torch._C
        self._pairs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = [
            (torch.get_default_dtype, torch.set_default_dtype),
            (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
            (
                lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
                lambda modes: torch.set_anomaly_enabled(*modes),
            ),
        ]
        for name in ("flash", "mem_efficient", "math", "cudnn"):
            ask, put = (
                getattr(in_c, f"_get_{name}_sdp_enabled", None),
                getattr(in_c, f"_set_sdp_use_{name}", None),
            )
            if ask and put:
                self._pairs.append((ask, put))
        super().__init__()

    def save(self) -> object:
        return [ask() for ask, _ in self._pairs]

    def restore(self, state: Any) -> None:
        if state != self.save():
            for (_, put), value in zip(self._pairs, state, strict=True):
                put(value)


class ForwardMode(_Setting):
    """The open level of dual tensors (-1: none) and the nesting depth of `torch.func.jvp`, which are variables of torch's modules."""

    def __init__(self) -> None:
        places = (
            ("torch.autograd.forward_ad", "_current_level"),
            ("torch._functorch.eager_transforms", "JVP_NESTING"),
        )
        self._variables = [
            (vars(sys.modules[module]), name)
            for module, name in places
            if hasattr(sys.modules.get(module), name)
        ]
        super().__init__()

    def save(self) -> object:
        return [variables[name] for variables, name in self._variables]

    def restore(self, state: Any) -> None:
        for (variables, name), value in zip(self._variables, state, strict=True):
            variables[name] = value


class DTensorHandlers(_Setting):
    """The custom handlers of operations that `loss_parallel` registers with DTensor's dispatcher."""

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
    """The settings of the libraries that are imported by now."""
    torch: Any = sys.modules.get("torch")
    settings: list[Any] = [WarningFilters()]
    if torch is not None and hasattr(torch, "default_generator"):
        settings += [TorchSettings(torch), ForwardMode()]
    api: Any = sys.modules.get("torch.distributed.tensor._api")
    dispatcher = getattr(getattr(api, "DTensor", None), "_op_dispatcher", None)
    if hasattr(dispatcher, "_custom_op_handlers"):
        settings.append(DTensorHandlers(dispatcher))
    return settings
