"""A module may return its tensors in tuples, lists and dictionaries, with None among them, as models often do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import adjointlab as al
from adjointlab.core.declaration import SubjectError
from adjointlab.core.layer import outputs_of
from adjointlab.engine.search import Budget, investigate

pytestmark = pytest.mark.mpi_skip

ONE, TWO, THREE = (torch.full((2,), float(value)) for value in (1, 2, 3))


@pytest.mark.parametrize(
    ("returned", "outputs"),
    [
        (ONE, [ONE]),
        ((ONE, TWO), [ONE, TWO]),
        ([ONE, None, TWO], [ONE, TWO]),
        ({"logits": TWO, "states": (ONE, (None, THREE)), "loss": None}, [TWO, ONE, THREE]),
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
        (None, r"a module returned None, and no tensor \(is a `return` missing\?\)"),
        ((ONE, 3.0), "a module returned a float: its outputs are tensors"),
        ({"y": "text"}, "a module returned a str"),
    ],
)
def test_what_is_no_tensor_is_named(returned: Any, text: str) -> None:
    with pytest.raises(SubjectError, match=text):
        outputs_of(returned)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

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

        return investigate(al.SimulatedWorld(2), unchanged, check, Budget(5, seed=1)).verdict

    assert status(lambda module, mesh: module).is_coherent
    wrong = status(lambda module, mesh: Scaled(module))
    assert not wrong.is_coherent


def test_what_a_function_returns_beyond_its_codomain_is_named() -> None:
    def doubled(comm: Any, x: torch.Tensor) -> Any:
        return 2 * x, None

    @al.subject.autograd(doubled)
    def lines(draw: Any, ranks: int) -> dict[str, Any]:
        space = al.Space(al.Layout((2 * ranks,), al.Partition((ranks,))))
        return dict(domain=space, codomain=space)

    told = dict(investigate(al.SimulatedWorld(2), lines, "adjoint", Budget(2, seed=1)).verdict.lines)
    assert told["error"].endswith("doubled returned None as result 1, but the codomain has 1 tensor")
