"""Subjects: something to be checked, with the strategy that draws its cases."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from adjointlab.checks.placement import ORDERS
from adjointlab.core import arrays as array_libraries
from adjointlab.core.layer import Layer, Prepare, elementwise, undeclared
from adjointlab.core.operator import LinearOperator
from adjointlab.core.space import Space
from adjointlab.engine.adapters import Differentiable, FunctionPair, make_layer, make_twin

__all__ = ["Subject", "SubjectError", "subject"]

_EXAMPLE = "write it as `def cases(draw, ranks): return dict(...)`, the arguments of one case"


class SubjectError(TypeError):
    """A subject is incomplete; the message says what is missing."""


@dataclass(frozen=True)
class Subject:
    """What is checked, and how its cases are drawn.

    ``build(comm, **parameters)`` makes the operator on each rank; ``draws(draw, ranks)`` draws the parameters, as
    data. `target` is where the operator comes from, for reports and scripts. ``every(**bound)`` lists all cases within
    a bound: pairs of a number of ranks and the parameters.
    """

    name: str
    build: Callable[..., LinearOperator]
    draws: Callable[..., Mapping[str, Any]]
    target: Any
    reference: Callable[..., Any] | None = None
    arrays: tuple[str, ...] = ("numpy",)
    orders: tuple[str, ...] = ORDERS
    ranks: tuple[int, ...] = (1, 2, 3, 4, 8)
    every: Callable[..., Iterable[tuple[int, Mapping[str, Any]]]] | None = None
    is_layer: bool = False
    twice_differentiable: bool = False

    @property
    def location(self) -> str:
        """Where it is declared, "module:name"; the strategy's own name where no name of its module is the subject."""
        module = self.draws.__module__
        names = [name for name, value in vars(sys.modules.get(module, self)).items() if value is self]
        return f"{module}:{(names or [self.draws.__name__])[0]}"

    def parameters(self, ranks: int) -> SearchStrategy[dict[str, Any]]:
        """Draws the parameters of a case on `ranks` ranks."""
        return _parameters(self, ranks)

    def drawn(self, draw: DrawFn, ranks: int) -> dict[str, Any]:
        """The same inside another strategy, with its `draw`."""
        result = self.draws(draw, ranks)
        if not isinstance(result, Mapping):
            raise SubjectError(
                f"{self.name}: the strategy returned {result!r}, not a dictionary of arguments; {_EXAMPLE}"
            )
        return dict(result)

    def make(self, comm: Any, parameters: Mapping[str, Any]) -> LinearOperator:
        """The operator or layer of a case, on this rank.

        Raises :class:`SubjectError` for one that lacks something; for a layer with parameters or buffers that it does not
        declare, on whichever rank, the same on all.
        """
        operator = self.build(comm, **parameters)
        for attribute in ("domain", "codomain"):
            if not isinstance(getattr(operator, attribute, None), Space):
                raise SubjectError(
                    f"{self.name}: the operator has no `{attribute}`; set self.{attribute} = adjointlab.Space(layout) "
                    "when it is made"
                )
        if getattr(operator, "comm", None) is None:
            raise SubjectError(
                f"{self.name}: the operator has no `comm`; set self.comm = comm when it is made"
            )
        if isinstance(operator, Layer):
            _check_declared(self.name, operator)
        return operator

    def libraries(self) -> tuple[str, ...]:
        """The array libraries to draw from: those asked for that are installed."""
        present = tuple(library for library in self.arrays if array_libraries.installed(library))
        if not present:
            raise SubjectError(f"{self.name}: none of the array libraries {self.arrays} is installed")
        return present

    @property
    def has_specification(self) -> bool:
        """Whether the operator's class defines a specification."""
        given = getattr(self.target, "specification", None)
        return given is not None and given is not LinearOperator.specification


