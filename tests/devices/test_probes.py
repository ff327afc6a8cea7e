"""Libraries are asked in processes of their own: one that crashes, hangs or prints nonsense does not end the process that asks."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from importlib.metadata import Distribution
from typing import Any

import pytest

from adjointlab.devices import probe, probes
from adjointlab.devices.cuda_aware_mpi import MPIEvidence
from adjointlab.devices.overview import overview
from adjointlab.devices.probes import Found, NoDevice, ask, require_device
from adjointlab.devices.transport import OVERRIDE, Transport
from adjointlab.report.machine_text import machine_lines

GPU = {"name": "NVIDIA H100", "memory": 80 * 2**30, "capability": "9.0", "id": "aa"}
CUPY = {"version": "14.2.0", "runtime": 13020, "nccl": "2.27.3", "devices": [GPU]}
DRIVER = {"cuda": 13000, "release": "580.65.06"}
WITH_GPU = Found(
    DRIVER, CUPY, {"version": "2.13.0", "cuda": "13.0", "devices": [GPU]}, (("cupy-cuda13x", "14.2.0"),)
)
WITHOUT = Found(
    {"error": "libcuda.so.1: no"}, {"error": "not installed"}, {"error": "torch is built without CUDA"}
)


def ending(code: int = 0, stdout: str = "", stderr: str = "") -> Callable[..., Any]:
    return lambda command, **_: subprocess.CompletedProcess(command, code, stdout, stderr)


def late(command: list[str], **_: object) -> Any:
    raise subprocess.TimeoutExpired(command, 1.0)


@pytest.mark.parametrize(
    ("run", "answer"),
    [
        (ending(stdout=f"a library talks\n{probe.MARK}" + '{"cuda": 13000}\n'), {"cuda": 13000}),
        (
            ending(-11, stderr="first\nFatal error\n"),
            {"error": "its process was ended by SIGSEGV: Fatal error"},
        ),
        (ending(3), {"error": "its process ended with exit code 3"}),
        (late, {"error": "no answer within 120 s"}),
    ],
)
def test_whatever_becomes_of_the_process_there_is_an_answer(run: Callable[..., Any], answer: object) -> None:
    assert ask("driver", run) == answer


def test_a_library_that_raises_is_an_answer_of_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> dict[str, Any]:
        raise ImportError("libcudart.so.13: cannot open\nlong advice")

    monkeypatch.setitem(probe.QUESTIONS, "cupy", broken)
    probe.main("cupy")
    assert (
        capsys.readouterr().out == f'\n{probe.MARK}{{"error": "ImportError: libcudart.so.13: cannot open"}}\n'
    )


def test_the_wheels_of_cupy_are_found_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wheel(Distribution):
        def __init__(self, name: str) -> None:
            self.name_and_version = f"Name: {name}\nVersion: 14.2.0\n"

        def read_text(self, filename: str) -> str | None:
            return self.name_and_version if filename == "METADATA" else None

        def locate_file(self, path: Any) -> Any:
            raise NotImplementedError

    names = ["cupy_cuda12x", "cupy-cuda13x", "cupy-tools", "numpy", "cupy"]
    monkeypatch.setattr(probes, "distributions", lambda: [Wheel(name) for name in names])
    assert [name for name, _ in probes.cupy_wheels()] == ["cupy", "cupy-cuda12x", "cupy-cuda13x"]


@pytest.mark.parametrize(
    ("here", "message"),
    [
        (
            WITHOUT,
            "no CUDA device was found: driver: libcuda.so.1: no; CuPy: not installed; torch: torch is built",
        ),
        (Found({"cuda": 12040}, CUPY), "cuda cannot be used: CuPy is built for CUDA 13, but the driver runs"),
        (Found(DRIVER, {"version": "14.2.0", "devices": []}), "driver: no device; CuPy: no device"),
    ],
)
def test_a_device_that_cannot_be_used_is_refused_with_what_was_found(here: Found, message: str) -> None:
    require_device(WITH_GPU)
    with pytest.raises(NoDevice, match=r"^device: cuda") as refused:
        require_device(here)
    assert message in str(refused.value)


class Job:
    """A job of two ranks, of which the other has brought the same as this one with changes."""

    rank = 0

    def __init__(self, changed: Callable[[Any], Any]) -> None:
        self.changed = changed

    def allgather(self, label: str, payload: Any) -> list[Any]:
        return [payload, self.changed(payload) if label == "info: ranks" else payload]


def described(monkeypatch: pytest.MonkeyPatch, here: Found, **of_job: Any) -> tuple[dict[str, Any], str]:
    monkeypatch.delenv(OVERRIDE, raising=False)
    monkeypatch.setattr("adjointlab.devices.overview.found", lambda: here)
    evidence = MPIEvidence("MPICH Version: 5.0.2", "5.0", query=False)
    result = overview(evidence, "mpiexec", lambda found, mpi: {"simulated": "yes"}, **of_job)
    return dict(result.transports), "\n".join(machine_lines(result))


def test_a_process_alone_is_told_the_transport_of_either_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    transports, text = described(monkeypatch, WITH_GPU)
    assert [each.transport for each in transports.values()] == [Transport.NCCL, Transport.STAGING]
    assert "cupy-cuda13x 14.2.0; CUDA runtime 13.2; NCCL 2.27.3" in text
    assert "580.65.06, CUDA 13.0" in text
    assert "NVIDIA H100, 80.0 GiB, compute capability 9.0" in text
    assert "mismatches" not in text


def test_ranks_on_one_device_stage_their_buffers_and_stand_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transports, text = described(monkeypatch, WITH_GPU, job=Job(lambda rank: rank))
    assert transports["between ranks"].transport is Transport.STAGING
    assert "rank 0, 1 " in text


class SecondRank:
    """Rank 1, with what rank 0 has found, on the same host or on another one."""

    rank = 1

    def __init__(self, *, is_same_host: bool) -> None:
        self.is_same_host = is_same_host
        self.brought: dict[str, Any] = {}

    def allgather(self, label: str, payload: Any) -> list[Any]:
        self.brought[label] = payload
        if label == "info: hosts":
            return [payload if self.is_same_host else ("another", None), payload]
        return [WITHOUT if label == "info: answers" else payload, payload]


@pytest.mark.parametrize("is_same_host", [True, False])
def test_one_rank_of_a_host_asks_for_all_of_it(monkeypatch: pytest.MonkeyPatch, is_same_host: bool) -> None:
    job = SecondRank(is_same_host=is_same_host)
    described(monkeypatch, WITH_GPU, job=job)
    asked, rank = job.brought["info: answers"], job.brought["info: ranks"]
    assert (asked, rank.found) == ((None, WITHOUT) if is_same_host else (WITH_GPU, WITH_GPU))


def test_a_mismatch_is_told_of_the_host_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    def elsewhere(rank: Any) -> Any:
        return replace(
            rank, machine=replace(rank.machine, host="node7"), found=replace(WITH_GPU, driver={"cuda": 12040})
        )

    _, text = described(monkeypatch, WITH_GPU, job=Job(elsewhere))
    assert "node7: cupy-cuda13x 14.2.0 is built for CUDA 13, but the driver runs CUDA 12.4 at most" in text


@pytest.mark.parametrize("name", ["ADJOINTLAB_TRANSPORT", "ADJOINTLAB_CUDA_AWARE_MPI"])
def test_a_wrong_override_is_a_line_and_no_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("adjointlab.devices.overview.found", lambda: WITH_GPU)
    monkeypatch.setenv(name, "perhaps")
    evidence = MPIEvidence("MPICH", environment={name: "perhaps"})
    text = "\n".join(machine_lines(overview(evidence, "mpiexec", lambda found, mpi: {})))
    assert text.count(f"{name}: 'perhaps' is") >= 1
