"""Parameters of a parallel module are found by the names of the sequential one, and may be shared in ways that are told."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import adjointlab as al
from adjointlab.torch_distributed.names import Names
from tests.torch_distributed.parallel_samples import EXAMPLE, Parallelize, model


def renamed(module: Any, mesh: DeviceMesh) -> nn.Module:
    return nn.ModuleDict({"first": module[0], "last": module[2]})


@pytest.mark.parametrize(
    ("parallelize", "mesh", "message"),
    [
        (
            renamed,
            None,
            "a parameter first.weight, and the sequential one none of that name: .* keep the sequential names",
        ),
        (lambda module, mesh: mesh["tp"], (2,), "mesh"),
    ],
)
def test_what_cannot_be_compared_is_said(
    world: al.SimulatedWorld, parallelize: Parallelize, mesh: Any, message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        al.check_parallel(model, parallelize, EXAMPLE, mesh=mesh, cases=1, world=world)


def test_a_part_may_have_a_second_name_in_the_parallel_module(world: al.SimulatedWorld) -> None:
    class Named(nn.Module):
        def __init__(self, module: Any) -> None:
            super().__init__()
            self.first, self.norm, self.layers = module[0], module[1], module

        def forward(self, x: torch.Tensor) -> Any:
            return self.norm(self.first(x))

    sequential = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # no rank communicates
        verdicts = al.check_parallel(
            sequential, lambda module, mesh: Named(module), EXAMPLE, cases=2, world=world
        )
    assert all(verdict.is_coherent for verdict in verdicts.values())


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.inner = nn.Parameter(torch.ones(3)), nn.Linear(3, 4, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(self.weight * x)


def test_a_second_name_in_a_wrapper_may_end_in_that_of_another_parameter(world: al.SimulatedWorld) -> None:
    class Wrapped(nn.Module):
        def __init__(self, scaled: Any) -> None:
            super().__init__()
            self.last, self.scaled = scaled.inner, scaled

        def forward(self, x: torch.Tensor) -> Any:
            return self.scaled(x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # no rank communicates
        verdicts = al.check_parallel(
            Scaled(), lambda module, mesh: Wrapped(module), EXAMPLE, cases=2, world=world
        )
    assert all(verdict.is_coherent for verdict in verdicts.values())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.there, self.back = nn.Linear(3, 3), nn.Linear(3, 3)
        self.back.weight = self.there.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.back(self.there(x).tanh())
        return result


def test_a_rank_may_have_a_tied_parameter_under_its_second_name_alone() -> None:
    names = Names.of(Tied())
    assert names.paths(nn.ModuleDict({"back": nn.Linear(3, 3)})).parameters == {
        "there.weight": "back.weight",
        "back.bias": "back.bias",
    }
    with pytest.raises(TypeError, match=r"has back.weight and there.weight as two parameters"):
        names.paths(nn.ModuleDict({"there": nn.Linear(3, 3), "back": nn.Linear(3, 3)}))


def test_a_tied_parameter_of_which_two_are_made_is_said_to_be_so(world: al.SimulatedWorld) -> None:
    def untied(module: nn.Module, mesh: DeviceMesh) -> None:
        plan = {"there": ColwiseParallel(), "back": RowwiseParallel()}
        parallelize_module(module, mesh, plan)

    message = "has back.weight and there.weight as two parameters, and the sequential one as a single one"
    with pytest.raises(AssertionError, match=message):
        al.check_parallel(Tied(), untied, EXAMPLE, cases=1, world=world)


def test_placements_are_proposed_that_fit_the_mesh_and_the_part(world: al.SimulatedWorld) -> None:
    def halved(module: nn.Module, mesh: DeviceMesh) -> None:
        last: Any = module.get_submodule("2")
        last.weight = nn.Parameter(last.weight[:, : last.weight.shape[1] // 2].detach().clone())

    with pytest.raises(
        AssertionError, match=re.escape('parameter_placements={"2.weight": [Replicate(), Shard(1)]}')
    ):
        al.check_parallel(model, halved, EXAMPLE, mesh={"dp": 1, "tp": 2}, cases=1, world=world)


def test_flat_parts_that_are_not_the_whole_are_said_to_have_no_placement(world: al.SimulatedWorld) -> None:
    def flattened(module: nn.Module, mesh: DeviceMesh) -> None:
        last: Any = module.get_submodule("2")
        last.weight = nn.Parameter(last.weight.detach().flatten()[mesh.get_rank() :][:1].clone())

    with pytest.raises(AssertionError, match="no placement changes the number of dimensions"):
        al.check_parallel(model, flattened, EXAMPLE, mesh=(2,), cases=1, world=world)
