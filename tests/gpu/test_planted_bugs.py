"""Bugs of code for a device, planted in the transports, the kernels and an operator, are found by the checks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

import adjointlab as al
from adjointlab.core import arrays
from adjointlab.core.arrays import kernels
from adjointlab.core.arrays.streams import _CupyStreams
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.transport import staging
from adjointlab.core.transport.direct import DirectCommunicator
from adjointlab.core.transport.pinned import PinnedPool
from adjointlab.devices.transport import OVERRIDE, Transport
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.subjects import installed
from tests.gpu.device_cases import CASES, judged_all, judged_subject
from tests.gpu.stand_in import host_kernels
from tests.gpu.stand_in.module import cupy_stand_in

needs_compiler = pytest.mark.skipif(
    host_kernels.compiler() is None,
    reason="needs a C++ compiler on PATH (c++, g++ or clang++), for the kernels",
)


# The transports


def _send_without_waiting(self: DirectCommunicator) -> Any:
    return self.comm


def _send_before_the_copy_is_complete(self: staging.StagedCommunicator, *, wait: bool = False) -> None:
    while self._unsent:
        self._unsent.popleft().begin()


def _take_what_is_still_copied(self: PinnedPool, nbytes: int) -> Any:
    size = max(512, 1 << max(nbytes - 1, 0).bit_length())
    free = self._free.setdefault(size, [])
    return free.pop().memory if free else self._streams.pinned(size)


def _give_back_before_it_is_sent(self: Any) -> None:
    self.inner = self.transport.comm.Isend(staging._like(self.buf, self.staged), *self._to)
    self.transport.pool.give_back(self.staged)
    self.transport.pool.give_back = lambda memory, after=None: None


def _copy_what_is_not_yet_written(self: _CupyStreams, source: Any, target: Any, after: Any) -> Any:
    kind = self._cuda.runtime.memcpyDeviceToHost
    self._cuda.runtime.memcpyAsync(
        target.ctypes.data, source.data.ptr, source.nbytes, kind, self._to_host.ptr
    )
    return self._marked(self._to_host)


def _use_before_it_has_arrived(self: _CupyStreams, mark: Any) -> None:
    """The current stream does not wait for the copy to the device."""


class Planted(NamedTuple):
    owner: Any
    name: str
    replacement: Callable[..., Any]
    transport: Transport
    case: str = "halo exchange"


PLANTED = {
    "no synchronisation before a send": Planted(
        DirectCommunicator, "_when_written", _send_without_waiting, Transport.CUDA_AWARE_MPI
    ),
    "sent before the copy is complete": Planted(
        staging.StagedCommunicator, "send_copied", _send_before_the_copy_is_complete, Transport.STAGING
    ),
    "pinned buffer reused while it is copied": Planted(
        PinnedPool, "take", _take_what_is_still_copied, Transport.STAGING, "sent among others"
    ),
    "pinned buffer reused while it is sent": Planted(
        staging._StagedSend, "begin", _give_back_before_it_is_sent, Transport.STAGING
    ),
    "host copy of a stale buffer": Planted(
        _CupyStreams, "to_host", _copy_what_is_not_yet_written, Transport.STAGING
    ),
    "used before it has arrived": Planted(
        _CupyStreams, "wait", _use_before_it_has_arrived, Transport.STAGING, "repartition"
    ),
}


@needs_compiler
@pytest.mark.parametrize("bug", PLANTED)
def test_a_bug_of_a_transport_is_found(
    world: al.SimulatedWorld, cupy: Any, bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = PLANTED[bug]
    monkeypatch.setenv(OVERRIDE, planted.transport)
    monkeypatch.setattr(planted.owner, planted.name, planted.replacement)
    assert judged_all(world, planted.case) != []


# The kernels

KERNEL_BUGS = {
    "off by one in the last block": ("element < box.size; ++turn", "element < box.size - 1; ++turn"),
    "face packed as if contiguous": ("index * box.source_strides[dim]", "index * sizeof(Element)"),
}


@needs_compiler
@pytest.mark.parametrize("bug", KERNEL_BUGS)
def test_a_bug_of_a_kernel_is_found(world: al.SimulatedWorld, bug: str) -> None:
    right, wrong = KERNEL_BUGS[bug]
    assert kernels.SOURCE.count(right) == 1
    with cupy_stand_in(kernels.SOURCE.replace(right, wrong)):
        assert judged_all(world, "halo exchange") != []


# An operator


class BroadcastToAnotherDevice(Broadcast):
    """Its results lie on a device of its choice."""

    def forward(self, x: Any, out: Any = None) -> Any:
        with ExitStack() as device:
            result = super().forward(x, out)
            if out is None and arrays.is_on_device(x):
                import cupy

                device.enter_context(cupy.cuda.Device(1))
                moved = cupy.empty(result.shape, result.dtype)
                moved.set(result.get())
                return moved
        return result


class BroadcastThroughTheHost(Broadcast):
    """Its results lie on the host."""

    def forward(self, x: Any, out: Any = None) -> Any:
        result = super().forward(x, out)
        return result if out is not None else arrays.to_numpy(result)


@needs_compiler
@pytest.mark.parametrize("operator", [BroadcastToAnotherDevice, BroadcastThroughTheHost])
def test_a_result_in_another_memory_is_found(
    world: al.SimulatedWorld, cupy: Any, operator: type[Broadcast]
) -> None:
    subject = replace(installed.broadcasts, build=operator)
    parameters = {"layout": Layout((3, 4), Partition((1, 1))), "partition": Partition((2, 2))}
    assert "another device" in str(judged_subject(world, subject, parameters, "declared"))


@needs_compiler
@pytest.mark.parametrize("transport", [Transport.CUDA_AWARE_MPI, Transport.STAGING])
def test_nothing_is_found_without_a_bug(
    world: al.SimulatedWorld, cupy: Any, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OVERRIDE, transport)
    for name in CASES:
        assert judged_all(world, name) == []
