"""The calls that check parallel modules and pipelines hand over what they are given, and run every check in one world."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import find
from hypothesis import strategies as st
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import adjointlab as al
from adjointlab.core.declaration import SubjectError
from adjointlab.core.layer import elementwise
from adjointlab.engine import parallel_check
from adjointlab.engine.drawn_meshes import drawn_meshes
from adjointlab.engine.example_tensors import preparation
from adjointlab.engine.search_result import Budget
from tests.drawing import first_examples

pytestmark = pytest.mark.mpi_skip

FLOATS, INDICES = torch.zeros(4, 3), torch.tensor([[0, 6], [1, 2]])
MODEL = nn.Linear(3, 2)


class Declared:
    """Stands for `adjointlab.subject` and for the search: records what they are given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given: tuple[Any, ...] = ()
        self.options: dict[str, Any] = {}
        self.draws: Any = None
        self.budget: Budget | None = None
        self.world: Any = None
        self.checks: Any = None
        self.sequential: Any = None

        def declare(sequential: Any, *given: Any, **options: Any) -> Callable[[Any], Any]:
            self.sequential, self.given, self.options = sequential, given, options
            return lambda draws: setattr(self, "draws", draws)

        def verdicts(checked: Any, budget: Budget, world: Any, checks: Any) -> Mapping[str, Any]:
            self.budget, self.world, self.checks = budget, world, checks
            return {}

        monkeypatch.setattr(parallel_check, "subject", SimpleNamespace(parallel=declare, pipeline=declare))
        monkeypatch.setattr(parallel_check, "verdicts_of", verdicts)


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Declared:
    return Declared(monkeypatch)


def drawn(strategy: Callable[..., Any], ranks: int) -> Any:
    """The simplest of what is drawn."""
    return find(st.composite(lambda draw: strategy(draw, ranks))(), lambda value: True)


def of_a_strategy(draw: Any, ranks: int) -> dict[str, Any]:
    return {"inputs": (ranks, 3), "depth": 2}


def parallelize(module: Any, mesh: Any) -> None:
    pass


def test_a_parallel_module_is_declared_as_it_is_given(declared: Declared, world: al.SimulatedWorld) -> None:
    def before(module: Any) -> None: ...
    def after(module: Any) -> None: ...
    def prepare(*drawn: Any) -> Any: ...
    def optimizer(parameters: Any) -> Any: ...

    al.check_parallel(
        MODEL,
        parallelize,
        [FLOATS, FLOATS],
        mesh={"dp": 3, "tp": 2},
        data_parallel={"dp": "sum"},
        before_backward=before,
        after_backward=after,
        context=suppress,
        prepare=prepare,
        optimizer=optimizer,
        steps=3,
        accumulates=True,
        one_batch_size=True,
        twice_differentiable=True,
        frozen=("0.weight",),
        input_placements=[[Shard(0)], [Replicate()]],
        output_placements=[Shard(1)],
        parameter_placements={"0.weight": [Shard(0)]},
        rank_local=("package",),
        cases=7,
        seed=11,
        checks=["training"],
        world=world,
    )
    assert declared.given == (parallelize,)
    assert declared.options == {
        "data_parallel": {"dp": "sum"},
        "before_backward": before,
        "after_backward": after,
        "context": suppress,
        "prepare": prepare,
        "optimizer": optimizer,
        "steps": 3,
        "accumulates": True,
        "one_batch_size": True,
        "twice_differentiable": True,
        "rank_local": ("package",),
        "name": "parallelize",
        "ranks": (6,),
    }
    assert drawn(declared.draws, 6) == {
        "mesh": {"dp": 3, "tp": 2},
        "frozen": ["0.weight"],
        "input_placements": [[Shard(0)], [Replicate()]],
        "output_placements": [Shard(1)],
        "parameter_placements": {"0.weight": [Shard(0)]},
        "inputs": [(4, 3), (4, 3)],
    }
    assert (declared.budget, declared.world, declared.checks) == (
        Budget(7, ranks=6, seed=11),
        world,
        ["training"],
    )


def test_complex_examples_have_inputs_of_complex_numbers(declared: Declared) -> None:
    al.check_parallel(MODEL, parallelize, [INDICES, FLOATS.to(torch.complex64)])
    assert drawn(declared.draws, 3)["input_dtypes"] == ["float64", "complex128"]


