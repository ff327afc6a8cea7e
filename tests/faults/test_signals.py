"""A signal at a random moment. ``python -m tests.faults.signals`` tries fifty of them."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from adjointlab.worlds.launch import is_launched
from tests.faults.signals import TARGETS, Target, problems_at

pytestmark = pytest.mark.skipif(is_launched(), reason="starts its own processes")


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(target, id=target.name, marks=[pytest.mark.starts_mpiexec] if target.ranks else [])
        for target in TARGETS
    ],
)
def test_what_was_found_is_printed_and_stored_and_nothing_is_left_behind(
    tmp_path: Path, target: Target
) -> None:
    if not target.takes(signal.SIGTERM):
        pytest.skip("Open MPI's launcher gives the ranks no time; `adjointlab run` does")
    assert problems_at(target, signal.SIGTERM, random.uniform(0.0, 1.0), tmp_path).problems == []
