"""Bugs of code for a device, planted in the transports, the kernels and an operator, are found by the checks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import adjointlab as al
from adjointlab.core.arrays import kernels
from adjointlab.devices.transport import OVERRIDE, Transport
from adjointlab.primitives.subjects import installed
from tests.gpu.device_cases import CASES, judged_all, judged_subject
from tests.gpu.planted import BROADCAST, KERNEL_BUGS, OPERATORS, PLANTED
from tests.gpu.stand_in import host_kernels
from tests.gpu.stand_in.module import cupy_stand_in

needs_compiler = pytest.mark.skipif(
    host_kernels.compiler() is None,
    reason="needs a C++ compiler on PATH (c++, g++ or clang++), for the kernels",
)


@needs_compiler
@pytest.mark.parametrize("bug", PLANTED)
def test_a_bug_of_a_transport_is_found(
    world: al.SimulatedWorld, cupy: Any, bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = PLANTED[bug]
    planted.plant(monkeypatch)
    assert judged_all(world, planted.case) != []


@needs_compiler
@pytest.mark.parametrize("bug", KERNEL_BUGS)
def test_a_bug_of_a_kernel_is_found(world: al.SimulatedWorld, bug: str) -> None:
    right, wrong = KERNEL_BUGS[bug]
    assert kernels.SOURCE.count(right) == 1
    with cupy_stand_in(kernels.SOURCE.replace(right, wrong)):
        assert judged_all(world, "halo exchange") != []


@needs_compiler
@pytest.mark.parametrize("place", OPERATORS)
def test_a_result_in_another_memory_is_found(world: al.SimulatedWorld, cupy: Any, place: str) -> None:
    subject = replace(installed.broadcasts, build=OPERATORS[place])
    assert "another device" in str(judged_subject(world, subject, BROADCAST, "declared"))


@needs_compiler
@pytest.mark.parametrize("transport", [Transport.CUDA_AWARE_MPI, Transport.STAGING])
def test_nothing_is_found_without_a_bug(
    world: al.SimulatedWorld, cupy: Any, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OVERRIDE, transport)
    for name in CASES:
        assert judged_all(world, name) == []
