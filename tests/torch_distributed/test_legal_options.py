"""Options and entries of parallel modules that are none are refused with what is legal, and what forbids a case is told."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import adjointlab as al
from adjointlab.core.declaration import SubjectError
from adjointlab.engine.meshes import as_mesh
from adjointlab.engine.sequential_module import shapes_of
from tests.torch_distributed.parallel_samples import EXAMPLE, as_it_is, model


@pytest.mark.parametrize(
    ("inputs", "mesh", "told"),
    [
        ("abc", None, "inputs: a str is not a torch.Tensor, a list of them, or a strategy"),
        ([], None, "inputs: a list is not a torch.Tensor"),
        (EXAMPLE, ["dp", "dp"], "mesh: ['dp', 'dp'] has one name twice"),
    ],
)
def test_examples_and_meshes_that_are_none_are_refused(inputs: Any, mesh: Any, told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(told)):
        al.check_parallel(model, as_it_is, inputs, mesh=mesh)


def hooked(module: nn.Module, mesh: DeviceMesh) -> None:
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(lambda each: None)


@pytest.mark.filterwarnings("ignore:.*no rank communicated with another")
def test_code_that_cannot_do_with_frozen_parameters_is_told_how_to_forbid_them(
    world: al.SimulatedWorld,
) -> None:
    with pytest.raises(AssertionError, match=r"pass frozen=\(\) to check_parallel"):
        al.check_parallel(model, hooked, EXAMPLE, mesh=(2,), cases=6, world=world)
    al.check_parallel(model, hooked, EXAMPLE, mesh=(2,), frozen=(), cases=6, world=world)


def test_code_whose_sizes_a_mesh_cannot_cut_is_told_how_to_leave_that_mesh_out() -> None:
    def hidden(size: int) -> nn.Module:
        return nn.Sequential(nn.Linear(4, size), nn.Linear(size, 4))

    def parallelize(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        return parallelize_module(module, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})

    batch = torch.randn(2, 4)
    with pytest.raises(AssertionError, match=r"such as mesh=\(2,\) in check_parallel"):
        al.check_parallel(partial(hidden, 10), parallelize, batch, cases=12)
    al.check_parallel(partial(hidden, 10), parallelize, batch, mesh=(2,), cases=2)


class SummedAndAveragedBack(torch.autograd.Function):
    """A sum over the ranks, whose gradient is the mean of what they hold."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(total := x.clone())
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(mean := gradients[0].clone(), op=dist.ReduceOp.AVG)
        return mean


