"""Subjects: something to be checked, with the strategy that draws its cases."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from numbers import Integral, Real
from typing import Final, TypeAlias

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from adjointlab.checks.memory_orders import ORDERS
from adjointlab.core import arrays as array_libraries
from adjointlab.core.arrays import DeviceType
from adjointlab.core.declaration import SubjectError, require_accepts
from adjointlab.core.layer import Layer, undeclared
from adjointlab.core.operator import LinearOperator
from adjointlab.core.space import Space
from adjointlab.devices.memories import on
from adjointlab.engine.adapters import Parameters, UserFunction
from adjointlab.engine.drawing_errors import forgotten_draw
from adjointlab.engine.options import ListParameters
from adjointlab.engine.parameter_tree import own_copy
from adjointlab.spelling import described_type, did_you_mean
from adjointlab.torch_distributed.opening import process_group
from adjointlab.typing import Communicator
from adjointlab.worlds.forks import forks_ended
from adjointlab.worlds.module_state import ModuleState, is_within
from adjointlab.worlds.modules_run_again import run_again

__all__ = [
    "EXAMPLE",
    "BuildOn",
    "Declare",
    "DrawParameters",
    "Kind",
    "Subject",
    "SubjectError",
]

DrawParameters: TypeAlias = Callable[[DrawFn, int], Parameters]
"""A strategy: called with Hypothesis's `draw` and a number of ranks, it draws the arguments of one case."""

Declare: TypeAlias = "Callable[[DrawParameters], Subject]"
"""A decorator that turns a strategy into a subject."""

BuildOn: TypeAlias = "Callable[[DeviceType], tuple[Callable[..., LinearOperator | Layer], UserFunction]]"
"""Called with a device, returns the function that makes the operator or layer there, and its reference."""

EXAMPLE: Final = "write it as `def cases(draw, ranks): return dict(...)`, the arguments of one case"
"""Advice in error messages about something that is not a strategy."""

_EVERY_NUMBER: Final = 8
"""Up to this one, every number of ranks is drawn."""


class Kind(Enum):
    """The forms in which a subject can be given."""

    OPERATOR = "operator"
    PAIR = "pair"
    AUTOGRAD = "autograd"
    LAYER = "layer"

    @property
    def is_differentiated(self) -> bool:
        """True for kinds that torch differentiates; the others define their adjoint."""
        return self in (Kind.AUTOGRAD, Kind.LAYER)


