"""Every layer with parameters and activations on a device, without one: on tensors of torch that stand in for such."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional

import adjointlab as al
from adjointlab.checks.check import checks_of
from adjointlab.core import arrays
from adjointlab.core.partition import Partition
from adjointlab.devices.transport import OVERRIDE, Transport
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject
from adjointlab.layers.convolution import Conv2d
from adjointlab.layers.linear import Linear
from adjointlab.layers.subjects import installed
from adjointlab.layers.utilities import clip_grad_norm_
from tests.gpu.stand_in.torch_device import DeviceTensor, on_device, reads, torch_device_stand_in
from tests.thorough import every_other

SUBJECTS = {
    name: value for name, value in vars(installed).items() if isinstance(value, Subject) and name[0] != "_"
}

LOOK_INTO_VALUES = {
    "layers/batch_norm.py",  # without `momentum`, as torch's own: the number of batches so far
    "layers/embedding.py",  # indices that are none of the vocabulary are refused before the first message
    "layers/losses/classes.py",  # and so are targets that are no classes
}
"""The layers that wait for the device in a call."""


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    if arrays.installed("torch-cuda"):
        pytest.skip("there is a device: tests/gpu/test_on_a_gpu.py has its layers")
    with torch_device_stand_in():
        yield


def verdicts(world: al.SimulatedWorld, subject: Subject, memory: str, cases: int) -> dict[str, str]:
    """The verdicts of all checks but the coherent ones."""
    placed = replace(subject, arrays=(memory,))
    budget = Budget(cases=cases, seed=1, shrinking=0)
    found = {check: investigate(world, placed, check, budget).verdict for check in checks_of(placed)}
    return {check: str(verdict) for check, verdict in found.items() if not verdict.is_coherent}


@pytest.mark.parametrize("name", every_other(list(SUBJECTS), str))
def test_a_layer_is_coherent_on_a_device(world: al.SimulatedWorld, name: str) -> None:
    assert verdicts(world, SUBJECTS[name], "torch-cuda", 1) == {}
    assert {file for file in reads if file.startswith("layers/")} <= LOOK_INTO_VALUES


@pytest.mark.parametrize("transport", [Transport.CUDA_AWARE_MPI, Transport.STAGING])
@pytest.mark.parametrize("name", ["convolutions", "softmaxes", "embeddings"])
def test_ranks_of_one_layer_may_lie_on_the_host_and_on_a_device(
    world: al.SimulatedWorld, name: str, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OVERRIDE, transport)
    assert verdicts(world, SUBJECTS[name], "torch+torch-cuda", 1) == {}


def test_devices_are_drawn_where_there_is_one() -> None:
    for subject in SUBJECTS.values():
        assert subject.libraries("cuda") == ("torch-cuda", "torch+torch-cuda")
        assert subject.libraries("cpu") == ("torch",)


# Arguments in the wrong place


def on_ranks(world: al.SimulatedWorld, body: Callable[[Any], Any]) -> tuple[Any, ...]:
    """The values of a function of the communicator on two ranks, where torch has a device."""

    def observe(context: Any, _: object) -> Any:
        with on_device(), torch.autograd.set_multithreading_enabled(False):
            return body(context.comm)

    run = world.run(observe, None, 2)
    assert run.completed, run.outcomes
    return run.values


@pytest.mark.parametrize(
    ("of_layer", "of_input", "error"),
    [
        ("cuda", "cpu", "x: lies on the host on rank 1, but weight lies on device 0"),
        ("cpu", "cuda", "x: lies on device 0 on rank 1, but weight lies on the host"),
    ],
)
def test_an_input_on_another_device_than_the_parameters_is_refused_on_every_rank(
    world: al.SimulatedWorld, of_layer: str, of_input: str, error: str
) -> None:
    def body(comm: Any) -> str:
        layer = Linear(comm, (2, 1, 1), (4, 3), 3, 2).to(of_layer)
        x = torch.ones(2, 3, device=of_input if comm.rank else of_layer)
        with pytest.raises(ValueError, match=r"lies on") as raised:
            layer(x)
        return str(raised.value)

    assert [each.partition(";")[0] for each in on_ranks(world, body)] == [error] * 2


def test_an_idle_rank_may_give_any_tensor_without_elements(world: al.SimulatedWorld) -> None:
    def body(comm: Any) -> bool:
        layer = Linear(comm, Partition((1, 1, 1), (1,)), (4, 3), 3, 2).to("cuda")
        return bool(layer(torch.ones(4, 3, device="cuda") if comm.rank else torch.empty(0)).is_cuda)

    assert on_ranks(world, body) == (True, True)


# Where things are made


def test_a_layer_of_a_module_on_a_device_lies_there_and_so_does_what_is_made_of_it(
    world: al.SimulatedWorld,
) -> None:
    def body(comm: Any) -> list[bool]:
        layer = Conv2d(comm, (1, 1, 1, 2, 1), (1, 2, 4, 4), nn.Conv2d(2, 3, 3, padding=1).to("cuda"))
        x = torch.ones(1, 2, 2, 4, device="cuda")
        layer(x).sum().backward()
        norm = clip_grad_norm_(layer, 1.0)
        layer.initialise("weight", nn.init.ones_)
        scattered = layer.sequential_state_dict(root=0)
        layer.load_sequential_state_dict(scattered, root=0)
        layer.reset_parameters()
        tensors = [norm, *layer.parameters(), *scattered.values(), *layer.to_sequential().parameters()]
        return [each.is_cuda for each in tensors]

    assert all(all(each) for each in on_ranks(world, body))


# Planted faults


def _taps_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    from adjointlab.layers.resampling import Taps

    def applied(self: Taps, x: torch.Tensor, dim: int) -> torch.Tensor:
        return x.index_select(dim, self.element[:, 0])

    monkeypatch.setattr(Taps, "applied", applied)


def _mask_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    from adjointlab.layers import dropout

    def dropped(x: torch.Tensor, p: float, seed: int, shape: Any, window: Any, **_: Any) -> torch.Tensor:
        return torch.where(dropout.uniform(seed, shape, window) >= p, x / (1 - p), x.new_zeros(()))

    monkeypatch.setattr(dropout, "_dropped", dropped)


def _stale_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the weight on the host, made in the first call and not again."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "copy"):
            self.copy = [each.detach().cpu() for each in (self.weight, self.bias)]
        weight, bias = (each.to(x.device) for each in self.copy)
        return functional.linear(x, weight, bias) + 0 * functional.linear(x, self.weight, self.bias)

    monkeypatch.setattr(_LocalLinear, "forward", forward)


def _result_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_LocalLinear, "forward", lambda self, x: nn.Linear.forward(self, x).cpu())


def _read_as_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        _LocalLinear, "forward", lambda self, x: nn.Linear.forward(self, x) * float(x.detach().numpy().min())
    )


class _LocalLinear(nn.Linear):
    """A layer without messages: the batch is cut, and every rank has the whole weight, as copies of one parameter."""

    def __init__(self, comm: Any, batch: int) -> None:
        super().__init__(3, 2)
        workers = Partition((comm.Get_size(),))
        cut = Partition((comm.Get_size(), 1))
        self.domain = al.Space(al.Layout((batch, 3), cut), dtype="float32")
        self.codomain = al.Space(al.Layout((batch, 2), cut), dtype="float32")
        self.parameter_space = al.Space(
            *(
                al.Tensor(
                    al.Layout(shape, workers, axes=(None,) * len(shape)), "float32", ("replicated",), name
                )
                for name, shape in (("weight", (2, 3)), ("bias", (2,)))
            )
        )


@al.subject.layer(_LocalLinear, sequential=lambda batch: nn.Linear(3, 2), arrays=("torch", "torch-cuda"))
def local_linears(draw: Any, ranks: int) -> dict[str, Any]:
    return {"batch": draw(al.strategies.shapes(1))[0]}


FAULTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Subject, str]] = {
    "taps on the host": (
        _taps_on_the_host,
        SUBJECTS["paddings"],
        "expected all tensors to be on the same device",
    ),
    "mask on the host": (
        _mask_on_the_host,
        SUBJECTS["dropouts"],
        "expected all tensors to be on the same device",
    ),
    "stale copy": (_stale_copy, local_linears, "are not the sequential ones"),
    "result on the host": (_result_on_the_host, local_linears, "in the memory torch on rank 0"),
    "read as NumPy": (_read_as_numpy, local_linears, "can't convert cuda:0"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_on_a_device(
    world: al.SimulatedWorld, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, subject, sentence = FAULTS[fault]
    plant(monkeypatch)
    placed = replace(subject, arrays=("torch-cuda",))
    assert sentence in str(
        investigate(world, placed, "sequential", Budget(cases=10, seed=1, shrinking=0)).verdict
    )


def test_nothing_is_found_without_a_fault(world: al.SimulatedWorld) -> None:
    assert verdicts(world, local_linears, "torch-cuda", 2) == {}


# The stand-in


def test_the_host_cannot_take_part_in_an_operation_on_the_device() -> None:
    with on_device():
        there, here = torch.ones(2, 3, device="cuda", requires_grad=True), torch.ones(2, 3)
        assert isinstance(there * 2, DeviceTensor)
        assert isinstance(there * torch.tensor(2.0), DeviceTensor), "numbers may come from the host"
        for mixed in (lambda: there + here, lambda: torch.cat([here, there]), lambda: here[there > 0]):
            with pytest.raises(RuntimeError, match="same device"):
                mixed()
        (there * 2).backward(here)
        with pytest.raises(RuntimeError, match="expected a gradient on the device"):
            assert there.grad
        with pytest.raises(TypeError, match="numpy"):
            there.detach().numpy()
        reads.clear()
        assert float(there.detach().sum()) == 6
        assert there.detach().cpu().tolist() == here.tolist()
        assert sum(reads.values()) == 2


def test_second_derivatives_go_through_the_device() -> None:
    with on_device(), torch.autograd.set_multithreading_enabled(False):
        x = torch.arange(3.0).to("cuda").requires_grad_()
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        first.sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [0, 6, 12]
