"""torch's level of dual tensors, which simulated ranks share.

The level is a state of the process: nobody else can open one meanwhile, and whoever closes it takes the tangents from all. So it is
opened with the first rank that enters one, and closed with the last that leaves. That each rank enters one alone is left to torch, which
keeps that number beside (:class:`~adjointlab.worlds.rank_settings.ForwardMode`). Until the last has left, a tensor that a rank has
written a dual one into keeps its tangent, and has it in a level that the rank enters meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from adjointlab.replacement import replaced

__all__ = ["dual_levels_shared"]


class _SharedLevel:
    """The functions of torch's module `forward_ad` that open and close a level, for ranks that run one at a time."""

    def __init__(self, forward_ad: Any) -> None:
        self._module = forward_ad
        self._open, self._close = forward_ad.enter_dual_level, forward_ad.exit_dual_level
        self._inside = 0  # ranks

    def enter(self) -> int:
        if self._inside and self._module._current_level < 0:
            self._module._current_level = 0
        else:
            self._open()  # raises where this rank has entered one
        self._inside += 1
        return 0

    def exit(self, *, level: int | None = None) -> None:
        if self._inside > 1 and level in (None, 0) and self._module._current_level == 0:
            self._module._current_level = -1
        else:
            self._close(level=level)
        self._inside -= 1

    def close(self) -> None:
        """Close what some rank has not."""
        if self._inside:
            self._module._current_level = 0
            self._close()


@contextmanager
def dual_levels_shared() -> Iterator[None]:
    """Context in which each rank enters and leaves a level of dual tensors as if no other did."""
    forward_ad = sys.modules.get("torch.autograd.forward_ad")
    if forward_ad is None:
        yield
        return
    level = _SharedLevel(forward_ad)
    with (
        replaced(forward_ad, "enter_dual_level", level.enter),
        replaced(forward_ad, "exit_dual_level", level.exit),
    ):
        try:
            yield
        finally:
            level.close()
