"""Everything on a real device: ``pytest -m gpu``. Without one each test says what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.check import checks_of
from adjointlab.checks.verdict import Status
from adjointlab.core import arrays
from adjointlab.core.arrays import kernels
from adjointlab.core.arrays.streams import _CupyStreams, streams_of
from adjointlab.core.transport.direct import DirectCommunicator
from adjointlab.core.transport.staging import StagedCommunicator
from adjointlab.devices.probes import found
from adjointlab.devices.transport import OVERRIDE, Transport
from adjointlab.engine.discovery import find
from adjointlab.engine.exhaust import exhaust
from adjointlab.engine.listed_cases import bound_of
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject
from adjointlab.layers.subjects import installed as layers
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.subjects import installed
from adjointlab.worlds.launch import is_launched
from tests.gpu.device_cases import CASES, judged_all, judged_subject
from tests.gpu.planted import BROADCAST, KERNEL_BUGS, OPERATORS, PLANTED
from tests.running import run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(is_launched(), reason="starts processes of MPI itself")]

SUBJECTS = {name: subject for name, subject in vars(installed).items() if isinstance(subject, Subject)}
LAYERS = {
    name: value for name, value in vars(layers).items() if isinstance(value, Subject) and name[0] != "_"
}
MEMORIES = ("cupy", "torch-cuda", "numpy+cupy", "torch+torch-cuda")
REDUCED = {"ranks": 2, "order": 1, "side": 2, "kernel": 2, "stride": 1, "dilation": 1}
HALOS = {"side": 1, "free": 1, "side2": 1, "side3": 1, "ring2": 1}


@pytest.fixture(scope="module")
def missing() -> str:
    """The reason why tests on a device cannot run; empty where there is one."""
    if any(map(arrays.installed, ("cupy", "torch-cuda"))):
        return ""
    return f"needs a CUDA device: {found().lacking}"


@pytest.fixture(autouse=True)
def device(missing: str) -> None:
    if missing:
        pytest.skip(missing)


@pytest.fixture(params=MEMORIES)
def memory(request: pytest.FixtureRequest) -> str:
    if not arrays.installed(request.param):
        pytest.skip(f"{request.param}: not all of its libraries see a device; {found().lacking}")
    return str(request.param)


@pytest.fixture
def cupy() -> Any:
    """CuPy itself, on a device."""
    if not arrays.installed("cupy"):
        pytest.skip(f"needs CuPy: {found().lacking}")
    return pytest.importorskip("cupy")


@pytest.fixture(scope="module", params=[2, 4, 8])
def ranks(request: pytest.FixtureRequest) -> Iterator[al.SimulatedWorld]:
    world = al.SimulatedWorld(request.param)
    yield world
    world.close()


def verdicts(world: al.SimulatedWorld, subject: Subject, memory: str, cases: int) -> dict[str, str]:
    on_device = replace(subject, arrays=(memory,))
    budget = Budget(cases=cases, seed=1)
    seen = {check: investigate(world, on_device, check, budget).verdict for check in checks_of(on_device)}
    return {check: str(verdict) for check, verdict in seen.items() if not verdict.is_coherent}


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_primitive_is_coherent(ranks: al.SimulatedWorld, memory: str, name: str) -> None:
    assert verdicts(ranks, SUBJECTS[name], memory, 10) == {}


@pytest.mark.parametrize("memory_of_layer", ["torch-cuda", "torch+torch-cuda"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_coherent(world: al.SimulatedWorld, name: str, memory_of_layer: str) -> None:
    if not arrays.installed(memory_of_layer):
        pytest.skip(f"needs a torch that sees a device; {found().lacking}")
    assert verdicts(world, LAYERS[name], memory_of_layer, 5) == {}


@pytest.mark.parametrize("name", ["halo_exchanges", "repartitions", "reduce_scatters", "send_receives"])
def test_it_is_so_through_pinned_memory(
    world: al.SimulatedWorld, memory: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OVERRIDE, Transport.STAGING)
    assert verdicts(world, SUBJECTS[name], memory, 20) == {}


@pytest.mark.parametrize("name", ["broadcasts", "halo_exchanges", "repartitions", "all_gathers"])
def test_a_reduced_bound_is_proved(name: str, cupy: Any) -> None:
    (primitive,) = (
        each for each in find(["adjointlab.primitives.subjects.installed"]) if each.subject is SUBJECTS[name]
    )
    further = {"halo_exchanges": HALOS, "repartitions": {"side": 1}}.get(name, {})
    bound = bound_of(primitive.subject, {**REDUCED, **further})
    report = exhaust(primitive.subject, primitive.reference, bound, jobs=1, device="cuda")
    assert report.status is Status.COHERENT, report.verdict


@pytest.mark.starts_mpiexec
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(
    "name", ["HaloExchange", "Repartition", "AllSumReduce", "Linear", "Convolution", "Softmax"]
)
def test_processes_share_the_device(count: int, name: str, tmp_path: Path) -> None:
    options = ["--device", "cuda", "--cases", "10", "--seed", "1"]
    done = run("adjointlab", "check", name, *options, ranks=count, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", list(arrays.DTYPES))
def test_kernels_do_what_slices_do(name: str) -> None:
    library = "torch-cuda" if name == "bfloat16" or not arrays.installed("cupy") else "cupy"
    if not arrays.installed(library):
        pytest.skip(f"{library} sees no device")
    plain = "float32" if name == "bfloat16" else name
    values = np.random.default_rng(0).integers(-9, 9, (4, 6, 33, 40)).astype(plain)
    source, one, other = (arrays.from_numpy(each, name, library) for each in (values, values * 0, values * 0))
    boxes = [
        (slice(a, None, 2), slice(b, b + 3), slice(1, 32), slice(a, 39, b + 1))
        for a in (0, 1)
        for b in (0, 3)
    ]
    for function, slices in ((kernels.copy_all, arrays.copy_into), (kernels.add_all, arrays.add_into)):
        function([(one[box], source[box]) for box in boxes])
        for box in boxes:
            slices(other[box], source[box])
        assert np.array_equal(arrays.to_numpy(one), arrays.to_numpy(other))


def test_a_copy_to_pinned_memory_comes_after_the_work_before_it(cupy: Any) -> None:
    with cupy.cuda.Stream(non_blocking=True):
        array = cupy.zeros(2**22)
        streams = streams_of(array)
        pinned = streams.pinned(array.nbytes)
        for _ in range(200):
            array += 1
        streams.to_host(array, pinned, streams.mark()).synchronize()
        assert (pinned.view(np.float64)[: array.size] == 200).all()


# Planted bugs

SPIN = 'extern "C" __global__ void spin(long long cycles) { long long start = clock64(); while (clock64() - start < cycles); }'


def make_late(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that takes about a millisecond comes before each message is packed, and before each copy: what waits for nothing is early."""
    kernel = cupy.RawKernel(SPIN, "spin")
    copy = _CupyStreams._copy

    def spin() -> None:
        kernel((1,), (1,), (np.int64(2_000_000),))

    def later(method: Any) -> Any:
        def called(*arguments: Any, **keywords: Any) -> Any:
            spin()
            return method(*arguments, **keywords)

        return called

    def copied_later(
        self: Any, target: int, source: int, nbytes: int, kind: int, after: Any, beside: Any
    ) -> Any:
        with nullcontext() if after is None else beside:
            spin()
        return copy(self, target, source, nbytes, kind, after, beside)

    # Operators post what they receive before they pack what they send.
    for transport in (StagedCommunicator, DirectCommunicator):
        monkeypatch.setattr(transport, "Irecv", later(transport.Irecv))
        monkeypatch.setattr(transport, "Isend", later(transport.Isend))
    monkeypatch.setattr(_CupyStreams, "_copy", copied_later)