def test_a_parallel_module_has_twenty_cases_on_one_mesh_dimension_by_default(declared: Declared) -> None:
    al.check_parallel(MODEL, lambda module, mesh: None, of_a_strategy)
    assert declared.options == {
        "data_parallel": None,
        "before_backward": None,
        "after_backward": None,
        "context": nullcontext,
        "prepare": elementwise,
        "optimizer": None,
        "steps": 0,
        "accumulates": None,
        "one_batch_size": False,
        "twice_differentiable": False,
        "rank_local": (),
        "name": "parallelize",
    }
    assert drawn(declared.draws, 3) == {"mesh": (3,), "inputs": (3, 3), "depth": 2}
    assert (declared.budget, declared.world) == (Budget(20, ranks=4, seed=0), None)

    class Plan:
        def __call__(self, module: Any, mesh: Any) -> None: ...

    al.check_parallel(MODEL, Plan(), FLOATS)
    assert declared.options["name"] == "parallelize"
    assert declared.options["prepare"](FLOATS) is not None


def test_a_pipeline_is_declared_as_it_is_given(declared: Declared, world: al.SimulatedWorld) -> None:
    def schedule(module: Any) -> Any: ...
    def loss(output: Any, target: Any) -> Any: ...
    def after(module: Any) -> None: ...
    def prepare(*drawn: Any) -> Any: ...
    def optimizer(parameters: Any) -> Any: ...

    al.check_pipeline(
        MODEL,
        schedule,
        FLOATS,
        torch.zeros(4),
        loss=loss,
        reduction="sum",
        after_backward=after,
        prepare=prepare,
        optimizer=optimizer,
        steps=3,
        ranks=2,
        cases=7,
        seed=11,
        checks=["training"],
        world=world,
    )
    assert declared.given == (schedule,)
    assert declared.options == {
        "loss": loss,
        "reduction": "sum",
        "after_backward": after,
        "prepare": prepare,
        "optimizer": optimizer,
        "steps": 3,
        "name": "schedule",
        "ranks": (2,),
    }
    assert drawn(declared.draws, 2) == {"inputs": [(4, 3)], "target": (4,)}
    assert (declared.budget, declared.world, declared.checks) == (
        Budget(7, ranks=2, seed=11),
        world,
        ["training"],
    )


def test_a_pipeline_has_twenty_cases_and_a_target_like_the_output_by_default(declared: Declared) -> None:
    def loss(output: Any, target: Any) -> Any: ...

    class Plan:
        def __call__(self, module: Any) -> None: ...

    al.check_pipeline(MODEL, Plan(), of_a_strategy, loss=loss)
    assert declared.options == {
        "loss": loss,
        "reduction": "mean",
        "after_backward": None,
        "prepare": elementwise,
        "optimizer": None,
        "steps": 0,
        "name": "pipeline",
    }
    assert drawn(declared.draws, 3) == {"inputs": (3, 3), "depth": 2}
    assert (declared.budget, declared.world) == (Budget(20, ranks=4, seed=0), None)
    al.check_pipeline(MODEL, Plan(), [FLOATS, INDICES], loss=loss)
    assert drawn(declared.draws, 3) == {"inputs": [(4, 3), (2, 2)]}
    values = torch.tensor([[7.0, 5.0], [-1.0, 1.0]])
    prepared = declared.options["prepare"](FLOATS, values, values)
    assert [x.tolist() for x in prepared] == [FLOATS.tolist(), [[0, 5], [6, 1]], values.tolist()]
    al.check_pipeline(MODEL, Plan(), FLOATS, torch.tensor([0, 2]), loss=loss)
    assert [x.tolist() for x in declared.options["prepare"](values, values[0])] == [values.tolist(), [1, 2]]


def test_each_case_has_a_copy_of_a_module_and_what_a_function_makes(declared: Declared) -> None:
    al.check_parallel(MODEL, parallelize, FLOATS)
    one, other = declared.sequential(), declared.sequential()
    assert len({id(MODEL), id(one), id(other)}) == 3
    assert torch.equal(one.weight, MODEL.weight)
    assert one.weight is not MODEL.weight
    al.check_parallel(nn.Identity, parallelize, FLOATS)
    assert declared.sequential is nn.Identity


