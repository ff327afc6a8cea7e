"""Support for pytest-xdist: detecting its workers, and sending results from a worker to the controller when it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pytest

__all__ = ["XdistNode", "hand_over", "handed_over", "is_distributed", "is_worker"]


class XdistNode(Protocol):
    """The argument of pytest-xdist's hooks for a new worker, and for one that has ended, which has output unless it crashed."""

    config: pytest.Config
    workerinput: dict[str, object]
    workeroutput: dict[str, object]


def is_distributed(config: pytest.Config) -> bool:
    """Return True if pytest-xdist distributes the tests over workers."""
    return bool(getattr(config.option, "tx", None)) or getattr(config.option, "dist", "no") != "no"


def is_worker(config: pytest.Config) -> bool:
    """Return True in a worker."""
    return hasattr(config, "workerinput")


def hand_over(config: pytest.Config, key: str, make: Callable[[], object]) -> bool:
    """If this is a worker at its end, send the controller the value that `make` returns, and return True."""
    output: dict[str, object] | None = getattr(config, "workeroutput", None)
    if output is None:
        return False
    output[key] = make()
    return True


def handed_over(node: XdistNode, key: str) -> Any:
    """Return the value that a worker has sent under `key`; None if it has crashed, or has sent none."""
    return getattr(node, "workeroutput", {}).get(key)
