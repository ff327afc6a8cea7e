"""The values that a sequential module has when it is made parallel: they show whether each rank gets its part of every parameter.

Checks later write other values into the parameters, in the layout that the lab derives. Without these initial values, a shard that is
cut wrongly when the module is made parallel would pass, and copies made then, such as an optimiser's master weights, would be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from adjointlab.checks.whole_tensors import held
from adjointlab.core import arrays
from adjointlab.core.declaration import SubjectError
from adjointlab.core.operator import ParameterMisplaced
from adjointlab.core.pieces import IN_ONE, Fused
from adjointlab.core.space import LocalType, Space, Tensor
from adjointlab.spelling import described_type
from adjointlab.typing import NumpyArray

if TYPE_CHECKING:
    import torch

__all__ = ["give_initial_values", "has_its_parts"]

_LARGEST: Final = 4
"""Bound of the integers of which the values are multiples. None is 0, because code may divide by them."""

_TELLING: Final = 3
"""Number of distinct values that show that a part comes from a sequential parameter: new parameters may be zeros and ones."""


_ADVICE_ON_PIECES: Final = "; if the weight has several pieces, such as gate and up, of each of which every rank has a part, declare it as _StridedShard(0, split_factor=2), or give their sizes in parameter_pieces"


def give_initial_values(module: torch.nn.Module) -> dict[str, NumpyArray] | None:
    """Overwrite the parameters with small multiples of a power of two, and return the values by name.

    Those of an integer type keep their values.

    Returns None, and changes nothing, if a parameter has no memory yet. Raises :class:`SubjectError` for a parameter of a tensor class
    into which values cannot be copied, as for some quantised ones.
    """
    import torch

    owned = dict(module.named_parameters())
    if not all(map(_can_be_given, owned.values())):
        return None
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in owned.items():
            if not arrays.is_differentiable(parameter):
                continue
            values = _values(tuple(parameter.shape), generator)
            if parameter.is_complex():
                values = torch.complex(values, _values(tuple(parameter.shape), generator))
            try:
                parameter.copy_(values)
            except Exception as error:
                raise SubjectError(
                    f"the parameter {name}, {described_type(parameter)}, cannot take values of a plain tensor, and the lab overwrites "
                    "each parameter: make it a buffer with persistent=False, which the lab neither changes nor compares"
                ) from error
    return {name: arrays.to_numpy(parameter.detach().clone()) for name, parameter in owned.items()}


def _values(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    import torch

    sizes = torch.randint(1, _LARGEST + 1, shape, generator=generator)
    signs = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    return (signs * sizes).double() * _unit(shape)


def _unit(shape: tuple[int, ...]) -> float:
    """The power of two that gives values a root mean square of about 1 / sqrt(fan-in), so that outputs are as large as inputs [LeCun98, §4.6].

    In a deep network, integers themselves would saturate softmax and tanh, and an optimiser's steps would be nothing but rounding.
    A power of two keeps sums of products exact.
    """
    mean_square = sum([size**2 for size in range(1, _LARGEST + 1)]) / _LARGEST
    fan_in = math.prod(shape[1:])
    return 2.0 ** -round(math.log2(mean_square * max(fan_in, 1)) / 2)


def _can_be_given(parameter: torch.nn.Parameter) -> bool:
    import torch

    is_made = not torch.nn.parameter.is_lazy(parameter)
    return is_made and not parameter.is_meta


def has_its_parts(
    module: torch.nn.Module,
    space: Space,
    rank: int,
    given: Mapping[str, NumpyArray],
    pieces: Mapping[str, Fused],
) -> bool:
    """Return True if each parameter of the parallel `module` is, by its values, the part of a sequential one that `space` gives the rank.

    `given` are the sequential values, `pieces` the pieces of fused parameters.

    Raises :class:`ParameterMisplaced` if a parameter has the values of other elements; returns False if it has values of its own.
    """
    anywhere = np.unique(np.concatenate([values.ravel() for values in given.values()] or [np.empty(0)]))
    found = [
        _is_its_part(module, tensor, rank, given[tensor.name], anywhere, pieces.get(tensor.name, IN_ONE))
        for tensor in space.tensors
    ]
    return all(found)


def _is_its_part(
    module: torch.nn.Module, tensor: Tensor, rank: int, whole: NumpyArray, anywhere: NumpyArray, pieces: Fused
) -> bool:
    """Return True for the right part of the `whole` parameter; `anywhere` has the values of all parameters, to recognise a wrong part."""
    part = arrays.local_part(module.get_parameter(tensor.name).detach())
    if part.is_meta or LocalType.PARTIAL in tensor.types:
        return False
    actual, expected = arrays.to_numpy(pieces.apart(part)), held(tensor, pieces.apart(whole), rank)
    if actual.size == expected.size == 0 or np.array_equal(actual, expected):
        return True
    values = np.unique(actual)
    if actual.shape == expected.shape and len(values) >= _TELLING and np.isin(values, anywhere).all():
        place = tuple(int(index) for index in np.argwhere(actual != expected)[0])
        raise ParameterMisplaced(
            f"the parameter {tensor.name} has the layout {tensor.layout}, but values of other elements of the sequential module: its "
            f"local element {list(place)} is {actual[place]:g} as parallelize leaves it, and should be {expected[place]:g}{_ADVICE_ON_PIECES if pieces is IN_ONE else ''}"
        )
    return False
