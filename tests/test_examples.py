"""The examples do what they say: in the world that this session runs in, simulated or real."""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import adjointlab as al
from adjointlab.checks.verdict import Status
from adjointlab.engine.discovery import find_subject
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject
from adjointlab.worlds.launch import is_launched
from adjointlab.worlds.world import World

EXAMPLES = Path(__file__).parent.parent / "examples"
BUDGET = Budget(4, ranks=4, seed=1)

with_pylops_mpi = pytest.mark.skipif(find_spec("pylops_mpi") is None, reason="needs pylops-mpi")
with_jax = pytest.mark.skipif(find_spec("jax") is None, reason="needs JAX: the extra `jax` installs it")
in_the_simulated_world = pytest.mark.skipif(
    is_launched(), reason="a hang of real ranks ends the session, supervised or not"
)


@pytest.mark.parametrize(
    "reference",
    [
        "ring_shift.py:ring_shifts",
        "column_halo.py:ghost_columns",
        "function_pair.py:prefix_sums",
        "torch_all_gather.py:all_gathers",
        "my_own_layer.py:column_parallel",
        "torch_distributed.py:gathers",
        "torch_distributed.py:redistributions",
        "megatron_regions.py:copies",
        "megatron_regions.py:sums",
        "single_controller.py:shifts",
    ],
)
def test_the_examples_of_ones_own_operators_are_coherent(
    adjointlab_world: World, reference: str, alarms: Callable[..., dict[str, str]]
) -> None:
    assert alarms(adjointlab_world, find_subject(f"{EXAMPLES}/{reference}"), BUDGET) == {}


def test_a_pipeline_is_the_sequential_module(adjointlab_world: World) -> None:
    subject = find_subject(f"{EXAMPLES}/pipeline.py:pipelines")
    report = investigate(adjointlab_world, subject, "gradients", Budget(4, ranks=3, seed=1))
    assert report.status is Status.COHERENT, report.verdict


@with_pylops_mpi
@pytest.mark.parametrize(
    "reference",
    [
        "pylops_mpi_block_diag.py:block_diagonals",
        "pylops_mpi_first_derivative.py:first_derivatives",
        "pylops_mpi_operator.py:derivatives_of_ranks",
    ],
)
def test_what_is_right_in_pylops_mpi_is_found_coherent(
    adjointlab_world: World, reference: str, alarms: Callable[..., dict[str, str]]
) -> None:
    assert alarms(adjointlab_world, find_subject(f"{EXAMPLES}/{reference}"), BUDGET) == {}


@with_jax
@pytest.mark.parametrize(("name", "check"), [("shifts", "adjoint"), ("blocks", "gradients")])
def test_the_functions_of_jax_are_coherent(adjointlab_world: World, name: str, check: str) -> None:
    subject = find_subject(
        f"{EXAMPLES}/jax_shard_map.py:{name}"
    )  # compiling takes most of a second for a case
    assert investigate(adjointlab_world, subject, check, Budget(1, ranks=2, seed=1)).status is Status.COHERENT


@pytest.mark.skipif(find_spec("spmd_types") is None, reason="needs spmd_types")
@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's, of names that spmd_types calls
@pytest.mark.parametrize("subject", ["sums", "gathers"])
def test_what_spmd_types_says_of_its_functions_is_found_coherent(
    adjointlab_world: World, subject: str, alarms: Callable[..., dict[str, str]]
) -> None:
    assert (
        alarms(adjointlab_world, find_subject(f"{EXAMPLES}/spmd_types_collectives.py:{subject}"), BUDGET)
        == {}
    )


@with_pylops_mpi
def test_the_halo_of_pylops_mpi_is_found_to_crop_where_it_should_sum(adjointlab_world: World) -> None:
    subject = find_subject(f"{EXAMPLES}/pylops_mpi_halo.py:halos")
    report = investigate(adjointlab_world, subject, "adjoint", Budget(60, seed=1))
    assert report.verdict.headline == "adjoint is not the transpose of forward"
    assert report.case is not None
    assert report.case.ranks == 2
    lines = dict(report.verdict.lines)
    assert lines["forward"] == "moves x[0] (rank 0) to y[0] (rank 1) with weight 1"
    assert lines["adjoint"] == "gives that entry weight 0"
    # Its forward pass, corners and padding included, is the exchange that it should be.
    assert investigate(adjointlab_world, subject, "sequential", BUDGET).status is Status.COHERENT


