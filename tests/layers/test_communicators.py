"""Every operator and layer refuses what is not a communicator, before it looks at anything else."""

from __future__ import annotations

import inspect
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest

import adjointlab as al
from adjointlab import layers, primitives
from adjointlab.core.executor import ProgramOperator
from adjointlab.layers.losses import SharedSum

_MODULES = [
    import_module(f"{primitives.__name__}.{found.name}") for found in iter_modules(primitives.__path__)
]


def _takes_a_communicator(value: object) -> bool:
    if not callable(value) or inspect.isabstract(value):
        return False
    names = list(inspect.signature(value).parameters)
    return names[:1] == ["comm"] or value is layers.from_sequential


OPERATORS = [
    value
    for module in _MODULES
    for name in getattr(module, "__all__", ())
    if isinstance(value := getattr(module, name), type)
    and issubclass(value, al.LinearOperator)
    and value.__module__ == module.__name__
    and not any(each.__module__.startswith(primitives.__name__) for each in value.__subclasses__())
]
LAYERS = [value for name in layers.__all__ if _takes_a_communicator(value := getattr(layers, name))]
EVERYTHING = [
    each for each in (*OPERATORS, *LAYERS, ProgramOperator, SharedSum) if _takes_a_communicator(each)
]


def made_with(make: Any, comm: object) -> object:
    """Call `make` with `comm`, and for all else that it needs with what is nothing of the kind."""
    needed = {
        name: object()
        for name, parameter in inspect.signature(make).parameters.items()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    }
    if make is layers.from_sequential:
        needed["network"] = __import__("torch").nn.Sequential()
    return make(**(needed | {"comm": comm}))


def test_the_list_has_every_operator_and_layer() -> None:
    assert len(OPERATORS) >= 18
    assert len(LAYERS) >= 90


@pytest.mark.parametrize("make", EVERYTHING, ids=lambda make: f"{make.__module__}.{make.__name__}")
def test_what_is_no_communicator_is_an_error_that_says_so(make: Any) -> None:
    for wrong in (None, "COMM_WORLD", 4, al.SimulatedWorld):
        with pytest.raises(TypeError, match=r"^comm: .* is not a communicator; pass"):
            made_with(make, wrong)
    with pytest.raises(ValueError, match=r"^comm: the null communicator has no ranks"):
        made_with(make, al.MPI.COMM_NULL)