@pytest.mark.parametrize(
    ("given", "ranks", "fixed", "mesh"),
    [
        (None, 6, None, (6,)),
        ((2, 3), 6, 6, (2, 3)),
        ([5], 5, 5, [5]),
        ({"dp": 2, "tp": 4}, 8, 8, {"dp": 2, "tp": 4}),
        (("dp", "tp"), 6, None, {"dp": 6, "tp": 1}),
        (["tp"], 6, None, {"tp": 6}),
    ],
)
def test_a_mesh_is_a_shape_or_names_of_dimensions(
    given: Any, ranks: int, fixed: int | None, mesh: Any
) -> None:
    number, make = drawn_meshes(given)
    assert number == fixed
    assert drawn(make, ranks) == mesh


@pytest.mark.parametrize("extents", [(1, 6), (2, 3), (3, 2), (6, 1)])
def test_all_meshes_of_the_names_are_drawn(extents: tuple[int, ...]) -> None:
    _, make = drawn_meshes(("dp", "tp"))
    mesh = dict(zip(("dp", "tp"), extents, strict=True))
    assert find(st.composite(lambda draw: make(draw, 6))(), lambda found: found == mesh) == mesh


@pytest.mark.parametrize(("names", "ranks"), [("ab", 4), ("abc", 4), ("abc", 8)])
def test_most_meshes_of_several_names_have_no_dimension_of_all_ranks(names: str, ranks: int) -> None:
    _, make = drawn_meshes(tuple(names))
    # Beside a seed, as in a case: of the meshes alone there are few different examples.
    with_seeds = st.composite(lambda draw: (make(draw, ranks), draw(st.integers(0, 2**31))))()
    meshes = [mesh for mesh, _ in first_examples(with_seeds, 300)]
    assert sum(ranks not in mesh.values() for mesh in meshes) > len(meshes) / 2
    assert sum(ranks in mesh.values() for mesh in meshes) > 10


@pytest.mark.parametrize(
    ("example", "legal"),
    [
        (torch.zeros(1), [-3.0, 0.0, 1.0, 5.5]),
        (torch.zeros(1, dtype=torch.float32), [-3.0, 0.0, 1.0, 5.5]),
        (torch.tensor([4, 2]), [2, 0, 1, 0]),
        (torch.tensor([0, 0]), [0, 0, 0, 0]),
        (torch.tensor([], dtype=torch.int64), [0, 0, 0, 0]),
        (torch.tensor([2], dtype=torch.int32), [0, 0, 1, 2]),
        (torch.tensor([False]), [False] * 4),
        (torch.tensor([True]), [True, False, True, True]),
        (torch.tensor([0, 2, -100, 1]), [1, 0, 1, 1]),
        (torch.tensor([-100, -1]), [-1, -100, -1, -1]),
        (torch.tensor([2**40]), [2**40 - 2, 0, 1, 5]),
    ],
)
def test_drawn_numbers_become_such_as_the_example_holds(example: torch.Tensor, legal: list[Any]) -> None:
    values = torch.tensor([-3.0, 0.0, 1.0, 5.5], dtype=torch.float64)
    untouched, changed = preparation(torch.zeros(1), [example], None)(values, values)
    assert untouched.equal(values)
    assert changed.tolist() == legal
    assert changed.dtype == (torch.float64 if example.is_floating_point() else example.dtype)


def test_floating_point_numbers_are_taken_as_they_are_drawn() -> None:
    assert preparation(torch.zeros(1), [torch.zeros(1, dtype=torch.bfloat16)], None) is elementwise


