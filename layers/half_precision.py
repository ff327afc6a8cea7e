"""Sums of values of half precision, which torch's kernels accumulate in float32 and round once, at the end."""

from __future__ import annotations

import torch

__all__ = ["accumulation_dtype"]


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the element type to compute in: float32 for float16 and bfloat16, whose sums overflow or lose digits, else `dtype`."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
