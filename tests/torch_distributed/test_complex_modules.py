"""Modules of complex numbers, or with complex buffers and parameters among real ones, are judged as others are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import adjointlab as al
from adjointlab.core.declaration import SubjectError
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget

pytestmark = pytest.mark.mpi_skip

COMPLEX = "complex128"


def is_coherent(
    sequential: Any, parallelize: Any, check: str, inputs: Any, cases: int = 6, **options: Any
) -> bool:
    @al.subject.parallel(sequential, parallelize, **options)
    def drawn(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs)

    result = investigate(al.SimulatedWorld(3), drawn, check, Budget(cases, seed=1, shrinking=0))
    assert result.counts.judged or not result.verdict.is_coherent
    return result.verdict.is_coherent


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))


def tensor_parallel(module: nn.Module, mesh: Any) -> None:
    parallelize_module(module, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


class Changed(torch.autograd.Function):
    """The identity, with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return ctx.change(gradients[0]), None


def with_gradient(change: Callable[[torch.Tensor], torch.Tensor], module: nn.Module, mesh: Any) -> None:
    module.register_forward_hook(lambda module, arguments, output: Changed.apply(output, change))


def unchanged(module: nn.Module, mesh: Any) -> None:
    pass


LAYER_CHECKS = ("sequential", "gradients", "jacobian", "training")
MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


@pytest.mark.parametrize("check", LAYER_CHECKS)
def test_tensor_parallel_modules_of_complex_numbers_are_the_sequential_ones(check: str) -> None:
    inputs = dict(inputs=(4, 3), dtype=COMPLEX)
    assert is_coherent(model, tensor_parallel, check, inputs, optimizer=MOMENTUM, steps=2)


@pytest.mark.parametrize("change", [torch.conj, lambda g: 7 * g, lambda g: g.real.to(g.dtype)])
@pytest.mark.parametrize("check", ["gradients", "jacobian", "training"])
def test_wrong_gradients_of_complex_modules_are_found(
    check: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    inputs = dict(inputs=(4, 3), dtype=COMPLEX)
    wrong = partial(with_gradient, change)
    assert not is_coherent(model, wrong, check, inputs, optimizer=MOMENTUM, steps=2)


class Absolute(nn.Module):
    """Not complex-linear, and with a real output."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        y = self.linear(z)
        return (y * y.conj()).real + y.imag


@pytest.mark.parametrize("check", LAYER_CHECKS)
def test_functions_that_are_not_complex_linear_are_judged_too(check: str) -> None:
    inputs = dict(inputs=(4, 3), dtype=COMPLEX)
    assert is_coherent(Absolute, unchanged, check, inputs, optimizer=MOMENTUM, steps=2)


class Rotary(nn.Module):
    """A rotary embedding, whose buffer is of complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        angles = torch.outer(torch.arange(8).float(), torch.tensor([1.0, 0.1]))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))
        self.backwards = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = torch.view_as_complex(self.linear(x).reshape(*x.shape[:-1], -1, 2))
        turns = self.get_buffer("turns")[: x.shape[1]]
        return torch.view_as_real(z * (turns.conj() if self.backwards else turns)).flatten(-2)


def backwards(module: Any, mesh: Any) -> None:
    module.backwards = True