def test_a_preparation_gets_drawn_numbers_of_the_element_type_of_the_example() -> None:
    def doubled(x: Any, y: Any) -> Any:
        return 2 * x, 2 * y

    values = torch.tensor([-3.0, 0.5, 4.0], dtype=torch.float64)
    prepared = preparation([torch.zeros(1), torch.tensor([0, 6])], [], doubled)(values, values)
    assert [x.tolist() for x in prepared] == [[-6.0, 1.0, 8.0], [-6, 0, 8]]
    assert prepared[1].dtype == torch.int64


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (dict(cases="3"), "cases: '3' is not a whole number of at least 1"),
        (dict(cases=2.5), "cases: 2.5 is not a whole number of at least 1"),
        (dict(world=3), "world: an int is not a world: give an instance of adjointlab.SimulatedWorld"),
        (dict(frozen=3), "frozen: 3 is not a list of names of parameters, such as ['weight']"),
        (dict(frozen="weight"), "frozen: 'weight' is not a list of names of parameters, such as ['weight']"),
        (dict(mesh=(0, 2)), "mesh: (0, 2) has extents that are not whole numbers of at least 1"),
        (dict(mesh={"dp": 2.0}), "mesh: {'dp': 2.0} has extents that are not whole numbers of at least 1"),
        (dict(one_batch_size="no"), "one_batch_size: 'no' is neither True nor False"),
        (dict(twice_differentiable=2), "twice_differentiable: 2 is neither True nor False"),
        (dict(accumulates="no"), "accumulates: 'no' is neither True nor False"),
        (dict(optimizer=torch.optim.SGD, steps="2"), "steps: '2' is not a whole number"),
        (dict(optimizer=torch.optim.SGD, steps=2.0), "steps: 2.0 is not a whole number"),
    ],
    ids=lambda given: str(given),
)
def test_arguments_that_are_not_of_their_kind_are_refused_by_their_names(
    options: dict[str, Any], told: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(told)}"):
        al.check_parallel(MODEL, parallelize, FLOATS, **options)


@pytest.mark.parametrize("frozen", [(), None])
@pytest.mark.parametrize(
    "parallelize",
    [
        lambda module, mesh: DistributedDataParallel(module),
        lambda module, mesh: fully_shard(module, mesh=mesh),
    ],
)
def test_a_module_that_averages_gradients_of_one_batch_is_refused(parallelize: Any, frozen: Any) -> None:
    """Of equal gradients an average shows nothing; where all parameters are frozen, torch refuses DistributedDataParallel first."""
    with pytest.raises((SubjectError, AssertionError), match='data_parallel="mean"'):
        al.check_parallel(MODEL, parallelize, FLOATS, frozen=frozen)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("frosen", "`frosen`; did you mean frozen?"),
        ("nothing", "`nothing`"),
        ("ranks", "`ranks`: it draws their number; the extents of a mesh fix it, such as mesh=(4,)"),
        (
            "parameter_pieces",
            "`parameter_pieces`: give a strategy in the place of inputs, "
            "`def cases(draw, ranks): return dict(inputs=..., parameter_pieces=...)`",
        ),
    ],
)
def test_an_argument_that_no_check_has_is_told_with_its_place(name: str, told: str) -> None:
    with pytest.raises(TypeError, match=f"^check_parallel has no argument {re.escape(told)}$"):
        al.check_parallel(MODEL, parallelize, FLOATS, **{name: None})  # type: ignore[arg-type]


def test_an_entry_of_the_cases_of_a_pipeline_is_no_argument_of_its_check() -> None:
    with pytest.raises(TypeError, match=r"^check_pipeline has no argument `input_gradient`: give a strategy"):
        al.check_pipeline(MODEL, parallelize, FLOATS, loss=mse_loss, input_gradient=True)  # type: ignore[arg-type]


def test_a_target_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^target: a str is not a torch\.Tensor, an example of targets$"):
        al.check_pipeline(MODEL, parallelize, FLOATS, "t", loss=mse_loss)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [[(2, 3)], None])
def test_a_strategy_of_a_parallel_module_that_returns_no_dictionary_is_told_to(given: Any) -> None:
    with pytest.raises(SubjectError, match=r"the strategy returned .*, not a dictionary of arguments"):
        al.check_parallel(MODEL, parallelize, lambda draw, ranks: given)


@pytest.mark.parametrize("name", ["training", "evaluated", "dtensors"])
def test_an_entry_that_is_neither_true_nor_false_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(SubjectError, match=f"{name}: 'no' is neither True nor False"):
        al.check_parallel(MODEL, parallelize, lambda draw, ranks: {"inputs": (2, 3), name: "no"})


def test_what_is_neither_a_module_nor_names_of_dimensions_is_refused(declared: Declared) -> None:
    with pytest.raises(
        TypeError, match=r"^sequential: an int is neither a module nor a function that makes one$"
    ):
        al.check_parallel(3, parallelize, FLOATS)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^mesh: 'tp' is a text; give the names of dimensions as \('tp',\)$"):
        al.check_parallel(MODEL, parallelize, FLOATS, mesh="tp")
