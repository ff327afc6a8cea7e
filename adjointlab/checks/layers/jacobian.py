"""Is reverse mode the adjoint of forward mode? <Jv, w> = <v, J*w> at a random point, for layers that are not linear too."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from adjointlab.checks.check import Check, CheckedSubject, Spaces
from adjointlab.checks.context import CheckContext
from adjointlab.checks.layers.passes import as_tuple
from adjointlab.checks.layers.twin import check_outputs, draws, local_inputs
from adjointlab.checks.verdict import Verdict, coherent, incoherent
from adjointlab.core import arrays
from adjointlab.core.layer import Layer
from adjointlab.core.pairing import ZERO, Exact, pair_local
from adjointlab.core.space import Space
from adjointlab.core.values import Draw, local_values

__all__ = ["JacobianCheck"]

_STEP = 2.0**-9
"""Of the symmetric differences that stand for forward mode where the arithmetic is not exact."""

_DIFFERENCES = 2.0**-20
"""What two such differences, extrapolated, may be wrong by, relative to the products of norms."""


@dataclass(frozen=True)
class Observation:
    """One rank's part of both products, and of the squared norms of Jv, w, v and J*w."""

    forward: Exact
    reverse: Exact
    squares: tuple[float, float, float, float]
    allowed: float  # relative to the products of norms; 0 where everything is exact
    reach: float  # what the Jacobian counts for at least


class JacobianCheck(Check[Observation]):
    """The directions are inputs and parameters together, and small integers, as the point is.

    Forward mode is torch's, unless the layer declares that it has none (``forward_mode = False``): then Jv is the
    symmetric difference (F(p + v) - F(p - v))/2, extrapolated from two steps: exact on integers up to degree four, or, where
    the arithmetic is not exact, from small ones. At a kink, such as a maximum of equal values, neither is the derivative.
    """

    name = "jacobian"
    order = 100

    def applies_to(self, subject: CheckedSubject) -> bool:
        return subject.is_layer

    def surroundings(self) -> AbstractContextManager[None]:
        """One dual level for all ranks: it is a state of the process, and simulated ranks share one."""
        return _dual_level()

    def observe(self, context: CheckContext) -> Observation:
        import torch

        layer, rank = context.layer, context.rank
        keys = draws(context, 0)
        names = [tensor.name for tensor in layer.parameters.tensors]
        inputs = [
            x.requires_grad_() if x.is_floating_point() else x
            for x in local_inputs(context, layer, keys["inputs"])
        ]
        point = {name: layer.module.get_parameter(name) for name in names}
        for name, values in _drawn(layer.parameters, keys["parameters"], rank).items():
            point[name] = _like(point[name], values).requires_grad_()
        seed = context.setting.seed
        along_inputs = list(_drawn(layer.domain, Draw(seed, 7, "primal", 4), rank).values())
        along_parameters = _drawn(layer.parameters, Draw(seed, 8, "primal", 4), rank)
        directions = [
            torch.zeros_like(x) if not x.is_floating_point() else v
            for x, v in zip(inputs, along_inputs, strict=True)
        ]
        state = {name: value.clone() for name, value in layer.module.named_buffers()}

        outputs = _evaluated(layer, inputs, point, state)
        check_outputs(layer, outputs, rank)
        cotangents = list(_drawn(layer.codomain.dual, keys["cotangents"], rank).values())
        reached = [(y, w) for y, w in zip(outputs, cotangents, strict=True) if y.requires_grad]
        if reached:
            torch.autograd.backward([y for y, _ in reached], [w for _, w in reached])
        if getattr(layer.module, "forward_mode", True):
            image, allowed = _forward_mode(layer, inputs, point, directions, along_parameters, state), 0.0
        else:
            image, allowed = _differences(layer, inputs, point, directions, along_parameters, state)
        pulled = [_grad(x) for x in inputs], [_grad(point[name]) for name in names]
        sides = (
            (layer.codomain, image, cotangents),
            (layer.domain, directions, pulled[0]),
            (layer.parameters, [along_parameters[name] for name in names], pulled[1]),
        )
        products = [pair_local(space, a, b, rank) if space.tensors else ZERO for space, a, b in sides]
        norms = [(_square(space, a, rank), _square(space, b, rank)) for space, a, b in sides]
        return Observation(
            products[0],
            products[1] + products[2],
            (norms[0][0], norms[0][1], norms[1][0] + norms[2][0], norms[1][1] + norms[2][1]),
            max(allowed, layer.rounding),
            layer.reach,
        )

    def judge(self, spaces: Spaces, observations: Sequence[Observation]) -> Verdict:
        forward, reverse = ZERO, ZERO
        for seen in observations:
            forward, reverse = forward + seen.forward, reverse + seen.reverse
        image, w, v, pulled = (
            math.sqrt(sum(seen.squares[index] for seen in observations)) for index in range(4)
        )
        error, scale = abs(forward - reverse), max(image * w, v * pulled, observations[0].reach * v * w)
        if error <= observations[0].allowed * scale:
            return coherent()
        return incoherent(
            "reverse mode is not the adjoint of forward mode",
            ("⟨Jv, w⟩", str(forward)),
            ("⟨v, J*w⟩", str(reverse)),
            ("error", f"{error / scale if scale else error:.3g} (relative to the norms)"),
        )


