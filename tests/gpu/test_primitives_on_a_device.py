"""Every primitive on the memory of a device, between simulated ranks: on the stand-in for CuPy, which works as late as it may."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import adjointlab as al
from adjointlab.checks.check import checks_of
from adjointlab.core import arrays
from adjointlab.devices.transport import OVERRIDE, Transport
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject
from adjointlab.primitives.subjects import installed
from tests.gpu.stand_in.arrays import counts

SUBJECTS = {name: subject for name, subject in vars(installed).items() if isinstance(subject, Subject)}
SENDS = sorted(
    set(SUBJECTS) - {"adds", "allocates", "clears", "copies", "deallocates", "discards", "moves", "transfers"}
)


def verdicts(world: al.SimulatedWorld, subject: Subject, memory: str, cases: int) -> dict[str, str]:
    """The verdicts of all checks but the coherent ones."""
    on_device = replace(subject, arrays=(memory,))
    found = {
        check: investigate(world, on_device, check, Budget(cases=cases, seed=1)).verdict
        for check in checks_of(subject)
    }
    return {check: str(verdict) for check, verdict in found.items() if not verdict.is_coherent}


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_primitive_is_coherent_on_a_device(world: al.SimulatedWorld, cupy: Any, name: str) -> None:
    assert verdicts(world, SUBJECTS[name], "cupy", 3) == {}
    assert counts["on_device"] > 100


@pytest.mark.parametrize("name", SENDS)
def test_a_primitive_is_coherent_through_pinned_memory(
    world: al.SimulatedWorld, cupy: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OVERRIDE, Transport.STAGING)
    assert verdicts(world, SUBJECTS[name], "cupy", 2) == {}


@pytest.mark.parametrize("transport", [Transport.CUDA_AWARE_MPI, Transport.STAGING])
@pytest.mark.parametrize("name", ["broadcasts", "repartitions", "reduce_scatters"])
def test_ranks_of_one_operator_may_lie_on_the_host_and_on_a_device(
    world: al.SimulatedWorld, cupy: Any, name: str, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OVERRIDE, transport)
    assert verdicts(world, SUBJECTS[name], "numpy+cupy", 6) == {}
    assert counts["on_device"] > 100


def test_memories_of_a_device_are_drawn_where_there_is_one(cupy: Any) -> None:
    assert {"numpy", "cupy", "numpy+cupy"} <= set(SUBJECTS["broadcasts"].libraries())


def test_they_are_not_drawn_where_there_is_none() -> None:
    if arrays.installed("cupy") or arrays.installed("torch-cuda"):
        pytest.skip("there is a device")
    assert SUBJECTS["broadcasts"].libraries() == ("numpy", "torch")
