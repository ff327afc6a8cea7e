"""``--device`` restricts the memories that cases are drawn, replayed and proved in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.verdict import Status
from adjointlab.cli import device as cli_device
from adjointlab.cli.main import main
from adjointlab.cli.replay import replayed
from adjointlab.devices import memories, probes
from adjointlab.devices.memories import is_on_device, on
from adjointlab.engine.discovery import found_as
from adjointlab.engine.listed_cases import bound_of, every_case, memory_of_proofs
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import SubjectError
from adjointlab.replaying import replay_corpus
from adjointlab.session import run_check
from adjointlab.worlds.simulated.world import SimulatedWorld
from tests.samples import RingShift, equal_blocks

pytest.importorskip("torch")

seen: set[str] = set()


class Watched(RingShift):
    """Notes the library of its arguments."""

    def shifted(self, x: Any, step: int) -> Any:
        seen.add(type(x).__module__.partition(".")[0])
        shifted = super().shifted(np.asarray(x), step)
        return shifted if isinstance(x, np.ndarray) else x.new_tensor(shifted)


class Losing(Watched):
    """Loses what it is given."""

    def shifted(self, x: Any, step: int) -> Any:
        return 0 * super().shifted(x, step) if step > 0 else super().shifted(x, step)


@al.subject(Watched, arrays=("numpy", "torch"))
def both(draw: Any, ranks: int) -> dict[str, Any]:
    return equal_blocks(draw, ranks)


@al.subject(Losing, arrays=("numpy", "torch"))
def losing(draw: Any, ranks: int) -> dict[str, Any]:
    return equal_blocks(draw, ranks)


@al.subject(Watched, arrays=("numpy",), name="of the host")
def of_host(draw: Any, ranks: int) -> dict[str, Any]:
    return equal_blocks(draw, ranks)


@pytest.fixture
def torch_is_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device for machines that have none: torch's memory counts as one."""
    monkeypatch.setattr(memories, "is_on_device", lambda memory: memory == "torch")
    monkeypatch.setattr(probes, "require_device", lambda: None)
    seen.clear()


@pytest.mark.parametrize(
    ("memory", "is_of_device"),
    [
        ("numpy", False),
        ("torch", False),
        ("cupy", True),
        ("torch-cuda", True),
        ("numpy+cupy", True),
        ("torch+torch-cuda", True),
        ("numpy+torch", False),
    ],
)
def test_a_memory_is_of_the_host_or_of_a_device(memory: str, is_of_device: bool) -> None:
    assert is_on_device(memory) is is_of_device
    assert on("cuda", [memory]) == (on(None, [memory]) if is_of_device else ())
    assert on("cpu", [memory]) == (() if is_of_device else (memory,))


@pytest.mark.parametrize(
    ("device", "libraries"), [("cpu", {"numpy"}), ("cuda", {"torch"}), (None, {"numpy", "torch"})]
)
def test_cases_are_drawn_in_that_memory_alone(
    torch_is_a_device: None, device: str | None, libraries: set[str]
) -> None:
    report = investigate(SimulatedWorld(2), both, "adjoint", Budget(30, seed=1, device=device))
    assert report.status is Status.COHERENT
    assert seen == libraries


def test_a_subject_without_memory_there_is_not_judged_and_told_why(
    torch_is_a_device: None, tmp_path: Path
) -> None:
    result = run_check(SimulatedWorld(2), found_as(of_host), "adjoint", Budget(5, device="cuda"), tmp_path)
    assert result.status is Status.UNJUDGED
    assert "of the host: draws no tensors in cuda memory, but in numpy" in result.result.verdict.headline


def test_stored_cases_in_other_memory_are_passed_over(torch_is_a_device: None, tmp_path: Path) -> None:
    world, found = SimulatedWorld(2), found_as(losing)
    assert run_check(world, found, "adjoint", Budget(20, seed=1, device="cpu"), tmp_path).written is not None
    assert replay_corpus(world, found, "adjoint", tmp_path, "cpu") is not None
    assert replay_corpus(world, found, "adjoint", tmp_path, "cuda") is None


def test_a_replay_moves_the_case_into_that_memory(torch_is_a_device: None, tmp_path: Path) -> None:
    stored = run_check(
        SimulatedWorld(2), found_as(losing), "adjoint", Budget(20, seed=1, device="cpu"), tmp_path
    )
    assert stored.written is not None
    for device, library in ((None, "numpy"), ("cpu", "numpy"), ("cuda", "torch")):
        _, result = replayed(stored.written.json, f"{__file__}:losing", 2, device)
        assert result.status is Status.INCOHERENT
        assert result.case is not None
        assert result.case.setting.library == library


def test_a_proof_is_in_numpys_memory_unless_a_device_is_asked_for(torch_is_a_device: None) -> None:
    assert [memory_of_proofs(both, device) for device in (None, "cpu", "cuda")] == ["numpy", "numpy", "torch"]
    assert memory_of_proofs(replace(both, arrays=("torch",)), "cpu") == "numpy"
    with pytest.raises(SubjectError, match="draws no tensors in cuda memory"):
        memory_of_proofs(of_host, "cuda")


def test_the_cases_of_a_proof_say_their_memory() -> None:
    from tests.engine.enumerated_subjects import right

    cases = list(every_case(right, bound_of(right, {"ranks": 1}), "torch"))
    assert {case.setting.library for case in cases} == {"torch"}


@pytest.mark.parametrize("command", ["check", "exhaust"])
@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("tpu", "'tpu' is not one of cpu, cuda"),
        ("cuda", "device: cuda is asked for, but no CUDA device was found: driver: none"),
    ],
)
def test_a_device_that_is_not_there_ends_a_command_with_2(
    command: str,
    device: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nothing = probes.Found({"error": "none"}, {"error": "none"}, {"error": "none"})
    monkeypatch.setattr(probes, "found", lambda: nothing)
    with pytest.raises(SystemExit) as ended:
        main([command, "--device", device])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert cli_device.usable_device("cpu") == "cpu"
