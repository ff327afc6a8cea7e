"""Recipes make the layer of a case: its spaces follow from placements, and every entry of the case comes to its place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import adjointlab as al
from adjointlab.core.declaration import SubjectError
from adjointlab.core.layer import Layer, PassHooks, elementwise
from adjointlab.core.operator import Direction
from adjointlab.core.perturbation import Perturbation
from adjointlab.engine.adapters import Ranks
from adjointlab.engine.dtensor import DTensorRecipe
from adjointlab.engine.meshes import as_mesh
from adjointlab.engine.parallel import ParallelRecipe
from adjointlab.engine.sequential_module import freeze, sequential_module, shapes_of
from adjointlab.torch_distributed.opening import process_group
from adjointlab.worlds.world import RankContext

pytestmark = pytest.mark.mpi_skip


class Sum(nn.Module):
    """A linear map of the sum of its inputs, and the sum itself."""

    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.linear = nn.Linear(3, width)
        self.register_buffer("count", torch.zeros(2))

    def forward(self, x: torch.Tensor, *others: torch.Tensor) -> Any:
        total = sum(others, start=x)
        return (self.linear(total), total) if others else self.linear(total)


def as_it_is(module: nn.Module, mesh: Any) -> None:
    pass


def made(world: al.SimulatedWorld, recipe: ParallelRecipe, ranks: int = 2, **parameters: Any) -> list[Any]:
    """The layers of a case on all ranks."""

    def body(context: RankContext, payload: None) -> Layer:
        with process_group(context.comm):
            return recipe.build(context.comm, **parameters)

    run = world.run(body, None, ranks)
    if errors := [error for each in run.outcomes if (error := getattr(each, "exception", None))]:
        raise errors[0]
    return list(run.values)


def space(mesh: Any, placements: Any, shape: Any, name: str, dtype: str = "float64") -> al.Tensor:
    (tensor,) = al.Space.of_dtensor(mesh, placements, shape, dtype=dtype).tensors
    return al.Tensor(tensor.layout, dtype, tensor.types, name)


# Parallel modules


def test_a_layer_has_the_spaces_of_its_inputs_outputs_and_parameters(world: al.SimulatedWorld) -> None:
    seen: list[Any] = []

    def parallelize(module: nn.Module, mesh: Any) -> None:
        seen.append((mesh.shape, mesh.mesh_dim_names, module))

    def optimizer(parameters: Any) -> Any: ...

    recipe = ParallelRecipe(Sum, parallelize, {"dp": "mean"}, elementwise, optimizer, 3)
    shapes = [(4, 3), (4, 3), (4, 3)]
    layers = made(world, recipe, 4, mesh={"dp": 2, "tp": 2}, inputs=shapes, width=5, frozen=("linear.bias",))
    assert [each[:2] for each in seen] == [((2, 2), ("dp", "tp"))] * 4
    batch = [Shard(0), Replicate()]
    for layer in layers:
        assert layer.domain == al.Space(*(space((2, 2), batch, (4, 3), name) for name in ("x", "x1", "x2")))
        assert layer.codomain == al.Space(
            space((2, 2), batch, (4, 5), "y"), space((2, 2), batch, (4, 3), "y1")
        )
        assert [[each.name for each in of.tensors] for of in (layer.domain, layer.codomain)] == [
            ["x", "x1", "x2"],
            ["y", "y1"],
        ]
        shapes_by_name = {each.name: each.layout.shape for each in layer.parameters.tensors}
        assert shapes_by_name == {"linear.weight": (5, 3), "linear.bias": (5,)}
        assert [each.name for each in layer.buffers.tensors] == ["count"]
        assert (layer.prepare, layer.optimizer, layer.steps) == (elementwise, optimizer, 3)
        assert (layer.averaged, layer.alternates, layer.accumulates) == (2, False, True)
        assert layer.frozen == {"linear.bias"}
        assert layer.uniform_requires_grad
        assert layer.module.training
        assert {held.dtype for held in layer.module.parameters()} == {torch.float64}


@pytest.mark.parametrize(
    ("data_parallel", "after", "batch", "averaged", "accumulates"),
    [
        (None, "", [Replicate(), Replicate()], 1, True),
        ("mean", "", [Shard(0), Replicate()], 2, True),
        ("sum", "", [Shard(0), Replicate()], 1, False),
        ({"a": "mean", 1: "mean"}, "", [Shard(0), Shard(0)], 6, True),
        ({"a": "sum", "b": "mean"}, "", [Shard(0), Shard(0)], 3, False),
        ({"b": "mean"}, "after_backward", [Replicate(), Shard(0)], 3, False),
        ({}, "before_backward", [Replicate(), Replicate()], 1, False),
    ],
)
def test_ranks_share_the_batch_along_the_dimensions_that_are_given(
    world: al.SimulatedWorld, data_parallel: Any, after: str, batch: Any, averaged: int, accumulates: bool
) -> None:
    hooks = PassHooks(**({after: lambda module: None} if after else {}))
    recipe = ParallelRecipe(Sum, as_it_is, data_parallel, hooks=hooks)
    layer = made(world, recipe, 6, mesh={"a": 2, "b": 3}, inputs=(6, 3))[5]
    assert layer.domain == al.Space(space((2, 3), batch, (6, 3), "x"))
    assert layer.codomain == al.Space(space((2, 3), batch, (6, 2), "y"))
    assert (layer.averaged, layer.accumulates) == (averaged, accumulates)


class Fixed(Sum):
    """Takes batches of four alone."""

    def forward(self, x: torch.Tensor, *others: torch.Tensor) -> Any:
        return super().forward(x.reshape(4, 3), *others)


class Across(Sum):
    """Returns one number for each pair of rows."""

    def forward(self, x: torch.Tensor, *others: torch.Tensor) -> Any:
        return self.linear(x) @ self.linear(x).T


class Loss(Sum):
    def forward(self, x: torch.Tensor, *others: torch.Tensor) -> Any:
        return self.linear(x).sum(), torch.ones(3)


class Positions(Sum):
    """Takes sequences of any length."""

    def forward(self, x: torch.Tensor, *others: torch.Tensor) -> Any:
        return self.linear(x) * torch.arange(x.shape[1])[:, None]


@pytest.mark.parametrize(
    ("make", "inputs", "options", "larger", "smaller"),
    [
        (Sum, (4, 3), {}, [(8, 3)], [(2, 3)]),
        (Sum, [(4, 3), (4, 3)], {}, [(8, 3), (8, 3)], [(2, 3), (2, 3)]),
        (Loss, (4, 3), {}, [(8, 3)], [(2, 3)]),
        (nn.Tanh, (4, 3), {}, [(8, 6)], [(2, 3)]),
        (Positions, [(4, 6, 3), (4, 6), (4,)], {}, [(8, 12, 3), (8, 12), (8,)], [(2, 6, 3), (2, 6), (2,)]),
        (Sum, (5, 3), {}, [(10, 3)], None),
        (Sum, (2, 3), {}, [(4, 3)], None),
        (Fixed, (4, 3), {}, None, None),
        (Across, (4, 3), {}, None, None),
        (Sum, (0, 3), {}, None, None),
        (Sum, [(4, 3), (1, 3)], {}, None, None),
        (Sum, (4, 3), {"dtensors": True}, None, None),
    ],
)
def test_a_module_is_evaluated_on_another_batch_where_the_sequential_one_takes_that(
    world: al.SimulatedWorld, make: Any, inputs: Any, options: Any, larger: Any, smaller: Any
) -> None:
    given = dict(mesh=(2,), inputs=inputs, **options)
    for layer in made(world, ParallelRecipe(make, as_it_is), **given):
        for is_larger, shapes in ((True, larger), (False, smaller)):
            found = layer.other_batch(is_larger)
            assert (None if found is None else [each.layout.shape for each in found.tensors]) == shapes
            assert found is None or [each.name for each in found.tensors] == [
                each.name for each in layer.domain.tensors
            ]
    for layer in made(world, ParallelRecipe(make, as_it_is, one_batch_size=True), **given):
        assert layer.other_batch(True) is None
        assert layer.other_batch(False) is None


@pytest.mark.parametrize(
    ("batch", "ranks", "smaller"),
    [(12, 4, None), (10, 4, None), (8, 4, 4), (12, 3, 6), (14, 4, 7), (6, 4, None)],
)
def test_a_smaller_batch_is_cut_as_evenly_and_leaves_no_rank_without_rows(
    world: al.SimulatedWorld, batch: int, ranks: int, smaller: int | None
) -> None:
    """Six rows on four ranks are 2, 2, 2 and none, where twelve are three on each."""
    recipe = ParallelRecipe(Sum, as_it_is, data_parallel="mean")
    for layer in made(world, recipe, ranks, mesh=(ranks,), inputs=(batch, 3)):
        found = layer.other_batch(False)
        assert (None if found is None else found.tensors[0].layout.shape[0]) == smaller


def test_a_sequential_module_is_in_evaluation_mode_where_its_rounding_is_measured_too() -> None:
    """In training mode its results would be others, and a difference as large would be put down to rounding."""

    def normalised() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Tanh())

    recipe = ParallelRecipe(normalised, as_it_is)
    for sample in range(3):
        with Perturbation(sample, 8.0, spares_integers=False):
            assert not recipe.twin(inputs=[(4, 3)], evaluated=True).training


def test_placements_types_and_the_mode_of_a_case_are_taken_over(world: al.SimulatedWorld) -> None:
    given: list[Any] = []

    class Noting(Sum):
        def forward(self, *inputs: Any) -> Any:
            given.append([type(each) for each in inputs])
            return super().forward(*inputs)

    placed: dict[str, Any] = {
        "input_placements": [[Shard(1)], [Replicate()]],
        "output_placements": [[Shard(1)]],
    }
    inputs: dict[str, Any] = {"mesh": (2,), "inputs": [[2, 3], [2, 3]], "dtype": "float32"}
    for dtensors in (False, True):
        layers = made(
            world, ParallelRecipe(Noting, as_it_is), **inputs, **placed, training=False, dtensors=dtensors
        )
        layer = layers[0]
        assert layer.domain == al.Space(
            space((2,), [Shard(1)], (2, 3), "x", "float32"),
            space((2,), [Replicate()], (2, 3), "x1", "float32"),
        )
        assert layer.codomain == al.Space(
            space((2,), [Shard(1)], (2, 2), "y", "float32"),
            space((2,), [Replicate()], (2, 3), "y1", "float32"),
        )
        assert not layer.module.made.training
        assert layer.module._placing.gives_dtensors is dtensors
    # Of the sequential module, for the outputs with a graph and without.
    assert given == [[torch.Tensor] * 2] * 8


def test_nothing_is_frozen_by_default(world: al.SimulatedWorld) -> None:
    recipe = ParallelRecipe(lambda: nn.Sequential(*(nn.Linear(3, 3) for _ in range(4))), as_it_is)
    assert made(world, recipe, mesh=(2,), inputs=(2, 3))[0].frozen == frozenset()


def test_what_parallelize_makes_has_the_element_type_of_the_case(world: al.SimulatedWorld) -> None:
    class Other(Sum):
        pass

    def another(module: nn.Module, mesh: Any) -> nn.Module:
        other = Other()
        other.register_buffer("count", torch.zeros(2, dtype=torch.float64))
        other.index = nn.Parameter(torch.zeros(1, dtype=torch.int64), requires_grad=False)
        return other

    class WithIndex(Sum):
        def __init__(self) -> None:
            super().__init__()
            self.index = nn.Parameter(torch.zeros(1, dtype=torch.int64), requires_grad=False)

    layer = made(world, ParallelRecipe(WithIndex, another), mesh=(2,), inputs=(2, 3))[1]
    assert type(layer.module.made) is Other
    held = {name: each.dtype for name, each in layer.module.made.named_parameters()}
    assert held == {"linear.weight": torch.float64, "linear.bias": torch.float64, "index": torch.int64}
    with pytest.raises(TypeError, match=r"^parallelize returned an int, which is neither a module nor None$"):
        made(world, ParallelRecipe(Sum, lambda module, mesh: 3), mesh=(2,), inputs=(2, 3))


def test_a_mesh_of_other_than_all_ranks_or_without_that_dimension_is_refused(
    world: al.SimulatedWorld,
) -> None:
    meshes: list[tuple[Any, str]] = [
        ((2, 2), r"\(2, 2\) is of 4 ranks"),
        ((1,), r"\(1,\) is of 1 rank"),
        ({"a": 4}, r"\{'a': 4\} is of 4 ranks"),
    ]
    for mesh, is_of in meshes:
        with pytest.raises(SubjectError, match=f"^mesh: {is_of}, and the case has 2: make it of the number"):
            made(world, ParallelRecipe(Sum, as_it_is), mesh=mesh, inputs=(2, 3))
    given: list[tuple[Any, str]] = [
        ({"a": 2}, r"the mesh has no dimension 'b', but \('a',\)$"),
        ((2,), r"'b' is a name, and the dimensions of the mesh \(2,\) have none: give the mesh names"),
    ]
    for named, told in given:
        with pytest.raises(SubjectError, match=f"^data_parallel: {told}"):
            made(world, ParallelRecipe(Sum, as_it_is, {"b": "sum"}), mesh=named, inputs=(2, 3))
    for dim in (1, -1):
        with pytest.raises(
            SubjectError, match=f"^data_parallel: the mesh has no dimension {dim}, but 1 dimension from 0 on$"
        ):
            made(world, ParallelRecipe(Sum, as_it_is, {dim: "sum"}), mesh=(2,), inputs=(2, 3))


def test_a_mesh_is_given_by_extents_or_by_extents_by_name() -> None:
    assert as_mesh([2, 3]) == ((2, 3), None)
    assert as_mesh({"a": 2, "b": 3}) == ((2, 3), ("a", "b"))
    assert [as_mesh({"a": 2, "b": 3}).dim(key) for key in ("a", "b", 0, 1)] == [0, 1, 0, 1]


# Sequential modules


DECLARED = {"mesh", "inputs", "dtype", "training", "frozen", "dtensors"} | {
    f"{kind}_placements" for kind in ("input", "output", "parameter")
}


def test_a_sequential_module_gets_what_is_no_declaration() -> None:
    entries: dict[str, Any] = dict.fromkeys(DECLARED, "float32") | {"training": True}
    seen: list[Any] = []

    def make(**arguments: Any) -> nn.Module:
        seen.append(arguments)
        return Sum()

    twin = ParallelRecipe(make, as_it_is).twin(**entries, width=4)
    assert seen == [{"width": 4}]
    assert (twin.linear.weight.dtype, twin.training) == (torch.float32, True)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("parameters", "dtype", "training"),
    [
        ({}, torch.float64, True),
        ({"dtype": "float32", "training": False}, torch.float32, False),
        ({"dtype": "float64", "training": True}, torch.float64, True),
        ({"training": 0}, torch.float64, False),
    ],
)
def test_a_sequential_module_has_the_element_type_and_mode_of_the_case(
    parameters: Any, dtype: torch.dtype, training: bool
) -> None:
    module: Any = sequential_module(Sum, {**parameters, "width": 4}, frozenset({"dtype", "training"}))
    assert (module.linear.weight.dtype, module.training) == (dtype, training)
    assert module.linear.out_features == 4
    with pytest.raises(SubjectError, match=r"^the sequential module"):
        sequential_module(Sum, {"depth": 4}, frozenset())


def test_the_shape_of_one_input_may_stand_alone() -> None:
    assert shapes_of((2, 3)) == shapes_of([[2, 3]]) == ((2, 3),)
    assert shapes_of([(2, 3), [4]]) == ((2, 3), (4,))
    assert shapes_of(()) == ((),)
    assert shapes_of([()]) == ((),)


def test_a_pattern_freezes_any_but_all_where_one_is_to_be_left() -> None:
    def frozen(pattern: Any, depth: int = 3) -> set[str]:
        module = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(depth)))
        told = freeze(module, pattern, leaves_one=True)
        assert told == {name for name, held in module.named_parameters() if not held.requires_grad}
        return set(told)

    assert frozen(0) == set()
    assert frozen(["2.weight", "0.weight"]) == {"0.weight", "2.weight"}
    assert frozen([]) == set()
    assert {frozenset(frozen(pattern)) for pattern in range(1, 99)} == {
        frozenset(f"{number}.weight" for number in each)
        for each in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2))
    }


# Functions of DTensors


def scaled(x: Any, x1: Any, by: int) -> Any:
    return by * x, x + x1


PLACED: dict[str, Any] = {"mesh": (2,), "inputs": [(2, 3), (2, 3)], "by": 4}


def test_a_function_of_dtensors_is_an_operator_and_a_layer_of_the_same_spaces(
    world: al.SimulatedWorld,
) -> None:
    seen: list[Any] = []

    def noting(x: Any, x1: Any, by: int) -> Any:
        if isinstance(x, DTensor):
            seen.append((tuple(x.placements), tuple(x1.placements), tuple(x.shape), x.dtype, by))
        return scaled(x, x1, by)

    recipe = DTensorRecipe(noting, scaled)
    placements = [[Shard(1)], [Shard(1)]]

    def body(context: RankContext, payload: None) -> Any:
        with process_group(context.comm):
            given: Any = {**PLACED, "placements": placements, "dtype": "float32"}
            operator, layer = recipe.operator(context.comm, **given), recipe.layer(context.comm, **given)
            local = torch.ones(operator.domain.tensors[0].layout.local_shape(context.comm.Get_rank()))
            return operator, layer, operator.forward(local, local)

    for operator, layer, (first, second) in world.run(body, None, 2).values:
        domain = [space((2,), [Shard(1)], (2, 3), name, "float32") for name in ("x", "x1")]
        assert operator.domain == layer.domain == al.Space(*domain)
        assert operator.codomain == layer.codomain
        assert [each.name for each in operator.domain.tensors] == ["x", "x1"]
        assert [each.layout.shape for each in operator.codomain.tensors] == [(2, 3), (2, 3)]
        assert (layer.parameters, layer.buffers, layer.prepare) == (al.Space(), al.Space(), elementwise)
        assert layer.uniform_requires_grad
        assert operator.function(Direction.FORWARD) is noting
        assert {*first.flatten().tolist()} == {4.0}
        assert {*second.flatten().tolist()} == {2.0}
        assert operator._comm == Ranks.PROCESS_GROUP.arguments(operator.comm)
    assert {each[2:] for each in seen} == {((2, 3), torch.float32, 4)}
    assert {each[:2] for each in seen} == {((Shard(1),), (Shard(1),))}


def test_placements_of_one_input_may_stand_alone(world: al.SimulatedWorld) -> None:
    recipe = DTensorRecipe(lambda x: x, lambda x: x)

    def body(context: RankContext, placements: Any) -> Any:
        with process_group(context.comm):
            made = recipe.operator(context.comm, mesh=(2,), inputs=(2, 3), placements=placements)
            return made.domain, made.codomain

    for placement in (Shard(0), Replicate(), Partial()):
        for given in ([placement], [[placement]]):
            for domain, codomain in world.run(body, given, 2).values:
                assert domain == al.Space(space((2,), [placement], (2, 3), "x"))
                assert codomain.tensors[0].layout == domain.tensors[0].layout


def test_the_plain_function_gets_the_arguments_of_a_case() -> None:
    recipe = DTensorRecipe(scaled, scaled)
    x = torch.ones(2)
    entries: dict[str, Any] = {**PLACED, "placements": [], "dtype": "float64"}
    for result in (recipe.apply(x, x, **entries), recipe.twin(**entries)(x, x)):
        assert [each.tolist() for each in result] == [[4.0, 4.0], [2.0, 2.0]]


@pytest.mark.parametrize("role", ["function", "reference"])
def test_a_function_that_does_not_take_the_inputs_is_named(world: al.SimulatedWorld, role: str) -> None:
    both: dict[str, Any] = {"function": scaled, "reference": scaled} | {role: lambda x: x}
    recipe = DTensorRecipe(**both)

    def body(context: RankContext, payload: None) -> Any:
        with process_group(context.comm):
            return recipe.operator(context.comm, **PLACED, placements=[[Shard(0)]] * 2)

    (outcome, _) = world.run(body, None, 2).outcomes
    error = getattr(outcome, "exception", None)
    assert isinstance(error, SubjectError)
    assert str(error).startswith(f"the {role} is called as")
