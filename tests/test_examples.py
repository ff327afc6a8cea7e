"""The examples do what they say: in the world that this session runs in, simulated or real."""

from __future__ import annotations

import inspect
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import adjointlab as al
from adjointlab.checks.verdict import Status
from adjointlab.harness.engine import Budget, investigate
from adjointlab.harness.examine import checks_of
from adjointlab.harness.find import find_subject
from adjointlab.worlds.launch import is_launched
from adjointlab.worlds.world import World

EXAMPLES = Path(__file__).parent.parent / "examples"
BUDGET = Budget(30, seed=1)
SMALL = Budget(20, ranks=4, seed=1)  # PyLops-MPI gathers all local shapes for each array that it makes

with_pylops_mpi = pytest.mark.skipif(find_spec("pylops_mpi") is None, reason="needs pylops-mpi")
on_real_ranks = pytest.mark.skipif(
    not is_launched(), reason="MPIHalo calls MPI's own functions: needs to run under mpiexec"
)


def statuses(world: World, reference: str, budget: Budget = BUDGET) -> dict[str, Status]:
    subject = find_subject(f"{EXAMPLES}/{reference}")
    return {check: investigate(world, subject, check, budget).status for check in checks_of(subject)}


@pytest.mark.parametrize(
    "reference",
    ["ring_shift.py:ring_shifts", "function_pair.py:prefix_sums", "torch_all_gather.py:all_gathers"],
)
def test_the_examples_of_ones_own_operators_are_coherent(adjointlab_world: World, reference: str) -> None:
    assert set(statuses(adjointlab_world, reference).values()) == {Status.COHERENT}


@with_pylops_mpi
@pytest.mark.parametrize(
    "reference",
    ["pylops_mpi_block_diag.py:block_diagonals", "pylops_mpi_first_derivative.py:first_derivatives"],
)
def test_what_is_right_in_pylops_mpi_is_found_coherent(adjointlab_world: World, reference: str) -> None:
    assert set(statuses(adjointlab_world, reference, SMALL).values()) == {Status.COHERENT}


@with_pylops_mpi
@on_real_ranks
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
    assert investigate(adjointlab_world, subject, "sequential", SMALL).status is Status.COHERENT


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