@with_pylops_mpi
def test_the_derivative_of_three_samples_is_found_to_count_one_of_them_twice(adjointlab_world: World) -> None:
    derivative = find_subject(f"{EXAMPLES}/pylops_mpi_first_derivative.py:first_derivatives").target

    @al.subject(derivative)
    def three_samples(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(dims=(3,), kind="centered", order=5, edge=True, dtype="float64")

    report = investigate(adjointlab_world, three_samples, "adjoint", Budget(1, ranks=1))
    lines = dict(report.verdict.lines)
    assert lines["forward"] == "moves x[0] (rank 0) to y[1] (rank 0) with weight -0.5"
    assert lines["adjoint"] == "gives that entry weight -1"


def column_parallel_with(forward: Any) -> Subject:
    """The example's layer with another forward pass, which gets the example's module too."""
    right = find_subject(f"{EXAMPLES}/my_own_layer.py:column_parallel")
    module = inspect.getmodule(right.draws)
    wrong = type("Wrong", (right.target,), {"forward": lambda self, x: forward(module, self, x)})
    return al.subject(layer=wrong, sequential=vars(module)["linear"])(right.draws)


def test_ones_own_layer_that_does_not_sum_its_input_gradient_is_found(adjointlab_world: World) -> None:
    def without_sum(module: Any, layer: Any, x: Any) -> Any:
        return module.torch.nn.functional.linear(x, layer.weight, layer.bias)

    wrong = column_parallel_with(without_sum)
    report = investigate(adjointlab_world, wrong, "gradients", Budget(100, seed=1))
    if adjointlab_world.ranks == 1:
        assert report.status is Status.COHERENT
        return
    assert report.verdict.kind == "input gradient"
    assert report.case is not None
    assert report.case.ranks == 2
    assert investigate(adjointlab_world, wrong, "sequential", BUDGET).status is Status.COHERENT


@in_the_simulated_world
def test_ones_own_layer_whose_backward_pass_a_rank_may_skip_is_found_to_hang(adjointlab_world: World) -> None:
    def without_anchor(module: Any, layer: Any, x: Any) -> Any:
        x = module.CopyToAll.apply(x, layer.comm, None)
        return module.torch.nn.functional.linear(x, layer.weight, layer.bias)

    report = investigate(
        adjointlab_world, column_parallel_with(without_anchor), "gradients", Budget(100, seed=1)
    )
    assert report.verdict.kind == "deadlock"
    assert report.case is not None
    assert report.case.ranks <= 4


def test_what_the_lab_has_to_know_of_ones_own_layer_is_less_than_twenty_lines() -> None:
    code = (EXAMPLES / "my_own_layer.py").read_text().partition("# That was the layer.")[2].splitlines()[1:]
    assert len([line for line in code if line.strip()]) < 20


def test_the_distributed_lenet_trains_as_the_sequential_one(adjointlab_world: World) -> None:
    if adjointlab_world.ranks < 4:
        pytest.skip("needs 4 ranks")
    example = runpy.run_path(f"{EXAMPLES}/lenet_digits.py")
    run = adjointlab_world.run(example["body"], 15, 4)
    assert run.completed, run
    if adjointlab_world.is_leader:
        losses, apart, off = run.values[0]
        assert len(losses) == 15
        assert losses[-1] < losses[0]
        assert max(apart, off) < example["BOUND"]


@with_pylops_mpi
@pytest.mark.parametrize(
    "reference",
    [
        "ring_shift.py:ring_shifts",
        "pylops_mpi_block_diag.py:block_diagonals",
        "pylops_mpi_first_derivative.py:first_derivatives",
        "pylops_mpi_halo.py:halos",
    ],
)
def test_an_operator_is_adapted_in_less_than_twenty_lines(reference: str) -> None:
    source = inspect.getsource(find_subject(f"{EXAMPLES}/{reference}").target)
    code = [line for line in source.splitlines() if line.strip() and not line.strip().startswith("#")]
    assert len(code) < 20
