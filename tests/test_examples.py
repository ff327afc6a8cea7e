"""The examples do what they say: in the world that this session runs in, simulated or real."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from adjointlab.checks.verdict import Status
from adjointlab.harness.engine import Budget, investigate
from adjointlab.harness.examine import checks_of
from adjointlab.harness.find import find_subject
from adjointlab.worlds.launch import is_launched
from adjointlab.worlds.world import World

EXAMPLES = Path(__file__).parent.parent / "examples"
BUDGET = Budget(30, seed=1)

on_real_ranks = pytest.mark.skipif(
    not is_launched() or find_spec("pylops_mpi") is None,
    reason="PyLops-MPI calls MPI itself: needs pylops-mpi, and to run under mpiexec",
)


def statuses(world: World, reference: str) -> dict[str, Status]:
    subject = find_subject(f"{EXAMPLES}/{reference}")
    return {check: investigate(world, subject, check, BUDGET).status for check in checks_of(subject)}


@pytest.mark.parametrize(
    "reference",
    ["ring_shift.py:ring_shifts", "function_pair.py:prefix_sums", "torch_all_gather.py:all_gathers"],
)
def test_the_examples_of_ones_own_operators_are_coherent(adjointlab_world: World, reference: str) -> None:
    assert set(statuses(adjointlab_world, reference).values()) == {Status.COHERENT}


@on_real_ranks
@pytest.mark.parametrize(
    "reference",
    ["pylops_mpi_block_diag.py:block_diagonals", "pylops_mpi_first_derivative.py:first_derivatives"],
)
def test_what_is_right_in_pylops_mpi_is_found_coherent(adjointlab_world: World, reference: str) -> None:
    assert set(statuses(adjointlab_world, reference).values()) == {Status.COHERENT}


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