@dataclass(frozen=True)
class Subject:
    """An operator or layer to be checked, and the strategy that draws its cases.

    ``build(comm, **parameters)`` makes the operator on each rank; ``draws(draw, ranks)`` draws the parameters, as
    data. `target` is the object that the user has named, for reports and scripts. ``build_on(device_type)`` returns a `build` and a
    `reference` that make modules on a device; the fields of that name make them on the host.
    """

    name: str
    kind: Kind
    build: Callable[..., LinearOperator | Layer]
    draws: DrawParameters
    target: UserFunction
    reference: UserFunction | None = None
    arrays: tuple[str, ...] = ("numpy",)
    orders: tuple[str, ...] = ORDERS
    ranks: tuple[int, ...] = ()
    every: ListParameters | None = None
    twice_differentiable: bool = False
    takes_steps: bool = False
    process_group: bool = False
    rank_local: tuple[str, ...] = ()
    declared_in: str = ""  # the module whose import declared it; empty if none did
    build_on: BuildOn | None = None

    def __repr__(self) -> str:
        # Hypothesis prints the arguments of a strategy in its warnings, where the fields would take 15 lines.
        return f"<subject {self.name}>"

    @property
    def is_layer(self) -> bool:
        return self.kind is Kind.LAYER

    @property
    def place(self) -> tuple[str, str] | None:
        """The module and the variable that refer to it; None if no variable does.

        The module is that of its strategy, or else the one that declared it: a function of another module may have made it.
        """
        for module in (self.draws.__module__, self.declared_in):
            for name, value in _variables(module):
                if value is self:
                    return module, name
        return None

    @property
    def location(self) -> str:
        """Its :attr:`place` as "module:name"; the strategy's if no variable refers to it."""
        # Code executed by `exec` may have no module.
        return ":".join(self.place or (self.draws.__module__ or "", self.draws.__name__))

    @property
    def label(self) -> str:
        """The name in reports: ``name[variable]`` if its module has several subjects of that name."""
        return f"{self.name}{self.distinction}"

    @property
    def distinction(self) -> str:
        """The variable in brackets, which distinguishes it from subjects of its module with the same name; empty if there are none."""
        if (place := self.place) is None:
            return ""
        module, variable = place
        subjects = {id(value): value for _, value in _variables(module) if isinstance(value, Subject)}
        has_namesakes = sum(each.name == self.name for each in subjects.values()) > 1
        return f"[{variable}]" if has_namesakes else ""

    @property
    def pair(self) -> tuple[UserFunction, ...]:
        """The forward and the adjoint function of a pair; empty for other kinds."""
        return self.build.args[:2] if self.kind is Kind.PAIR and isinstance(self.build, partial) else ()

    @property
    def has_specification(self) -> bool:
        """True if the operator's class defines a specification."""
        given = getattr(self.target, "specification", None)
        return given is not None and given is not LinearOperator.specification

    def parameters(self, ranks: int) -> SearchStrategy[dict[str, object]]:
        """The strategy that draws the parameters of a case on `ranks` ranks."""
        return _parameters(self, ranks)

    def ranks_up_to(self, most: int) -> tuple[int, ...]:
        """The numbers of ranks to draw up to `most`, in order; none if all declared ones are larger."""
        if self.ranks:
            return tuple(sorted(count for count in self.ranks if count <= most))
        powers = (2**power for power in range(most.bit_length()))
        # The end of the range is a power of two, or `most`.
        return tuple(sorted({*range(1, min(most, _EVERY_NUMBER)), *powers, most}))

    def drawn(self, draw: DrawFn, ranks: int) -> dict[str, object]:
        """Draw the parameters of a case inside another strategy, with its `draw`."""
        with forks_ended("the strategy"):
            result: object = self.draws(draw, ranks)
        if not isinstance(result, Mapping):
            raise SubjectError(
                f"{self.name}: the strategy returned {result!r}, not a dictionary of arguments{forgotten_draw(result) or f'; {EXAMPLE}'}"
            )
        return dict(own_copy(result))

    def make(self, comm: Communicator, parameters: Parameters) -> LinearOperator | Layer:
        """Make the operator or layer of a case on this rank.

        Raises :class:`SubjectError` if it lacks something. For a layer this is collective: parameters or buffers that
        it does not declare on some rank raise the same error on all.
        """
        if self.kind is Kind.OPERATOR:
            require_accepts("the operator", self.target, ("comm",), parameters)
        # Ranks may be threads, and a case makes several instances: one that changes its arguments must not change those of others.
        operator = self.build(comm, **own_copy(parameters))
        for attribute in ("domain", "codomain"):
            given = getattr(operator, attribute, None)
            if not isinstance(given, Space):
                lack = (
                    f"no `{attribute}`" if given is None else f"{described_type(given)} for its `{attribute}`"
                )
                raise SubjectError(
                    f"{self.name}: the operator has {lack}; set self.{attribute} = adjointlab.Space(layout) when it is made"
                )
        if getattr(operator, "comm", None) is None:
            raise SubjectError(
                f"{self.name}: the operator has no `comm`; set self.comm = comm when it is made"
            )
        if isinstance(operator, Layer):
            _check_declared(self.name, operator)
        else:
            _require_bounds(self.name, operator)
        return operator

    def on(self, memory: str) -> Subject:
        """The subject for a rank whose tensors lie in `memory`: its modules and meshes are made there."""
        device_type = array_libraries.device_type_of(memory)
        if device_type == "cpu" or self.build_on is None:
            return self
        build, reference = self.build_on(device_type)
        return replace(self, build=build, reference=reference)

    @contextmanager
    def surroundings(
        self, comm: Communicator, memory: str = "numpy"
    ) -> Iterator[Callable[[], AbstractContextManager[None]]]:
        """Context in which the code under test runs on this rank, whose tensors lie in `memory`.

        Its value makes contexts in which the variables of rank-local modules are as they were before.
        """
        device_type = array_libraries.device_type_of(memory)
        group = process_group(comm, device_type) if self.process_group else nullcontext()
        with self._own_variables(comm) as before, group:
            yield before

    @contextmanager
    def _own_variables(self, comm: Communicator) -> Iterator[Callable[[], AbstractContextManager[None]]]:
        """Context in which this rank has its own variables in rank-local modules, with the value of :meth:`surroundings`."""
        _require_imported(self.rank_local)
        if not self.rank_local:
            yield nullcontext
        elif (separate := getattr(comm, "separate", None)) is not None:  # simulated ranks share the modules
            state = separate(self.rank_local)
            run_again(self.rank_local)
            yield state.put_back
        else:
            # A process has its own, but the next case should not find them changed.
            before = ModuleState(self.rank_local).put_back
            with before():
                run_again(self.rank_local)
                yield before

    def libraries(self, device: str | None = None) -> tuple[str, ...]:
        """The array libraries to draw from: the declared ones that are installed, on `device` if one is given.

        Raises :class:`SubjectError` if there is none.
        """
        present = tuple(library for library in self.arrays if array_libraries.installed(library))
        if not present:
            raise SubjectError(f"{self.name}: none of the array libraries {self.arrays} is installed")
        if not (chosen := on(device, present)):
            raise SubjectError(
                f"{self.name}: draws no tensors in {device} memory, but in {', '.join(present)}; leave out "
                f"--device {device}, or name a memory of {device} in arrays=... of its decorator"
            )
        return chosen


