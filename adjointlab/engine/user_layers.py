"""Layers of user code and their sequential twins, as the strategy of a subject declares them."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from adjointlab.core.arrays import DTYPES
from adjointlab.core.declaration import SubjectError, require_accepts
from adjointlab.core.layer import Layer, Prepare, trained
from adjointlab.core.space import Space
from adjointlab.engine.adapters import Parameters, Ranks, UserFunction
from adjointlab.typing import Communicator

if TYPE_CHECKING:
    import torch

__all__ = [
    "DeclaredTolerance",
    "declared_tolerance",
    "in_mode",
    "make_layer",
    "make_twin",
    "truth_of",
    "without",
]

_DECLARATIONS = frozenset(
    {
        "domain",
        "codomain",
        "parameter_space",
        "buffer_space",
        "rounding",
        "reach",
        "forward_mode",
        "overwrites_inputs",
        "uniform_requires_grad",
        "training",
    }
)
"""Entries of a layer's case that are declarations for the lab, not arguments of the layer."""


def make_layer(
    build: UserFunction, prepare: Prepare, ranks: Ranks, comm: Communicator, /, **parameters: object
) -> Layer:
    """Make the layer of a case on this rank.

    Raises :class:`SubjectError` if it does not take the arguments, or does not declare the spaces of its tensors.
    """
    require_accepts(
        "the layer", build, ranks.names, without(parameters, _DECLARATIONS), sorted(_DECLARATIONS)
    )
    module = _module(lambda **arguments: build(*ranks.arguments(comm), **arguments), parameters)

    def declared(name: str, default: object) -> Any:
        value = parameters.get(name, getattr(module, name, default))
        if value is None:
            raise SubjectError(
                f"the module has no `{name}`; set self.{name} = adjointlab.Space(layout), or give `{name}` in the "
                "strategy's dictionary"
            )
        return value

    tolerance = declared_tolerance(module, parameters)
    return Layer(
        comm,
        module,
        declared("domain", None),
        declared("codomain", None),
        declared("parameter_space", Space()),
        declared("buffer_space", Space()),
        **tolerance._asdict(),
        prepare=prepare,
        overwrites_inputs=bool(declared("overwrites_inputs", False)),
        uniform_requires_grad=bool(declared("uniform_requires_grad", False)),
        trained=trained(module),
        has_forward_mode=bool(declared("forward_mode", True)),
    )


_REAL_TYPES: Final = tuple(name for name, entry in DTYPES.items() if entry.kind == "real")


class DeclaredTolerance(NamedTuple):
    """Largest legal differences of a layer's results, as :class:`Layer` takes them; without `rounding`, they have to be measured."""

    rounding: float | None
    reach: float
    computes_in: str


def declared_tolerance(module: object, parameters: Parameters) -> DeclaredTolerance:
    """The `rounding` and `reach` of a layer, from entries of its case or attributes of its module.

    If `rounding` is the name of an element type, it is the rounding of results if the module computes in this type. Raises
    :class:`SubjectError` for anything but a number of at least 0 or the name of a real floating-point type.
    """
    rounding, reach = (parameters.get(name, getattr(module, name, None)) for name in ("rounding", "reach"))
    computes_in = rounding if isinstance(rounding, str) and rounding in _REAL_TYPES else ""
    return DeclaredTolerance(
        None if computes_in or rounding is None else _number_from_zero("rounding", rounding),
        0.0 if reach is None else _number_from_zero("reach", reach),
        computes_in,
    )


def _number_from_zero(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0.0 <= number < math.inf:
        or_type = f", nor one of {', '.join(_REAL_TYPES)}" if name == "rounding" else ""
        raise SubjectError(f"{name}: {value!r} is not a number of at least 0{or_type}")
    return number


def make_twin(build: UserFunction, /, **parameters: object) -> torch.nn.Module:
    """Make the sequential twin of a case. Raises :class:`SubjectError` if it does not take the arguments."""
    require_accepts(
        "the sequential twin", build, (), without(parameters, _DECLARATIONS), sorted(_DECLARATIONS)
    )
    return _module(build, parameters)


def _module(build: UserFunction, parameters: Parameters) -> torch.nn.Module:
    return in_mode(build(**without(parameters, _DECLARATIONS)), parameters)


def in_mode(module: torch.nn.Module, parameters: Parameters) -> torch.nn.Module:
    """Put a module into training or evaluation mode if its case gives the mode, and return it."""
    return module.train(truth_of(parameters, "training")) if "training" in parameters else module


def truth_of(parameters: Parameters, name: str) -> bool:
    """The truth value of an entry of a case, `False` if it is missing. Raises :class:`SubjectError` for anything else."""
    given = parameters.get(name, False)
    if given not in (False, True):  # 0 and 1 are among them
        raise SubjectError(f"{name}: {given!r} is neither True nor False")
    return bool(given)


def without(parameters: Parameters, declarations: Collection[str]) -> dict[str, object]:
    """The entries of a case that are arguments: those that are not `declarations`."""
    return {name: value for name, value in parameters.items() if name not in declarations}
