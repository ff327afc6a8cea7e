"""The body of a case, which every rank executes."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from adjointlab.checks.check import Spaces, check_named
from adjointlab.checks.context import CheckContext
from adjointlab.checks.fresh_memory import fill_by, filled
from adjointlab.checks.verdict import Inapplicable
from adjointlab.core import arrays
from adjointlab.core.declaration import has_parameter, require_accepts
from adjointlab.core.layer import Layer
from adjointlab.core.space import Space, Tensor
from adjointlab.engine.adapters import BOUNDS, Parameters, UserFunction
from adjointlab.engine.case import Case
from adjointlab.engine.parameter_tree import own_copy
from adjointlab.engine.simulation_artefacts import note_state
from adjointlab.engine.subject import Subject
from adjointlab.torch_distributed.opening import load_process_groups, lone_group
from adjointlab.typing import Array, Communicator
from adjointlab.worlds.call_sites import is_lab
from adjointlab.worlds.launch import is_launched
from adjointlab.worlds.torch.requirements import MissingTorch
from adjointlab.worlds.world import Body, RankContext

__all__ = ["RankObservation", "body"]


@dataclass(frozen=True)
class RankObservation:
    """Observation of one rank, the spaces that it declares, and the communicators that its calls leak.

    For a layer also the parameters and buffers that it declares, with their names, which the comparison of tensors ignores.
    """

    observation: object
    spaces: Spaces
    leaks: tuple[tuple[str, str], ...] = ()
    held: tuple[tuple[str, Tensor], ...] = ()


def body(subject: Subject) -> Body:
    """Return the function that every rank executes for a case of `subject`."""
    note_state(subject)
    # Here, outside the watchdog's limits.
    if any(memory.startswith("torch") for memory in subject.arrays):
        # Code with its own adjoint seldom needs torch's autograd; but real ranks would wait for the one that imports last.
        arrays.warm_up_torch(cotangents=subject.kind.is_differentiated or is_launched())
    if subject.process_group:
        with suppress(MissingTorch):  # each rank raises it
            load_process_groups()

    def observe(rank_context: RankContext, case: Case) -> RankObservation:
        comm = rank_context.comm
        memory = arrays.memory_on(case.setting.library, comm.Get_rank())
        # For operators a separate check does this, and reports what they read.
        fill = fill_by(case.setting.seed) if subject.is_layer else None
        try:
            with (
                arrays.rank_context(memory, comm.Get_rank()),
                subject.surroundings(comm, memory) as before,
                filled(fill),
            ):
                context = _context(subject.on(memory), case, comm, before)
                observation = check_named(case.check).observe(context)
                # Inside this context: the check may not have made the operator on this rank yet, and making it is collective.
                spaces = Spaces(context.domain, context.codomain)
                held = _held(context.layer) if subject.is_layer else ()
        except Inapplicable as error:
            if is_lab(traceback.extract_tb(error.__traceback__)[-1].filename):
                raise
            # The code under test must not decide that the check does not apply.
            raise RuntimeError(
                f"the code under test raised the checks' own {type(error).__name__}"
            ) from error
        return RankObservation(observation, spaces, tuple(context.leaks.items()), held)

    return observe


def _context(
    subject: Subject, case: Case, comm: Communicator, before: Callable[[], AbstractContextManager[None]]
) -> CheckContext:
    """The context of a case's check on this rank; ``before()`` restores the variables of rank-local modules from before the case."""
    reference = subject.reference
    if reference is not None:
        reference = partial(_referred, reference, _arguments(subject, case.parameters))
    return CheckContext(
        partial(subject.make, comm, case.parameters),
        case.setting,
        comm,
        reference,
        values=case.values,
        # Outside a run there are no process groups, and only one set of module-level variables.
        needs_run=subject.process_group or bool(subject.rank_local),
        same_on=case.same_on,
        alone=partial(_alone, subject, comm, before),
        forms_left_out=case.forms_left_out,
        measurement=case.measurement,
    )


@contextmanager
def _alone(
    subject: Subject, comm: Communicator, before: Callable[[], AbstractContextManager[None]]
) -> Iterator[None]:
    """Context in which this rank is the only one of its job, with the variables of rank-local modules as they were `before` the case."""
    with before(), lone_group(comm) if subject.process_group else nullcontext():
        yield


def _held(layer: Layer) -> tuple[tuple[str, Tensor], ...]:
    return tuple(
        (tensor.name, tensor) for space in (layer.parameters, layer.buffers) for tensor in space.tensors
    )


def _referred(reference: UserFunction, arguments: Mapping[str, object], *inputs: Array) -> Any:
    """Call the sequential twin. Raises :class:`SubjectError` for one that does not take its arguments."""
    names = [f"x{number or ''}" for number in range(len(inputs))]
    # A bound that it does not take is a declaration of the operator.
    bounds = [name for name in BOUNDS if not has_parameter(reference, name)]
    arguments = {name: value for name, value in arguments.items() if name not in bounds}
    require_accepts("the reference", reference, names, arguments)
    return reference(*inputs, **own_copy(arguments))


def _arguments(subject: Subject, parameters: Parameters) -> dict[str, object]:
    """Arguments of the sequential twin: all for a layer, else those that are not spaces."""
    if subject.is_layer:
        return dict(parameters)
    return {key: value for key, value in parameters.items() if not isinstance(value, Space)}
