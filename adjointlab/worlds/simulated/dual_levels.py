"""torch's level of dual tensors, which simulated ranks share.

The level is process-wide state: only one can be open, and closing it removes the tangents of all tensors. So it is
opened when the first rank enters one, and closed when the last rank leaves. torch itself checks that each rank enters only one level, with
a number that is swapped with the rank (:class:`~adjointlab.worlds.rank_settings.ForwardMode`). A limitation: until the last rank has left,
a tensor into which a rank has written a dual tensor keeps its tangent, and still has it in a level that the rank enters meanwhile.
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
            self._open()  # raises if this rank has already entered one
        self._inside += 1
        return 0

    def exit(self, *, level: int | None = None) -> None:
        if self._inside > 1 and level in (None, 0) and self._module._current_level == 0:
            self._module._current_level = -1
        else:
            self._close(level=level)
        self._inside -= 1

    def close(self) -> None:
        """Close the level if some rank has not left it."""
        if self._inside:
            self._module._current_level = 0
            self._close()


@contextmanager
def dual_levels_shared() -> Iterator[None]:
    """Context in which each rank enters and leaves a level of dual tensors independently of the others."""
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
