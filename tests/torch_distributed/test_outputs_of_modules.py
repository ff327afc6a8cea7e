"""A module may return its tensors in tuples, lists and dictionaries, with None among them, as models often do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

import adjointlab as al
from adjointlab.core.declaration import SubjectError
from adjointlab.core.layer import outputs_of
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from tests.thorough import every_other
from tests.torch_distributed.parallel_samples import WithLinear

pytestmark = pytest.mark.mpi_skip

ONE, TWO, THREE = (torch.full((2,), float(value)) for value in (1, 2, 3))


@dataclass
class Outputs:
    logits: torch.Tensor
    others: Any
    loss: torch.Tensor | None = None


@pytest.mark.parametrize(
    ("returned", "outputs"),
    [
        (ONE, [ONE]),
        ((ONE, TWO), [ONE, TWO]),
        ([ONE, None, TWO], [ONE, TWO]),
        ({"logits": TWO, "states": (ONE, (None, THREE)), "loss": None}, [TWO, ONE, THREE]),
        (Outputs(TWO, {"states": ONE}), [TWO, ONE]),
        ((), []),
    ],
)
def test_outputs_are_the_tensors_in_their_order(returned: Any, outputs: list[torch.Tensor]) -> None:
    found = outputs_of(returned)
    assert len(found) == len(outputs)
    assert all(one is other for one, other in zip(found, outputs, strict=True))


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (None, r"a module returned None, not a tensor \(is a `return` missing\?\)"),
        (3.0, "a module returned a float: its outputs are tensors"),
        ((ONE, 3.0), r"a module returned a float at \[1\]: its outputs are tensors"),
        ({"y": "text"}, r"a module returned a str at \['y'\]: "),
        (Outputs(ONE, [ONE, {"rows": 4}]), r"a module returned an int at \['others'\]\[1\]\['rows'\]: "),
    ],
)
def test_what_is_no_tensor_is_named_with_its_place(returned: Any, text: str) -> None:
    with pytest.raises(SubjectError, match=text):
        outputs_of(returned)


class Model(WithLinear):
    def forward(self, x: torch.Tensor) -> Any:
        logits = self.linear(x)
        return {"logits": logits, "states": (torch.tanh(logits), None)}


class Scaled(Model):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.linear = inner.get_submodule("linear")

    def forward(self, x: torch.Tensor) -> Any:
        returned = super().forward(x)
        return {**returned, "states": (2 * returned["states"][0], None)}


@pytest.mark.parametrize("check", ["sequential", "gradients", "jacobian"])
def test_a_model_that_returns_a_dictionary_is_judged(check: str) -> None:
    def status(parallelize: Any) -> Any:
        @al.subject.parallel(Model, parallelize)
        def unchanged(draw: Any, ranks: int) -> dict[str, Any]:
            return dict(inputs=(2, 3))

        return investigate(al.SimulatedWorld(2), unchanged, check, Budget(5, seed=1, shrinking=0)).verdict

    assert status(lambda module, mesh: module).is_coherent
    wrong = status(lambda module, mesh: Scaled(module))
    assert not wrong.is_coherent


class Returning(nn.Module):
    """Returns what `returned` makes of its output."""

    def __init__(self, returned: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.returned = returned

    def forward(self, x: torch.Tensor) -> Any:
        return self.returned(self.linear(x))


def verdict_on(sequential: Any, parallel: Any) -> Any:
    def changed(module: nn.Module, mesh: Any) -> Any:
        module.returned = parallel

    @al.subject.parallel(lambda: Returning(sequential), changed)
    def subject(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(2, 3))

    return investigate(al.SimulatedWorld(2), subject, "sequential", Budget(5, seed=1, shrinking=0)).verdict


@pytest.mark.parametrize(
    ("sequential", "parallel"),
    [
        (lambda y: {"logits": y, "aux": 2 * y}, lambda y: {"aux": 2 * y, "logits": y}),
        (lambda y: (y, None), lambda y: (y,)),
        (lambda y: y, lambda y: [y]),
        (lambda y: (y, {"aux": [y]}), lambda y: [y, {"aux": (y, None)}]),
        (lambda y: Outputs(y, (2 * y, y)), lambda y: Outputs(y, [2 * y, y])),
    ],
)
def test_outputs_are_compared_key_by_key(sequential: Any, parallel: Any) -> None:
    assert verdict_on(sequential, parallel).is_coherent


@pytest.mark.parametrize(
    ("sequential", "parallel", "told"),
    [
        (lambda y: (y, None), lambda y: (None, y), "[1], and by the sequential module at [0]"),
        (
            lambda y: {"logits": y},
            lambda y: {"loss": y},
            "['loss'], and by the sequential module at ['logits']",
        ),
        (lambda y: y, lambda y: (y, y), "[0], [1], and by the sequential module at [0]"),
        (lambda y: y, lambda y: (None,), "no place, and by the sequential module at [0]"),
    ],
)
def test_outputs_at_other_places_are_found(sequential: Any, parallel: Any, told: str) -> None:
    verdict = verdict_on(sequential, parallel)
    assert verdict.headline == "the layer does not return its outputs as the sequential one does"
    assert dict(verdict.lines)["error"] == f"tensors are returned at {told}"


def test_values_under_each_others_keys_are_found() -> None:
    verdict = verdict_on(lambda y: {"logits": y, "aux": 2 * y}, lambda y: {"aux": y, "logits": 2 * y})
    assert verdict.headline == "the layer's outputs are not the sequential ones"


@pytest.mark.parametrize(
    "dtype", every_other([torch.bool, torch.uint8, torch.int16, torch.int8], lambda dtype: str(dtype))
)
@pytest.mark.parametrize("check", ["sequential", "gradients", "jacobian"])
def test_outputs_and_buffers_of_small_integers_are_compared(dtype: torch.dtype, check: str) -> None:
    class Masked(nn.Module):
        threshold = 0.0

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 4)
            self.register_buffer("mask", torch.tensor([1, 0, 1, 1]).to(dtype))

        def forward(self, x: torch.Tensor) -> Any:
            y = self.linear(x)
            return y * self.get_buffer("mask"), (y > self.threshold).to(dtype)

    def status(parallelize: Any) -> bool:
        @al.subject.parallel(Masked, parallelize)
        def subject(draw: Any, ranks: int) -> dict[str, Any]:
            return dict(inputs=(2, 3))

        return investigate(al.SimulatedWorld(2), subject, check, Budget(4, seed=1)).verdict.is_coherent

    def by_another_threshold(module: Any, mesh: Any) -> None:
        module.threshold = 5.0

    assert status(lambda module, mesh: None)
    assert status(by_another_threshold) == (check == "jacobian")


def test_what_a_function_returns_beyond_its_codomain_is_named() -> None:
    def doubled(comm: Any, x: torch.Tensor) -> Any:
        return 2 * x, None

    @al.subject.autograd(doubled)
    def lines(draw: Any, ranks: int) -> dict[str, Any]:
        space = al.Space(al.Layout((2 * ranks,), al.Partition((ranks,))))
        return dict(domain=space, codomain=space)

    told = dict(investigate(al.SimulatedWorld(2), lines, "adjoint", Budget(2, seed=1)).verdict.lines)
    assert told["error"].endswith("doubled returned None as result 1, but the codomain has 1 tensor")


@pytest.mark.parametrize("check", ["sequential", "gradients", "jacobian"])
def test_cases_with_outputs_that_are_not_finite_in_the_sequential_module_are_not_judged(check: str) -> None:
    class Mean(nn.Module):
        """The mean over the rows that are above zero: 0/0 where none is, with a derivative of 0 there in one formula and NaN in another."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 1, bias=False)
            self.is_own = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            keep = x[:, :1] > 0
            y = self.linear(x)
            return (y * keep).sum() / keep.sum() if self.is_own else y[keep].mean()

    def own(module: Any, mesh: Any) -> None:
        module.is_own = True

    @al.subject.parallel(Mean, own)
    def subject(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(1, 3))

    result = investigate(al.SimulatedWorld(2), subject, check, Budget(20, seed=1, shrinking=0))
    assert result.verdict.is_coherent
    assert result.counts.rejected


