"""A warning names what parallelize sets on a class of the module, which the sequential module has too."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import adjointlab as al

pytestmark = pytest.mark.mpi_skip


class Scaled(nn.Linear):
    size = 1

    def __init__(self) -> None:
        super().__init__(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.size


@pytest.fixture
def scaled(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Scaled]]:
    """The class, which is as it was afterwards."""
    with monkeypatch.context() as patched:
        patched.setattr(Scaled, "size", 1)
        patched.setattr(Scaled, "forward", Scaled.forward)
        yield Scaled


def check(parallelize: Any, **options: Any) -> None:
    """Check it in one case, without the warning that nothing communicates."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*no rank communicated")
        al.check_parallel(
            Scaled, parallelize, torch.zeros(3, 3), mesh=(2,), checks=["gradients"], cases=1, **options
        )


def on_its_class(module: Any, mesh: Any) -> None:
    type(module).size = 2


def another_forward(module: Any, mesh: Any) -> None:
    type(module).forward = nn.Linear.forward


def on_the_module(module: Any, mesh: Any) -> None:
    module.size = 1


def test_a_value_or_function_that_parallelize_sets_on_a_class_is_told(scaled: Any) -> None:
    with pytest.warns(UserWarning, match=r"parallelize has set Scaled\.size: the sequential module finds"):
        check(on_its_class)
    with pytest.warns(UserWarning, match=r"parallelize has set Scaled\.forward: "):
        check(another_forward, rank_local=[__name__])


def test_nothing_is_told_of_what_is_set_on_the_module_or_is_each_ranks_own(scaled: Any) -> None:
    check(on_the_module)
    with pytest.raises(AssertionError, match="the sequential one"):
        check(on_its_class, rank_local=[__name__])
    assert scaled.size == 1