@contextmanager
def _dual_level() -> Iterator[None]:
    if find_spec("torch") is None:
        yield
        return
    import torch
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        with warnings.catch_warnings():
            # torch compiles something on its first dual tensor, and warns of its own way of doing so.
            warnings.simplefilter("ignore")
            forward_ad.make_dual(torch.zeros(0), torch.zeros(0))  # type: ignore[no-untyped-call]
        yield


def _evaluated(
    layer: Layer, inputs: Sequence[Any], parameters: Mapping[str, Any], state: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The layer with other parameters, from the same buffers each time."""
    from torch.func import functional_call

    buffers = {name: value.clone() for name, value in state.items()}
    given = tuple(x.clone() for x in inputs) if layer.overwrites_inputs else tuple(inputs)
    return as_tuple(functional_call(layer.module, {**parameters, **buffers}, given))


def _forward_mode(
    layer: Layer,
    inputs: Sequence[Any],
    parameters: Mapping[str, Any],
    directions: Sequence[Any],
    along_parameters: Mapping[str, Any],
    state: Mapping[str, Any],
) -> list[Any]:
    import torch
    from torch.autograd import forward_ad

    def dual(p: Any, v: Any) -> Any:
        return forward_ad.make_dual(p.detach(), v) if p.is_floating_point() else p  # type: ignore[no-untyped-call]

    outputs = _evaluated(
        layer,
        [dual(p, v) for p, v in zip(inputs, directions, strict=True)],
        {name: dual(p, along_parameters[name]) for name, p in parameters.items()},
        state,
    )
    tangents = [forward_ad.unpack_dual(output).tangent for output in outputs]  # type: ignore[no-untyped-call]
    return [torch.zeros_like(y) if v is None else v for y, v in zip(outputs, tangents, strict=True)]


def _differences(
    layer: Layer,
    inputs: Sequence[Any],
    parameters: Mapping[str, Any],
    directions: Sequence[Any],
    along_parameters: Mapping[str, Any],
    state: Mapping[str, Any],
) -> tuple[list[Any], float]:
    import torch

    def moved(step: float) -> tuple[Any, ...]:
        with torch.no_grad():
            return _evaluated(
                layer,
                [
                    p + step * v if p.is_floating_point() else p
                    for p, v in zip(inputs, directions, strict=True)
                ],
                {name: p + step * along_parameters[name] for name, p in parameters.items()},
                state,
            )

    def difference(step: float) -> list[Any]:
        return [(a - b) / (2 * step) for a, b in zip(moved(step), moved(-step), strict=True)]

    step, allowed = (_STEP, _DIFFERENCES) if layer.rounding else (1.0, 0.0)
    coarse, fine = difference(2 * step), difference(step)
    return [(4 * b - a) / 3 for a, b in zip(coarse, fine, strict=True)], allowed


def _drawn(space: Space, key: Draw, rank: int) -> dict[str, Any]:
    return {
        tensor.name: arrays.from_numpy(local_values(space, position, rank, key), tensor.dtype, "torch")
        for position, tensor in enumerate(space.tensors)
    }


def _like(parameter: Any, values: Any) -> Any:
    """The drawn values, or an empty tensor as the rank has it where it holds nothing."""
    return values if values.numel() or not parameter.numel() else parameter.detach().clone()


def _grad(leaf: Any) -> Any:
    import torch

    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def _square(space: Space, local: Sequence[Any], rank: int) -> float:
    return float(
        sum(
            (np.asarray(arrays.to_numpy(array.detach()), dtype=np.float64) ** 2).sum()
            for tensor, array in zip(space.tensors, local, strict=True)
            if tensor.is_counted(rank)
        )
    )


JACOBIAN = JacobianCheck()