@pytest.mark.filterwarnings("ignore:To construct DTensor")
@pytest.mark.parametrize("check", ["sequential", "gradients"])
def test_integers_that_rounding_decides_are_not_compared_and_others_are(check: str) -> None:
    class Router(nn.Module):
        """The index of the largest score, and how often each was the largest."""

        shift = 0

        def __init__(self) -> None:
            super().__init__()
            self.scores = nn.Linear(8, 4, bias=False)
            self.register_buffer("load", torch.zeros(4, dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> Any:
            y = self.scores(x)
            index = y.argmax(-1)
            self.get_buffer("load").add_(torch.bincount(index, minlength=4))
            return y, index + self.shift

    def by_rows(module: Any, mesh: Any) -> None:
        parallelize_module(module, mesh, {"scores": RowwiseParallel(input_layouts=Replicate())})

    def shifted(module: Any, mesh: Any) -> None:
        by_rows(module, mesh)
        module.shift = 1

    def is_coherent(parallelize: Any) -> bool:
        @al.subject.parallel(Router, parallelize)
        def subject(draw: Any, ranks: int) -> dict[str, Any]:
            return dict(inputs=(8, 8))

        return investigate(
            al.SimulatedWorld(4), subject, check, Budget(20, seed=1, shrinking=0)
        ).verdict.is_coherent

    assert is_coherent(by_rows)
    assert not is_coherent(shifted)


class Greedy(WithLinear):
    """The class of each row, and its score."""

    factor = 1.0

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.linear(x)
        return scores.argmax(-1), Backwards.apply(scores, self.factor).sum(-1)


class Backwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return ctx.factor * gradients[0], None


def test_the_derivative_of_a_sequential_module_is_confirmed_beside_outputs_of_integers() -> None:
    """gradcheck raises an IndexError for integers that come before what it differentiates."""

    def doubled(module: Any, mesh: Any) -> None:
        module.factor = 2.0

    @al.subject.parallel(Greedy, doubled)
    def wrong(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(2, 3))

    verdict = investigate(al.SimulatedWorld(2), wrong, "gradients", Budget(5, seed=1)).verdict
    assert dict(verdict.lines)["sequential twin"] == "gradcheck passes"
