"""A subject's operator in the notation of the literature, on a case that is small enough to read."""

from __future__ import annotations

from typing import NamedTuple

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.errors import NoSuchExample, Unsatisfiable

from adjointlab.core.notation import explain
from adjointlab.core.operator import LinearOperator, programs_of
from adjointlab.engine.adapters import Parameters
from adjointlab.engine.constants_of_modules import without_constants_of_modules
from adjointlab.engine.subject import Kind, Subject, SubjectError
from adjointlab.pictures.model import Drawing
from adjointlab.worlds.run import Returned, Run
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.world import RankContext

__all__ = ["explained"]


class _Explanation(NamedTuple):
    """The operator's text and drawing (from rank 0), and the number of elements that a rank holds of each space."""

    text: str
    drawing: Drawing | None
    has_messages: bool  # its program moves something between ranks
    domain_size: int
    codomain_size: int


def explained(subject: Subject, ranks: int) -> tuple[str, Drawing]:
    """The spaces and the program of the subject's operator, on the smallest case that shows something.

    Returns them in the notation of the literature, and as a drawing.

    Raises `ValueError` for a layer, and if no case can be drawn or its operator cannot be made.
    """
    if subject.is_layer:
        raise ValueError(f"{subject.name} is a layer; only linear operators have a program to explain")
    world = SimulatedWorld(ranks)
    try:
        parameters = _smallest(world, subject, ranks)
        run = _make(world, subject, parameters, ranks)
    finally:
        world.close()
    for rank, outcome in enumerate(run.outcomes):
        if not isinstance(outcome, Returned):
            raise ValueError(f"{subject.name}: the operator cannot be made: rank {rank} {outcome}")
    explanation: _Explanation = run.values[0]
    assert explanation.drawing is not None
    return _titled(subject, explanation.text), explanation.drawing


def _titled(subject: Subject, text: str) -> str:
    """`text` with the subject's name before its first line, the operator's name; in its place if that is an adapter's or the same."""
    operator, end, rest = text.partition("\n")
    is_own = subject.kind is Kind.OPERATOR and operator != subject.label
    return f"{subject.label}: {text}" if is_own else f"{subject.label}{end}{rest}"


def _make(world: SimulatedWorld, subject: Subject, parameters: Parameters, ranks: int) -> Run:
    """Make the operator on every rank, and explain it."""

    def body(context: RankContext, payload: None) -> _Explanation:
        with subject.surroundings(context.comm):
            operator = subject.make(context.comm, parameters)
            assert isinstance(operator, LinearOperator)
            domain_size, codomain_size = (
                sum(tensor.layout.local_size(context.rank) for tensor in space.tensors)
                for space in (operator.domain, operator.codomain)
            )
            if context.rank:
                return _Explanation("", None, False, domain_size, codomain_size)
            return _Explanation(
                explain(operator), operator.drawing(), _has_messages(operator), domain_size, codomain_size
            )

    return world.run(body, None, ranks)


def _has_messages(operator: LinearOperator) -> bool:
    programs = programs_of(operator)
    return programs is not None and any(sender is not None for sender, _, _ in programs[0].movements)


def _smallest(world: SimulatedWorld, subject: Subject, ranks: int) -> Parameters:
    has_messages: tuple[bool, ...] = ()

    def shows_messages(parameters: Parameters) -> bool:
        """As :func:`shows_something`, and forward moves data between ranks."""
        return shows_something(parameters) and has_messages[0]

    def shows_something(parameters: Parameters) -> bool:
        """Return True if both spaces have two elements or more, and every rank holds some: an empty operator explains nothing."""
        nonlocal has_messages
        explanations: tuple[_Explanation, ...] = _make(world, subject, parameters, ranks).values
        if len(explanations) < ranks:
            return False
        _, _, has_messages, domain_sizes, codomain_sizes = zip(*explanations, strict=True)
        sizes = map(sum, zip(domain_sizes, codomain_sizes, strict=True))
        return sum(domain_sizes) > 1 and sum(codomain_sizes) > 1 and all(sizes)

    settings = hypothesis.settings(
        max_examples=300,
        database=None,
        deadline=None,
        derandomize=True,  # the same case at every call
        verbosity=Verbosity.quiet,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    # Some operators never hold that many elements, or move nothing; then any case will do.
    for condition in (shows_messages, shows_something, lambda parameters: True):
        try:
            with without_constants_of_modules():
                return hypothesis.find(subject.parameters(ranks), condition, settings=settings)
        except SubjectError:
            raise
        except (NoSuchExample, Unsatisfiable):
            continue
    raise ValueError(f"{subject.name}: its strategy draws no case on {ranks} ranks; give others with --ranks")