def _check_declared(name: str, layer: Layer) -> None:
    found = layer.comm.allgather(undeclared(layer.module, layer.parameters, layer.buffers))
    for rank, faults in enumerate(found):
        if faults:
            raise SubjectError(
                f"{name}: on rank {rank}, the module {'; it '.join(faults)}. Declare all of them, as named_parameters() and "
                "named_buffers() call them: parameter_space = adjointlab.Space(adjointlab.Tensor(layout, name=...), ...), "
                "and buffer_space likewise, of the module or in the strategy's dictionary. A rank that holds nothing of a "
                "tensor has one of zero volume; a buffer that is constant is registered with persistent=False"
            )


@st.composite
def _parameters(draw: DrawFn, subject: Subject, ranks: int) -> dict[str, Any]:
    return subject.drawn(draw, ranks)


def subject(
    operator: Any = None,
    *,
    forward: Callable[..., Any] | None = None,
    adjoint: Callable[..., Any] | None = None,
    autograd: Any = None,
    layer: Callable[..., Any] | None = None,
    sequential: Callable[..., Any] | None = None,
    prepare: Prepare = elementwise,
    twice_differentiable: bool = False,
    reference: Callable[..., Any] | None = None,
    arrays: Sequence[str] | None = None,
    orders: Sequence[str] = ORDERS,
    ranks: Sequence[int] = (1, 2, 3, 4, 8),
    name: str | None = None,
    every: Callable[..., Iterable[tuple[int, Mapping[str, Any]]]] | None = None,
) -> Callable[[Callable[..., Mapping[str, Any]]], Subject]:
    """Declare a subject; decorates ``def cases(draw, ranks)``, which draws one case's arguments as a dictionary.

    Give one of

    - `operator`: a class with `forward`, `adjoint`, `domain`, `codomain` and `comm`, made as
      ``operator(comm, **arguments)`` (a :class:`LinearOperator`, or a function that returns one);
    - `forward` and `adjoint`: functions called as ``forward(comm, *x, **arguments)``, where the dictionary also has
      the spaces `domain` and `codomain`, which are not passed on;
    - `autograd`: a `torch.autograd.Function`, applied to ``(*x, comm, *arguments.values())``, or any differentiable
      function of torch tensors, called as ``function(comm, *x, **arguments)``; with the spaces as above;
    - `layer` and `sequential`: what makes a `torch.nn.Module` on each rank, called as ``layer(comm, **arguments)``, and
      its sequential twin, called as ``sequential(**arguments)``. ``prepare(*inputs)`` makes legal inputs of drawn ones,
      element by element. With `twice_differentiable`, second derivatives are checked too.

    Of a layer the lab has to know more, as attributes of the module or entries of the dictionary, which are not passed on:

    - `domain` and `codomain`, the spaces of its inputs and outputs; `parameter_space` and `buffer_space`, those of its
      parameters and buffers, named as both modules name them: of all of them, but for buffers that are not persistent;
    - `rounding`, how far results may differ from the twin's, relative to the largest value of each tensor (default 0: exact on
      small integers), and `reach`, the least that this value counts for, where terms cancel (default 0);
    - `overwrites_inputs`, that it may write into its inputs (default `False`);
    - ``training``, of the dictionary alone: the mode that both modules are put into. Draw it for a layer that does something
      else in training than in evaluation; the lab cannot know.

    `reference` is the sequential twin: it takes the global tensors and ``**arguments``. `arrays` are the libraries
    to draw inputs from, `orders` the memory orders of inputs and cotangents, `ranks` the numbers of ranks.
    `every` lists all cases within a bound, for ``adjointlab exhaust``: a function with the bounds as keyword arguments
    and their defaults, such as ``every(ranks=3, side=2)``, that yields pairs of a number of ranks and the arguments.

    Raises :class:`SubjectError` that says what is missing.
    """
    if layer is not None or sequential is not None:
        if layer is None or sequential is None or any((operator, forward, adjoint, autograd, reference)):
            raise SubjectError("@subject(layer=..., sequential=...) takes both, and no other kind of subject")
        target, kind = layer, "layer"
        build: Callable[..., Any] = partial(make_layer, layer, prepare)
        reference = partial(make_twin, sequential)
    else:
        target, build, kind = _builder(operator, forward, adjoint, autograd)
    libraries = tuple(arrays) if arrays else ("torch",) if autograd or layer else ("numpy",)
    if unknown := set(orders) - set(ORDERS):
        raise SubjectError(f"orders: {sorted(unknown)} are not among {', '.join(ORDERS)}")

    def declare(draws: Callable[..., Mapping[str, Any]]) -> Subject:
        if not callable(draws):
            raise SubjectError(f"@subject decorates a function, not {draws!r}; {_EXAMPLE}")
        if len(inspect.signature(draws).parameters) != 2:
            raise SubjectError(f"{draws.__name__}{inspect.signature(draws)} takes (draw, ranks); {_EXAMPLE}")
        return Subject(
            name=name or str(getattr(target, "__name__", draws.__name__)),
            build=build,
            draws=draws,
            target=target,
            reference=reference,
            arrays=libraries,
            orders=tuple(orders),
            ranks=tuple(ranks),
            every=every,
            is_layer=kind == "layer",
            twice_differentiable=twice_differentiable,
        )

    if kind == "strategy":
        raise SubjectError(
            "@subject needs to know what to check: @subject(MyOperator), @subject(forward=..., adjoint=...) or "
            "@subject(autograd=...)"
        )
    return declare


