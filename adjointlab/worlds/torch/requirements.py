"""The torch that process groups need."""

from __future__ import annotations

import importlib
import re
from typing import Any, Final

__all__ = ["MissingTorch", "check_gloo", "check_torch"]

_LEAST: Final = (2, 6)


class MissingTorch(RuntimeError):
    """torch is missing, too old, or built without torch.distributed; the message says which."""


def check_torch() -> None:
    """Raise :class:`MissingTorch` unless process groups can be made here."""
    needed = "a process group needs torch 2.6 or later, built with torch.distributed"
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        raise MissingTorch(f"{needed}; torch is not installed (pip install 'adjointlab[torch]')") from None
    version = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])
    if version < _LEAST:
        raise MissingTorch(f"{needed}; this is torch {torch.__version__}")
    if not torch.distributed.is_available():
        raise MissingTorch(f"{needed}; this torch {torch.__version__} is built without it")


def check_gloo() -> None:
    """Raise :class:`MissingTorch` unless real process groups can be made here for CPU tensors."""
    check_torch()
    distributed: Any = importlib.import_module("torch.distributed")
    if not distributed.is_gloo_available():
        raise MissingTorch(
            "the process groups of a case need the backend gloo; this torch is built without it"
        )