@st.composite
def _parameters(draw: DrawFn, subject: Subject, ranks: int) -> dict[str, object]:
    return subject.drawn(draw, ranks)


def _require_imported(packages: Iterable[str]) -> None:
    """Raise :class:`SubjectError` for a name in `rank_local` that is not a module or package imported so far."""
    for name in packages:
        if name in sys.modules or any(is_within(each, [name]) for each in list(sys.modules)):
            continue
        module = name.rpartition(".")[0]
        advice = (
            f"; name the module {module}" if module in sys.modules else did_you_mean(name, list(sys.modules))
        )
        raise SubjectError(
            f"rank_local: {name!r} is none of the modules that are imported when a case begins: import it with the subject{advice}"
        )


def _require_bounds(name: str, operator: LinearOperator) -> None:
    """Raise :class:`SubjectError` for impossible bounds, and if there is nothing to check."""
    if not operator.domain.tensors and not operator.codomain.tensors:
        raise SubjectError(
            f"{name}: the spaces of the operator have no tensors, so there is nothing to check"
        )
    for attribute, bounded in (
        (
            "gain",
            "the largest absolute row sum of any intermediate in both directions, and is 1 where each element goes to one place",
        ),
        ("fan_in", "the number of terms that are added up for an output"),
    ):
        value: object = getattr(operator, attribute, None)
        if value is not None and (value is True or not (isinstance(value, Integral) and int(value) >= 1)):
            raise SubjectError(
                f"{name}: {attribute} = {value!r} is not an integer of at least 1; it bounds {bounded}; an attribute of another meaning needs another name"
            )
    rounding: object = getattr(operator, "rounding", None)
    if rounding is not None and not (isinstance(rounding, Real) and 0 < float(rounding) < 1):
        raise SubjectError(
            f"{name}: rounding = {rounding!r} is not a number between 0 and 1; it is the error of the results relative to the largest; "
            "leave it out where that is rounding alone"
        )


def _check_declared(name: str, layer: Layer) -> None:
    # Gathered: modules may differ between ranks, and a rank that raised alone would leave the others waiting.
    faults_of_ranks = layer.comm.allgather(undeclared(layer.module, layer.parameters, layer.buffers))
    for rank, faults in enumerate(faults_of_ranks):
        if faults:
            raise SubjectError(
                f"{name}: on rank {rank}, the module {'; it '.join(faults)}. Declare all of them, as named_parameters() and "
                "named_buffers() call them: parameter_space = adjointlab.Space(adjointlab.Tensor(layout, name=...), ...), "
                "and buffer_space likewise, of the module or in the strategy's dictionary. A rank that holds nothing of a "
                "tensor has one of zero volume; a buffer that is constant is registered with persistent=False"
            )


def _variables(module: str) -> list[tuple[str, object]]:
    """The variables of the module of that name; empty if it is not imported."""
    return list(vars(sys.modules[module]).items()) if module in sys.modules else []
