"""Every public method of mpi4py's communicators is offered by a world, or refused by name with what to use instead."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

from adjointlab.worlds.launch import is_launched
from adjointlab.worlds.refused_calls import instead_of
from adjointlab.worlds.run import Raised
from adjointlab.worlds.simulated.world import SimulatedWorld

THEIRS = pytest.importorskip("mpi4py.MPI", reason="its classes say what there is")
NAMES = [name for name in dir(THEIRS.Cartcomm) if not name.startswith("_")]


def answers(context, _):
    """Return the answers of the run's communicator and of a grid to each name: None where it is offered."""
    line = context.comm.Create_cart([context.comm.size])

    def answer(comm, name):
        try:
            getattr(comm, name)
        except Exception as error:
            return type(error).__name__, str(error)
        return None

    found = [{name: answer(comm, name) for name in NAMES} for comm in (context.comm, line)]
    line.Free()
    return found


@pytest.fixture
def world():
    if is_launched():
        from adjointlab.worlds.mpi.world import MPIWorld

        made = MPIWorld()
    else:
        made = SimulatedWorld(2)
    yield made
    made.close()


def test_every_method_of_mpi4py_is_offered_or_refused_by_name(world):
    result = world.run(answers)
    assert result.completed, result
    of_grids = {name for name in NAMES if not hasattr(THEIRS.Intracomm, name)}
    for kind, found in zip(("plain", "grid"), result.values[0], strict=True):
        for name, answer in found.items():
            if answer is None or (kind == "plain" and name in of_grids):
                continue
            error, text = answer
            assert error == "AttributeError"
            assert re.match(
                rf"the \w+ communicator has no '{name}'.*: {re.escape(instead_of(name))}$", text
            ), text
            assert instead_of(name)


def test_what_is_named_instead_is_offered(world):
    """A grid of the run's ranks has each call of communicators that a sentence names."""
    on_grids = world.run(answers).values[0][1]
    for name in NAMES:
        if on_grids[name] is not None:
            named = {word for word in re.findall(r"\b[A-Z]\w+", instead_of(name)) if word in on_grids}
            assert all(on_grids[word] is None for word in named), name


def test_the_tutorial_names_a_call_of_each_kind_that_is_refused(world):
    page = (Path(__file__).parents[2] / "docs/tutorials/numpy.md").read_text()
    found, of_sentence = world.run(answers).values[0][1], defaultdict(set)
    for name in NAMES:
        if found[name] is not None:
            of_sentence[re.sub(r"\bI[a-z_]+", "I", instead_of(name))].add(name)
    assert [names for names in of_sentence.values() if not any(f"`{name}`" in page for name in names)] == []


@pytest.mark.parametrize("is_handed", [True, False])
@pytest.mark.parametrize(
    "make", [lambda comm: THEIRS.Win.Allocate(8, comm=comm), lambda comm: THEIRS.File.Open(comm, "file")]
)
def test_windows_and_files_of_other_ranks_are_refused_with_the_alternative(world, make, is_handed):
    def body(context, _):
        with pytest.raises(RuntimeError, match="use messages or collectives on the communicator"):
            make(context.comm if is_handed else THEIRS.COMM_WORLD)

    result = world.run(body)
    assert not any(isinstance(outcome, Raised) for outcome in result.outcomes), result