@pytest.mark.parametrize("check", LAYER_CHECKS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_complex_buffers_of_real_modules_stay_complex(check: str, dtype: str) -> None:
    inputs = dict(inputs=(2, 5, 4), dtype=dtype)
    options = dict(optimizer=MOMENTUM, steps=2)
    assert is_coherent(Rotary, unchanged, check, inputs, **options)
    assert not is_coherent(Rotary, backwards, check, inputs, **options)


class Spectral(nn.Module):
    """A spectral convolution, whose weight is of complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 2, 3, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        modes = torch.einsum("bim,iom->bom", torch.fft.rfft(x)[..., :3], self.weight)
        return torch.fft.irfft(modes, n=x.shape[-1])


class Shared(nn.Module):
    """The convolution with output channels on one rank each, or none."""

    def __init__(self, whole: nn.Module, mesh: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(distribute_tensor(whole.get_parameter("weight"), mesh, [Shard(1)]))
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Every rank uses the whole weight: the gradient is the sum that Replicate is given, of which each rank has its share.
        assert isinstance(self.weight, DTensor)
        weight = Changed.apply(self.weight.full_tensor(), self.change)
        modes = torch.einsum("bim,iom->bom", torch.fft.rfft(x)[..., :3], weight)
        return torch.fft.irfft(modes, n=x.shape[-1])


@pytest.mark.parametrize("check", LAYER_CHECKS)
def test_complex_parameters_of_real_modules_are_judged(check: str) -> None:
    inputs, options = dict(inputs=(2, 2, 6)), dict(optimizer=MOMENTUM, steps=2)
    assert is_coherent(Spectral, lambda m, mesh: Shared(m, mesh, lambda g: g), check, inputs, **options)
    wrong = is_coherent(Spectral, lambda m, mesh: Shared(m, mesh, torch.conj), check, inputs, **options)
    assert wrong == (check == "sequential")


class Real(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 2)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.view_as_real(z).flatten(1))


@pytest.mark.filterwarnings("ignore:.*no rank communicated with another")
def test_an_example_of_complex_numbers_is_drawn_as_such() -> None:
    def halved(module: nn.Module, mesh: Any) -> None:
        module.register_forward_pre_hook(lambda module, given: (given[0].real.to(given[0].dtype),))

    example = torch.randn(4, 3, dtype=torch.complex64)
    assert al.check_parallel(Real, unchanged, example, cases=3)["gradients"].is_coherent
    with pytest.raises(AssertionError, match="outputs are not the sequential ones"):
        al.check_parallel(Real, halved, example, cases=3)


def test_element_types_of_inputs_are_legal_ones() -> None:
    def drawn(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(4, 3), input_dtypes=["complex96"])

    with pytest.raises(SubjectError, match=r"input_dtypes: \['complex96'\], and not one of float64"):
        al.check_parallel(Real, unchanged, drawn, cases=2)


class Masked(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        assert mask.dtype is torch.bool
        return torch.where(mask, x, 0.0)


@pytest.mark.filterwarnings("ignore:.*no rank communicated with another")
def test_a_mask_of_booleans_is_made_of_numbers() -> None:
    def drawn(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=[(4, 3), (4, 3)])

    def asked_for(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(drawn(draw, ranks), input_dtypes=["float64", "bool"])

    def prepare(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, mask > 0

    assert al.check_parallel(Masked, unchanged, drawn, prepare=prepare, cases=3)["gradients"].is_coherent
    with pytest.raises(
        SubjectError, match=r"prepare= makes masks of numbers, `lambda x, mask: \(x, mask > 0\)`"
    ):
        al.check_parallel(Masked, unchanged, asked_for, cases=2)


class InAnotherOrder(nn.Module):
    """A complex linear layer whose sum over the inputs is taken in parts: it rounds otherwise than the sequential one."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.weight, self.bias = linear.get_parameter("weight"), linear.get_parameter("bias")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = (x[..., i : i + 1] @ self.weight[:, i : i + 1].T for i in reversed(range(x.shape[-1])))
        return torch.tanh(sum(parts, self.bias))


class Linear(nn.Linear):
    def __init__(self) -> None:
        super().__init__(7, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(super().forward(x / 3))


@pytest.mark.parametrize("check", ["sequential", "gradients", "jacobian"])
@pytest.mark.parametrize("dtype", [COMPLEX, "complex64"])
def test_rounding_of_complex_numbers_is_measured(check: str, dtype: str) -> None:
    class Divided(InAnotherOrder):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x / 3)

    inputs = dict(inputs=(4, 7), dtype=dtype)
    assert is_coherent(Linear, lambda module, mesh: Divided(module), check, inputs)


class Turned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = torch.view_as_complex(x.reshape(-1, 3, 2)) * self.weight
        return torch.view_as_real(turned).flatten(1)


@pytest.mark.filterwarnings("always")
def test_infinite_gradients_of_complex_parameters_are_read_without_a_warning(
    recwarn: pytest.WarningsRecorder,
) -> None:
    """NumPy warns of a product with an infinite complex number, and a warning among those of one's own code puzzles."""
    assert is_coherent(Turned, unchanged, "gradients", dict(inputs=(2, 6)), cases=30)
    assert [str(warning.message) for warning in recwarn] == []
