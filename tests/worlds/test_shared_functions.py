"""Functions of Python and NumPy that user code replaces: no verdict is made with them, and they are put back."""

from __future__ import annotations

import builtins
import json
import math
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.verdict import Status
from adjointlab.engine.discovery import found_as
from adjointlab.engine.failed_runs import REPLACED
from adjointlab.engine.search_result import Budget
from adjointlab.session import run_check
from adjointlab.worlds.launch import is_launched, open_world
from adjointlab.worlds.shared_functions import put_back
from adjointlab.worlds.world import World
from tests.faults.declaring import Shift, blocks


def nothing(*arguments: Any, **keywords: Any) -> str:
    return ""


FUNCTIONS = [
    (builtins, "abs"),
    (builtins, "isinstance"),
    (json, "dumps"),
    (math, "fsum"),
    (np, "allclose"),
    (np, "sum"),
    (os, "write"),
]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    world = open_world(ranks=3)
    yield world
    if not is_launched():
        world.close()


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    put_back()


def verdict(world: World, operator: type, tmp_path: Any, draws: Any = blocks) -> Any:
    subject = al.subject.operator(operator)(draws)
    return run_check(world, found_as(subject), "adjoint", Budget(4, seed=1), tmp_path).result.verdict


@pytest.mark.parametrize(("module", "name"), FUNCTIONS, ids=lambda value: getattr(value, "__name__", value))
def test_a_run_in_which_a_function_is_replaced_is_not_judged(
    world: World, tmp_path: Any, module: ModuleType, name: str
) -> None:
    original = getattr(module, name)

    class Meddling(Shift):
        def adjoint(self, y: Any) -> Any:
            result = super().adjoint(y)
            if self.rank == self.size - 1:
                setattr(module, name, nothing)
            return result

    found = verdict(world, Meddling, tmp_path)
    assert getattr(module, name) is original
    assert (found.status, found.kind) == (Status.UNJUDGED, REPLACED), str(found)
    assert f"{module.__name__}.{name} had been replaced in the run" in found.headline


def test_what_a_strategy_replaces_is_found_too(world: World, tmp_path: Any) -> None:
    if is_launched():
        pytest.skip("the leader alone draws")

    def meddling(draw: Any, ranks: int) -> dict[str, Any]:
        np.array_equal = nothing
        return blocks(draw, ranks)

    found = verdict(world, Shift, tmp_path, meddling)
    assert (found.status, found.kind) == (Status.UNJUDGED, REPLACED), str(found)
    assert "numpy.array_equal had been replaced before the run" in found.headline
    assert np.array_equal is not nothing


def test_a_function_that_is_replaced_for_a_time_costs_no_verdict(world: World, tmp_path: Any) -> None:
    class Patching(Shift):
        def adjoint(self, y: Any) -> Any:
            if self.rank:  # two that patch one function in turns would put back what the other has put there
                return super().adjoint(y)
            with patch.object(np, "sum", nothing):  # other simulated ranks run in the exchange
                return super().adjoint(y)

    assert verdict(world, Patching, tmp_path).status is Status.COHERENT
