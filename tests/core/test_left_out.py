"""Numbers that are left out of a call, or of data, are zero, and flags are false; all others stand here."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.core.test_frozen import modules_of

OTHERWISE: dict[str, dict[str, float]] = {
    "core": {
        "layer.Layer.averaged": 1,  # by how many a sum is divided
        "layer.Layer.accumulates": True,
        "layer.Layer.has_forward_mode": True,
        "space.needs_messages.goes_back": True,
        "strategies.broadcasting_partitions.max_order": 3,
        "strategies.broadcasting_partitions.transpose": True,
        "strategies.layouts.whole": True,
        "strategies.meshes.max_dims": 2,
        "strategies.nested_shards.whole": True,
        "strategies.partitions.max_order": 3,
        "strategies.partitions.whole": True,
    },
    "checks": {
        "arithmetic.Arithmetic.integer_bound.headroom": 1,  # factors
        "arithmetic.Arithmetic.integers.headroom": 1,
        "layers.jacobian.TwinPairing.allows.times": 1,
        "drawing.verdict_drawing.most_ranks": 8,
        "elements.is_whole.precision": math.inf,
        "evidence.ComparedMatrices.is_whole": True,
        "evidence.Wait.is_blocked": True,
        "evidence.weight_text.digits": 6,
        "probed_matrices.ProbedMatrices.precision": 53,
        "matrix.MatrixCheck.limit": 24,
        "matrix.WitnessCheck.limit": 4096,
    },
    "engine": {
        "case.cases.schedules": 1,
        "confirming.explained.at_length": True,
        "declarations.with_defaults.has_mesh": True,
        "folded_warnings.FoldedWarning.times": 1,
        "folded_warnings.FoldedWarnings.is_leader": True,
        "parallel_check.check_parallel.cases": 20,
        "parallel_check.check_pipeline.cases": 20,
        "retries.with_hints_of_retries.seconds": 3.0,
        "run_case.CaseRunner.__call__.times": 1,
        "run_case.CaseRunner.known.times": 1,
        "run_case.KnownRuns.__call__.times": 1,
        "run_case.nothing_known.times": 1,
        "search_result.Budget.cases": 50,
        "search_result.Budget.schedules": 1,
        "search_result.Budget.seconds": math.inf,
        "search_result.Budget.shrinking": 60.0,
        "subject_check.check_subject.cases": 50,
    },
    "store": {"interrupted.checks_at_work.are_kept": True, "job_log.DeadlyCases.__call__.times": 1},
    "worlds.simulated": {
        "buffer_collectives._received.blocks": 1,
        "buffer_collectives._reduction.receives": True,
        "buffer_collectives._sent.blocks": 1,
        "buffer_collectives._sent_unless_in_place.blocks": 1,
        "messages.Messages._receive.blocking": True,
        "messages.Messages._send.blocking": True,
        "world.SimulatedWorld.ranks": 8,
    },
}
"""By package, the numbers that are not zero and the flags that are true where they are left out."""


def left_out(package: str) -> Iterator[tuple[str, object]]:
    """Every default in the modules of a package, of parameters and of fields."""
    for module in modules_of(package):
        place = module.__name__.removeprefix(f"{package}.")
        yield from _of_members(module, place, module.__name__)


def _of_members(owner: Any, place: str, module: str) -> Iterator[tuple[str, object]]:
    for name, member in vars(owner).items():
        value = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if not callable(value) or getattr(value, "__module__", None) != module:
            continue
        if not inspect.isclass(value):
            yield from _of_call(value, place if name == "__init__" else f"{place}.{name}")
        else:
            yield from _of_call(value, f"{place}.{name}") if issubclass(value, msgspec.Struct) else ()
            yield from _of_members(value, f"{place}.{name}", module)


def _of_call(function: Any, place: str) -> Iterator[tuple[str, object]]:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of a table that can be called
        return
    for parameter in parameters.values():
        yield f"{place}.{parameter.name}", parameter.default


@pytest.mark.parametrize("package", OTHERWISE)
def test_what_is_left_out_counts_nothing_but_where_it_is_said(package: str) -> None:
    numbers = {
        place: default
        for place, default in left_out(f"adjointlab.{package}")
        if type(default) in (bool, int, float)
    }
    assert len(numbers) > 3
    assert {place: default for place, default in numbers.items() if default} == OTHERWISE[package]


def test_values_are_integers_where_no_other_kind_is_asked_for() -> None:
    kinds = {
        f"{package}.{place}": default
        for package in OTHERWISE
        for place, default in left_out(f"adjointlab.{package}")
        if place.endswith(".values") and isinstance(default, str)
    }
    assert kinds == dict.fromkeys(
        ["core.vectors.Draw.values", "checks.context.CheckContext.values", "engine.case.Case.values"],
        "integers",
    )
