"""A small case of a subject, fit to be read: its operator explained in the papers' notation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis.errors import NoSuchExample, Unsatisfiable

from adjointlab.core.notation import explain
from adjointlab.engine.subject import Subject, SubjectError
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.world import RankContext, Run, World

__all__ = ["explained"]


def explained(subject: Subject, ranks: int) -> str:
    """The spaces and the program of the subject's operator, on the smallest case in which there is something to see.

    Raises `ValueError` where no case can be drawn or made.
    """
    world = SimulatedWorld(ranks)
    try:
        parameters = _smallest(world, subject, ranks)
        run = _make(world, subject, parameters, ranks)
    finally:
        world.close()
    for rank, outcome in enumerate(run.outcomes):
        if not hasattr(outcome, "value"):
            raise ValueError(f"{subject.name}: the operator cannot be made: rank {rank} {outcome}")
    text: str = run.values[0][0]
    return text


def _make(world: World, subject: Subject, parameters: Mapping[str, Any], ranks: int) -> Run:
    """Makes the operator on every rank; the values are its text, and how much each rank holds of either space."""

    def body(context: RankContext, payload: Any) -> tuple[str, int, int]:
        operator = subject.make(context.comm, parameters)
        held = [
            sum(tensor.layout.local_size(context.rank) for tensor in space.tensors)
            for space in (operator.domain, operator.codomain)
        ]
        return explain(operator) if context.rank == 0 else "", held[0], held[1]

    return world.run(body, None, ranks)


def _smallest(world: World, subject: Subject, ranks: int) -> Mapping[str, Any]:
    def shows_something(parameters: Mapping[str, Any]) -> bool:
        """Two elements or more, and something on every rank: an empty operator explains nothing."""
        values = _make(world, subject, parameters, ranks).values
        if len(values) < ranks:
            return False
        _, domain, codomain = zip(*values, strict=True)
        return sum(domain) > 1 and sum(codomain) > 1 and all(map(sum, zip(domain, codomain, strict=True)))

    settings = hypothesis.settings(
        max_examples=300,
        database=None,
        deadline=None,
        derandomize=True,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    for condition in (shows_something, lambda parameters: True):
        try:
            return hypothesis.find(subject.parameters(ranks), condition, settings=settings)
        except SubjectError:
            raise
        except (NoSuchExample, Unsatisfiable):
            continue
    raise ValueError(f"{subject.name}: its strategy draws no case on {ranks} ranks; give others with --ranks")