def _builder(
    operator: Any, forward: Callable[..., Any] | None, adjoint: Callable[..., Any] | None, autograd: Any
) -> tuple[Any, Callable[..., LinearOperator], str]:
    given = [
        label
        for label, value in (("operator", operator), ("forward", forward or adjoint), ("autograd", autograd))
        if value is not None
    ]
    if len(given) > 1:
        raise SubjectError(f"@subject takes one kind of subject, not {' and '.join(given)} together")
    if autograd is not None:
        return (
            autograd,
            lambda comm, **parameters: Differentiable(comm, autograd, **_spaces(parameters)),
            "autograd",
        )
    if forward is not None or adjoint is not None:
        if forward is None or adjoint is None:
            missing = "forward" if forward is None else "adjoint"
            raise SubjectError(
                f"@subject(forward=..., adjoint=...) lacks `{missing}`; the lab checks one against the other"
            )
        return (
            forward,
            lambda comm, **parameters: FunctionPair(comm, forward, adjoint, **_spaces(parameters)),
            "pair",
        )
    if operator is None or not (inspect.isclass(operator) or callable(operator)):
        return None, FunctionPair, "strategy"
    if inspect.isclass(operator):
        for method in ("forward", "adjoint"):
            if not callable(getattr(operator, method, None)):
                raise SubjectError(
                    f"{operator.__name__} has no method `{method}`; the lab checks forward against adjoint"
                )
        if not issubclass(operator, LinearOperator):
            raise SubjectError(
                f"{operator.__name__} is no adjointlab.LinearOperator; derive it from that class, or give its methods as "
                "@subject(forward=..., adjoint=...)"
            )
        if abstract := getattr(operator, "__abstractmethods__", None):
            raise SubjectError(f"{operator.__name__} does not define {', '.join(sorted(abstract))}")
    elif list(inspect.signature(operator).parameters)[:1] == ["draw"]:
        return None, FunctionPair, "strategy"
    return operator, operator, "operator"


def _spaces(parameters: Mapping[str, Any]) -> dict[str, Any]:
    missing = [key for key in ("domain", "codomain") if not isinstance(parameters.get(key), Space)]
    if missing:
        raise SubjectError(
            f"the strategy's dictionary needs `domain` and `codomain` to be adjointlab.Space(layout), but "
            f"{' and '.join(missing)} is missing or something else"
        )
    arguments = {key: value for key, value in parameters.items() if key not in ("domain", "codomain")}
    return {"domain": parameters["domain"], "codomain": parameters["codomain"], "arguments": arguments}
