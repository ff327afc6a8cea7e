"""The sequential module of a case, with its frozen parameters, and the shapes and types of its inputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

from adjointlab.core import arrays
from adjointlab.core.arrays import DTYPES, DeviceType
from adjointlab.core.declaration import SubjectError, require_accepts
from adjointlab.core.subsets import subset
from adjointlab.engine.adapters import Parameters, UserFunction
from adjointlab.engine.user_layers import in_mode, without
from adjointlab.quantities import counted
from adjointlab.spelling import described_type
from adjointlab.worlds.randomness import own_streams

if TYPE_CHECKING:
    import torch

__all__ = [
    "freeze",
    "require_made_anew",
    "sequential_module",
    "shapes_of",
    "type_of",
    "types_of",
    "zeros_for",
]


def sequential_module(
    make: UserFunction, parameters: Parameters, declarations: frozenset[str], device_type: DeviceType = "cpu"
) -> torch.nn.Module:
    """Make the sequential module of a case on a device; the case's entries named in `declarations` are not passed to it."""
    import torch

    arguments = without(parameters, declarations)
    require_accepts("the sequential module", make, (), arguments, sorted(declarations))
    # Random draws there, such as for a buffer, are then the same in the twin and on all ranks.
    with own_streams():
        module: torch.nn.Module = make(**arguments)
    if not isinstance(module, torch.nn.Module):
        raise SubjectError(f"sequential: it returned {described_type(module)}, not a module")
    arrays.convert_module(module, getattr(torch, type_of(parameters)))
    in_mode(module, parameters)
    # Not moved to the host, because a module may have no memory (torch's meta device).
    return module if device_type == "cpu" else module.to(device_type)


def require_made_anew(one: torch.nn.Module, other: torch.nn.Module) -> None:
    """Raise :class:`SubjectError` if the sequential modules of two calls share a parameter: checks write into parameters."""
    held = {id(parameter) for parameter in one.parameters()}
    shared = [name for name, parameter in other.named_parameters() if id(parameter) in held]
    if shared:
        raise SubjectError(
            f"sequential: two calls return modules with one and the same parameter {shared[0]}: give the module itself, which is copied, "
            "or a function that makes another one in each call"
        )


def freeze(module: torch.nn.Module, pattern: int | Sequence[str], *, leaves_one: bool) -> frozenset[str]:
    """Freeze the parameters given by a pattern, 0 for none, or by a list of names; return the names of all that are frozen then.

    A pattern is the seed of a subset of those that require a gradient, or, if it is even, of whole modules of them. With
    `leaves_one`, at least one stays unfrozen. Raises :class:`SubjectError` for a name that no parameter has.
    """
    given: object = pattern
    if isinstance(given, str):
        raise SubjectError(f"frozen: {given!r} is not a list of names, such as [{given!r}]")
    if not (isinstance(given, Collection) or (isinstance(given, int) and given >= 0)):
        raise SubjectError(
            f"frozen: {given!r} is neither a list of names, such as ['weight'], nor 0, for none"
        )
    if isinstance(pattern, int):
        names = [name for name, held in module.named_parameters() if held.requires_grad]
        chosen = subset(_units(names, pattern), pattern, leaves_one=leaves_one) if pattern else ()
        pattern = [name for unit in chosen for name in unit]
    known = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    for name in pattern:
        if name not in known:
            raise SubjectError(f"frozen: {name!r} is none of the parameters {', '.join(known)}")
        module.get_parameter(name).requires_grad_(False)
    return frozenset(name for name, held in module.named_parameters() if not held.requires_grad)


def _units(names: Sequence[str], pattern: int) -> Sequence[Sequence[str]]:
    """The groups of parameters that a pattern freezes together: single ones, or for even patterns those of each module at one depth."""
    alone = [[name] for name in names]
    if pattern % 2:
        return alone
    # With single parameters only, all but the head of a model with two transformer layers would be frozen in one of 400 cases. But this is
    # how models are fine-tuned.
    by_depth: list[Sequence[Sequence[str]]] = []
    for depth in range(1, max((name.count(".") for name in names), default=0) + 1):
        of_module: dict[tuple[str, ...], list[str]] = {}
        for name in names:
            of_module.setdefault(tuple(name.split(".")[:depth]), []).append(name)
        units = list(of_module.values())
        if 1 < len(units) < len(names) and units not in by_depth:
            by_depth.append(units)
    return by_depth[pattern // 2 % len(by_depth)] if by_depth else alone


def shapes_of(given: Any) -> tuple[tuple[int, ...], ...]:
    """Shapes of the inputs from a list, or from the shape of a single one. Raises :class:`SubjectError` for anything else."""
    shapes = (given,) if _is_shape(given) else given
    if not isinstance(shapes, Sequence) or not all(map(_is_shape, shapes)):
        raise SubjectError(f"inputs: {given!r} is neither a shape, such as (4, 6), nor a list of shapes")
    return tuple(tuple(map(int, shape)) for shape in shapes)


def _is_shape(given: Any) -> bool:
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    return is_list and all(isinstance(side, Integral) and int(side) >= 0 for side in given)


def type_of(parameters: Parameters) -> str:
    """Element type of the module of a case. Raises :class:`SubjectError` for an unknown one."""
    given = parameters.get("dtype", "float64")
    if given not in DTYPES:
        raise SubjectError(f"dtype: {given!r} is not one of {', '.join(DTYPES)}")
    return str(given)


def types_of(parameters: Parameters) -> tuple[str, ...]:
    """Element types of the inputs of a case: the given ones, and that of the module for the others."""
    number, given = len(shapes_of(parameters["inputs"])), parameters.get("input_dtypes", ())
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    if not is_list or len(given) > number or not set(given) <= DTYPES.keys():
        others = "; prepare= makes masks of numbers, `lambda x, mask: (x, mask > 0)`" * (
            is_list and "bool" in given
        )
        raise SubjectError(
            f"input_dtypes: {given!r}, and not one of {', '.join(DTYPES)} for each of {counted(number, 'input')}{others}"
        )
    return (*given, *[type_of(parameters)] * (number - len(given)))


def zeros_for(parameters: Parameters, device_type: DeviceType) -> list[torch.Tensor]:
    """Global inputs of a case, filled with zeros."""
    import torch

    sizes = zip(shapes_of(parameters["inputs"]), types_of(parameters), strict=True)
    return [torch.zeros(shape, dtype=getattr(torch, name), device=device_type) for shape, name in sizes]