@pytest.mark.parametrize("bug", PLANTED)
def test_a_bug_of_a_transport_is_found(
    world: al.SimulatedWorld, cupy: Any, bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = PLANTED[bug]
    if planted.is_seen_late:
        make_late(cupy, monkeypatch)
    planted.plant(monkeypatch)
    assert any(judged_all(world, planted.case) for _ in range(3))


@pytest.mark.parametrize("transport", [Transport.CUDA_AWARE_MPI, Transport.STAGING])
def test_nothing_is_found_without_a_bug(
    world: al.SimulatedWorld, cupy: Any, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_late(cupy, monkeypatch)
    monkeypatch.setenv(OVERRIDE, transport)
    for name in CASES:
        assert judged_all(world, name) == []


@pytest.mark.parametrize("bug", KERNEL_BUGS)
def test_a_bug_of_a_kernel_is_found(
    world: al.SimulatedWorld, cupy: Any, bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = cupy.RawModule(code=kernels.SOURCE.replace(*KERNEL_BUGS[bug]), options=kernels.OPTIONS)
    monkeypatch.setattr(kernels, "_module", lambda: module)
    assert judged_all(world, "halo exchange") != []


@pytest.mark.parametrize("place", OPERATORS)
def test_a_result_in_another_memory_is_found(world: al.SimulatedWorld, cupy: Any, place: str) -> None:
    if place == "on another device" and cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two devices")
    subject = replace(installed.broadcasts, build=OPERATORS[place])
    assert "another device" in str(judged_subject(world, subject, BROADCAST, "declared"))


def test_memory_of_the_device_is_given_back_after_a_failed_case(world: al.SimulatedWorld, cupy: Any) -> None:
    class Greedy(Broadcast):
        def forward(self, x: Any, out: Any = None) -> Any:
            kept = arrays.empty((2**24,), "float64", x)
            raise RuntimeError(f"fails while it holds {kept.shape}")

    subject = replace(installed.broadcasts, build=Greedy, arrays=("cupy",))
    pool = cupy.get_default_memory_pool()
    before = pool.used_bytes()
    investigate(world, subject, "adjoint", Budget(cases=2, seed=1, shrinking=0))
    assert pool.used_bytes() < before + 2**24
