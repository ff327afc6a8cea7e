"""Functions of mpi4jax are operators on real ranks; simulated ones are refused, whose messages it cannot send."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import adjointlab as al
from adjointlab.adapters.mpi4jax import mpi4jax_operator
from adjointlab.checks.verdict import Status
from adjointlab.engine.discovery import find_subject
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.worlds.launch import is_launched
from adjointlab.worlds.world import World

EXAMPLE = Path(__file__).parents[2] / "examples" / "mpi4jax_ring.py"

with_mpi4jax = pytest.mark.skipif(
    not is_launched() or find_spec("mpi4jax") is None,
    reason="needs mpi4jax, which is compiled with an MPI library when it is installed, and mpiexec",
)


@with_mpi4jax
@pytest.mark.parametrize("name", ["shifts", "totals"])
def test_the_example_is_coherent(adjointlab_world: World, name: str) -> None:
    found = investigate(adjointlab_world, find_subject(f"{EXAMPLE}:{name}"), "adjoint", Budget(5, seed=1))
    assert found.status is Status.COHERENT, found.verdict


@with_mpi4jax
def test_copies_that_go_on_differently_are_no_invariant_ones(adjointlab_world: World) -> None:
    total = find_subject(f"{EXAMPLE}:totals").target

    @al.subject.operator(total, ranks=[2])
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        copies = al.Layout((2,), al.Partition((ranks,)), axes=(None,))
        return dict(
            domain=al.Space(copies, types=("partial",)), codomain=al.Space(copies, types=("replicated",))
        )

    found = investigate(adjointlab_world, cases, "adjoint", Budget(3, seed=1))
    assert found.status is Status.INCOHERENT, found.verdict


@with_mpi4jax
def test_a_gain_is_no_argument_of_the_function(adjointlab_world: World) -> None:
    total = find_subject(f"{EXAMPLE}:totals").target

    @al.subject.operator(total, ranks=[2])
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        copies = al.Layout((2,), al.Partition((ranks,)), axes=(None,))
        domain, codomain = (al.Space(copies, types=(kind,)) for kind in ("partial", "invariant"))
        return dict(domain=domain, codomain=codomain, gain=ranks)

    found = investigate(adjointlab_world, cases, "adjoint", Budget(3, seed=1))
    assert found.status is Status.COHERENT, found.verdict


def test_simulated_ranks_are_refused(world: al.SimulatedWorld) -> None:
    @al.subject.operator(mpi4jax_operator(lambda comm, x: x), name="same")
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        space = al.Space(al.Layout((ranks,), al.Partition((ranks,))))
        return dict(domain=space, codomain=space)

    found = investigate(world, cases, "adjoint", Budget(1, ranks=2, seed=1))
    assert "run it under mpiexec" in found.verdict.headline
