"""Module-level state as released libraries have it: groups made once, kept in variables, and found by whoever asks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

_GROUP: Any = None
_MADE: dict[str, Any] = {}


def initialize() -> None:
    global _GROUP, _SIZE
    if _GROUP is None:
        _GROUP = dist.new_group(list(range(dist.get_world_size())))
        _SIZE = dist.get_world_size()
        _MADE["group"] = _GROUP


def sum_over_group(x: torch.Tensor) -> torch.Tensor:
    initialize()
    assert _MADE["group"] is _GROUP
    total = x.clone()
    dist.all_reduce(total, group=_GROUP)
    assert dist.get_world_size() == _SIZE
    return total
