"""Names of memories, and the restriction of a subject's memories to those of the host or of a device.

A memory is an array library with a place: "numpy" and "torch" are host memory, "cupy" and "torch-cuda" device memory. A mixture,
"numpy+cupy", has one memory on some ranks and the other one on the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["DEVICES", "is_on_device", "on"]

DEVICES: Final = ("cpu", "cuda")
"""The places that cases can be restricted to."""


def is_on_device(memory: str) -> bool:
    """Return True if the memory is on a CUDA device, or a mixture with one; False for host memory."""
    return any(part == "cupy" or part.endswith("-cuda") for part in memory.split("+"))


def on(device: str | None, memories: Sequence[str]) -> tuple[str, ...]:
    """Return those of the `memories` that are on `device`, in their order; all of them for None."""
    return tuple(
        memory for memory in memories if device is None or is_on_device(memory) == (device == "cuda")
    )
