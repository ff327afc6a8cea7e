"""Objects as they travel between simulated ranks: pickled, so copied as between processes."""

from __future__ import annotations

import pickle
from typing import Any

__all__ = ["pack", "unpack"]


def pack(value: Any) -> bytes:
    """`value` as it travels."""
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def unpack(parcel: Any) -> Any:
    """What :func:`pack` made the bytes of; they never leave this process."""
    return pickle.loads(parcel)  # noqa: S301