class Tables(nn.Module):
    """Tables of which each rank looks up its own ones alone."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(4, 2) for _ in range(3))

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        own = self.tables[dist.get_rank() :: dist.get_world_size()]
        return SummedAndAveragedBack.apply(torch.stack([table(indices) for table in own]).sum(0))


def add_up(module: Any) -> None:
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(parameter.grad)


def test_where_one_rank_has_nothing_but_frozen_parameters_users_are_told_how_to_forbid_that(
    world: al.SimulatedWorld,
) -> None:
    """Torch leaves out the backward pass on that rank, and the others wait for it."""
    check = partial(
        al.check_parallel,
        Tables,
        lambda module, mesh: module,
        torch.arange(4),
        mesh=(2,),
        after_backward=add_up,
        cases=8,
        world=world,
    )
    with pytest.raises(AssertionError, match=r"(?s)mismatched.*pass frozen=\(\) to check_parallel"):
        check()
    check(frozen=())


@pytest.mark.filterwarnings("ignore:.*no rank communicated with another")
def test_parameters_may_be_frozen_by_name(world: al.SimulatedWorld) -> None:
    seen: set[tuple[str, ...]] = set()

    def parallelize(module: nn.Module, mesh: DeviceMesh) -> None:
        seen.add(tuple(name for name, parameter in module.named_parameters() if not parameter.requires_grad))

    al.check_parallel(model, parallelize, EXAMPLE, mesh=(2,), frozen=("0.weight",), cases=3, world=world)
    assert seen == {("0.weight",)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mesh": 2}, r"mesh: 2 is a number; give the extents of dimensions as \(2,\)"),
        ({"mesh": "dp"}, r"mesh: 'dp' is a text; give the names of dimensions as \('dp',\)"),
        ({"mesh": ("dp", 2)}, r"mesh: \('dp', 2\) are neither names of dimensions nor their extents"),
        ({"mesh": (2.0,)}, r"mesh: \(2.0,\) are neither names of dimensions nor their extents"),
        ({"mesh": ()}, r"mesh: \(\) are neither names of dimensions nor their extents"),
        ({"after_backward": 3}, "after_backward: an int is not a function"),
        ({"prepare": 3}, "prepare: an int is not a function"),
        ({"context": 3}, "context: 3 is not a function that makes a context"),
        (
            {"optimizer": torch.optim.SGD([torch.zeros(1)], lr=0.1), "steps": 1},
            r"optimizer: .* is not a function that makes one of a list of parameters",
        ),
    ],
)
def test_options_of_another_kind_are_refused_with_what_is_legal(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, SubjectError), match=message):
        al.check_parallel(model, as_it_is, EXAMPLE, **options)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "f32"}, "dtype: 'f32' is not one of float64, float32,"),
        ({"frozen": ["nope"]}, "frozen: 'nope' is none of the parameters 0.weight, 0.bias,"),
        ({"frozen": "0.weight"}, r"frozen: '0.weight' is not a list of names, such as \['0.weight'\]"),
        ({"parameter_placements": [Shard(0)]}, r"parameter_placements: \[.*\] is not a dictionary"),
        ({"frozen": None}, r"frozen: None is neither a list of names, such as \['weight'\], nor 0"),
        ({"frozen": -1}, "frozen: -1 is neither a list of names"),
        ({"input_dtypes": 8}, "input_dtypes: 8, and not one of float64"),
        ({"input_placements": [[Shard(2)]]}, "input_placements: .* cuts none of the dimensions of a tensor"),
        ({"output_placements": [[Shard(-3)]]}, "output_placements: .* cuts none of the dimensions"),
        (
            {"parameter_placements": {"0.bias": [Shard(1)]}},
            r"parameter_placements\['0.bias'\]: .* cuts none of the dimensions of a tensor of shape \(12,\)",
        ),
        ({"inputs": 8}, r"inputs: 8 is neither a shape, such as \(4, 6\), nor a list of shapes"),
        ({"inputs": "4, 6"}, "inputs: '4, 6' is neither a shape"),
        ({"inputs": (-4, 6)}, r"inputs: \(-4, 6\) is neither a shape"),
        ({"inputs": [(4, 6), 3]}, r"inputs: \[\(4, 6\), 3\] is neither a shape"),
        (
            {"mesh": 2},
            r"mesh: 2 is neither a list of extents, such as \(2, 2\), nor \{\"dp\": 2, \"tp\": 2\}",
        ),
        ({"mesh": ("dp",)}, r"mesh: \('dp',\) is neither a list of extents"),
        ({"mesh": {"dp": 0}}, r"mesh: \{'dp': 0\} is neither a list of extents"),
    ],
)
def test_entries_of_another_kind_are_refused_with_what_is_legal(
    entry: dict[str, Any], message: str, world: al.SimulatedWorld
) -> None:
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return {"mesh": (ranks,), "inputs": tuple(EXAMPLE.shape), **entry}

    with pytest.raises(SubjectError, match=message):
        al.check_parallel(model, as_it_is, cases, cases=1, world=world)


def test_shapes_and_meshes_may_have_integers_of_numpy() -> None:
    four, six = np.int64(4), np.int64(6)
    assert shapes_of((four, six)) == shapes_of([(four, six)]) == ((4, 6),)
    assert as_mesh((four,)) == ((4,), None)
    assert as_mesh({"dp": four}) == ((4,), ("dp",))


def test_a_function_that_takes_no_mesh_is_told_how_it_is_called(world: al.SimulatedWorld) -> None:
    def parallelize(module: nn.Module) -> None: ...

    given: Any = parallelize
    told = r"parallelize is called as parallelize\(module, mesh\), but parallelize\(module\) "
    with pytest.raises(SubjectError, match=told):
        al.check_parallel(model, given, EXAMPLE, cases=1, world=world)


def test_a_function_that_makes_no_module_is_told_so(world: al.SimulatedWorld) -> None:
    with pytest.raises(
        SubjectError, match="parallelize returned a tuple, which is neither a module nor None"
    ):
        al.check_parallel(model, lambda module, mesh: (module, mesh), EXAMPLE, cases=1, world=world)
    nothing: Any = lambda: None  # noqa: E731
    given = EXAMPLE.shape
    with pytest.raises(
        SubjectError, match=r"called as Sequential\(width=…\), but Sequential\(\) takes no `width`"
    ):
        al.check_parallel(model(), as_it_is, lambda draw, ranks: dict(inputs=given, width=3), world=world)
    with pytest.raises(SubjectError, match="sequential: it returned None, not a module"):
        al.check_parallel(nothing, as_it_is, EXAMPLE, cases=1, world=world)
