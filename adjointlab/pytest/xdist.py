"""Questions to pytest-xdist: whether its workers run the tests, and what they hand over to the controller when they end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pytest

__all__ = ["XdistNode", "hand_over", "handed_over", "is_distributed", "is_worker"]


class XdistNode(Protocol):
    """The argument of pytest-xdist's hooks for a new worker and for one that has ended, which has output if it has not crashed."""

    config: pytest.Config
    workerinput: dict[str, object]
    workeroutput: dict[str, object]


def is_distributed(config: pytest.Config) -> bool:
    """Return True if pytest-xdist hands the tests to workers."""
    return bool(getattr(config.option, "tx", None)) or getattr(config.option, "dist", "no") != "no"


def is_worker(config: pytest.Config) -> bool:
    """Return True in a worker."""
    return hasattr(config, "workerinput")


def hand_over(config: pytest.Config, key: str, make: Callable[[], object]) -> bool:
    """Hand over what `make` makes, if this is a worker that ends, and return True then."""
    output: dict[str, object] | None = getattr(config, "workeroutput", None)
    if output is None:
        return False
    output[key] = make()
    return True


def handed_over(node: XdistNode, key: str) -> Any:
    """Return what a worker that has ended has handed over; None where it has crashed, or has handed over nothing of that name."""
    return getattr(node, "workeroutput", {}).get(key)
