"""Reverse mode is the adjoint of forward mode, <Jv, w> = <v, J*w> at a random point, and both are the sequential twin's.

The Jacobian J of a layer is linear even if the layer is not, so this is the dot test of J, whose domain is inputs and parameters
together. The twin's <v, J*w> is a third value, which shows forward and reverse modes that are wrong in the same way. For a
module that declares that it has no forward mode (``forward_mode = False``) it is the only other value: at a kink, such as a maximum of
equal values, the twin's derivative is the expected one, and a difference quotient does not give it.

If ranks hold copies with different values, there is no sequential input. The third value is then <Jv, w> by differences
(:mod:`adjointlab.checks.layers.differences`), compared up to their estimated error. If that is large, as at a kink, they are
not compared, and without forward mode the case is not judged. To avoid kinks, which tend to lie at integers, the point has
fractions in half of the cases, and in all without forward mode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from adjointlab.checks.check import Check, CheckedSubject, Spaces
from adjointlab.checks.context import FRACTIONS, CheckContext
from adjointlab.checks.elements import Local, norm
from adjointlab.checks.fresh_memory import controlled
from adjointlab.checks.layers.differences import Estimate
from adjointlab.checks.layers.drawn_values import direction_keys, pass_keys
from adjointlab.checks.layers.modules import LocalModule, ModuleUnderTest, SequentialTwin, values
from adjointlab.checks.layers.point import Point, unit_roundoff
from adjointlab.checks.layers.sensitivity import Allowances
from adjointlab.checks.layers.twin import results_of_twin
from adjointlab.checks.verdict import Inapplicable, Verdict, coherent, incoherent
from adjointlab.checks.whole_tensors import has_copies_of_their_own, held, no_sequential_tensor
from adjointlab.core import arrays
from adjointlab.core.layer import Layer
from adjointlab.core.pairing import ZERO, Exact, NotFinite, pair_local
from adjointlab.core.space import Space, Tensor
from adjointlab.core.vectors import local_values
from adjointlab.notes import noted
from adjointlab.typing import Array
from adjointlab.worlds.forward_mode import dual_level

if TYPE_CHECKING:
    import torch

__all__ = ["JACOBIAN", "JacobianCheck"]

_ROUNDINGS = 64.0
"""Largest error, in units in the last place, of a sum of some dozen terms."""

_CONCLUSIVE = 2.0**-4
"""Largest estimated error of differences, relative to the products of norms, with which they are compared."""

_IN_FORWARD_MODE = (
    "raised in forward mode: a module that has none says so by its attribute forward_mode = False, or by "
    "forward_mode=False in the strategy's dictionary"
)


class TwinPairing(NamedTuple):
    """<v, J*w> of the twin, the measured rounding of its J*w if necessary, and the sums of |v|, by result."""

    product: Exact
    allowances: Allowances | None
    weights: Mapping[str, Sequence[float]]

    def allows(self, error: float, known: float, times: int = 1) -> bool:
        """Return True for an error up to `known` plus `times` the rounding of the product."""
        if self.allowances is None:
            return not error > known
        return any(not error > known + times * self._error(differences) for differences in self.allowances)

    def _error(self, differences: Mapping[str, Sequence[float]]) -> float:
        return sum(
            difference * weight
            for name, weights in self.weights.items()
            for difference, weight in zip(differences[name], weights, strict=True)
        )


class Differences(NamedTuple):
    """One rank's part of <Jv, w> by differences, the largest error of an element of Jv, and the sum of all |w|."""

    product: Exact
    error: float
    weight: float


class Norms(NamedTuple):
    """Norms of Jv, w, v and J*w: of a rank's parts, or of the whole vectors."""

    image: float
    w: float
    v: float
    pulled: float


@dataclass(frozen=True)
class JacobianProducts:
    """One rank's part of the inner products, and of the norms.

    `reverse` is `None` if a derivative is not finite, also one by differences, and `forward` also if there is no forward mode. `twin` is
    `None` on all ranks but 0, and if there is no sequential input; then there are `differences`, if they are finite.
    """

    forward: Exact | None
    reverse: Exact | None
    twin: TwinPairing | None
    differences: Differences | None
    norms: Norms
    allowed: float  # relative to the products of norms; 0 if everything is exact
    parameters: int  # the number of their elements, on all ranks
    reach: float  # a lower bound for the norm of the Jacobian
    copies: str = ""  # why there is no sequential input


class JacobianCheck(Check[JacobianProducts]):
    """The dot test of the Jacobian, in a random direction of inputs and parameters together."""

    name = "jacobian"
    order = 100
    share = 0.4

    def applies_to(self, subject: CheckedSubject) -> bool:
        return subject.is_layer

    def surroundings(self) -> AbstractContextManager[None]:
        return controlled()

    def observe(self, context: CheckContext) -> JacobianProducts:
        import torch

        version, keys, seed = LocalModule(context), pass_keys(context, 0), context.setting.seed
        layer, rank = version.layer, context.rank
        copies = _without_sequential_tensor(layer)
        has_twin, has_forward = copies is None, _has_forward_mode(version)
        rounding = _ROUNDINGS * unit_roundoff(layer)
        allowed = rounding if layer.rounding is None else layer.rounding
        if not has_twin and (seed % 2 or not has_forward):
            keys |= {name: replace(keys[name], values=FRACTIONS) for name in ("inputs", "parameters")}
            allowed = max(allowed, rounding)
        point = Point(version, version.inputs(keys["inputs"]), keys["parameters"])
        directions = direction_keys(context)
        along_inputs = version.tensors(layer.domain, directions["inputs"])
        along_parameters = version.tensors(layer.parameters, directions["parameters"])
        outputs = point.outputs(point.inputs)
        version.check_outputs(outputs)
        cotangents = version.tensors(layer.codomain.dual, keys["cotangents"])
        by_inputs, by_parameters = point.pulled_back(outputs, cotangents)
        along_inputs = point.without_integers(along_inputs)
        image, differences = [torch.zeros_like(y) for y in outputs], None
        if has_forward:
            image = _pushed_forward(point, along_inputs, along_parameters)
        if not has_twin:
            estimates = point.differences(along_inputs, along_parameters)
            differences = _of_differences(estimates, layer.codomain, cotangents, rank)
            if not has_forward:
                image = [torch.from_numpy(each.value) for each in estimates]
        pairs: tuple[_Paired, ...] = (
            (layer.codomain, image, cotangents),
            (layer.domain, along_inputs, by_inputs),
            (layer.parameters, along_parameters, by_parameters),
        )
        # Without finite differences there is no derivative, even if reverse mode returns one: for the logarithm at -1 it gives -1.
        products = _products(pairs, rank) if has_twin or differences is not None else []
        return JacobianProducts(
            products[0] if has_forward and products else None,
            products[1] + products[2] if products else None,
            _pairing_of_twin(context) if has_twin and rank == 0 else None,
            differences,
            _norms(pairs, rank),
            allowed,
            layer.parameters.dimension,
            layer.reach,
            "" if copies is None else no_sequential_tensor(copies),
        )

    def judge(self, spaces: Spaces, observations: Sequence[JacobianProducts]) -> Verdict:
        first, *_ = observations
        without = [rank for rank, seen in enumerate(observations) if seen.reverse is None]
        if without and first.twin is None:
            raise Inapplicable("the layer has no finite derivative at the point that was drawn")
        if without:
            return incoherent("the layer's derivative is not finite", ("rank", str(without[0])))
        forward = sum((seen.forward or ZERO for seen in observations), ZERO)
        reverse = sum((seen.reverse or ZERO for seen in observations), ZERO)
        norms = Norms(
            *(math.hypot(*parts) for parts in zip(*(seen.norms for seen in observations), strict=True))
        )
        scale = max(norms.image * norms.w, norms.v * norms.pulled, first.reach * norms.v * norms.w)
        twin = first.twin or TwinPairing(ZERO, None, {})
        error = abs(forward - reverse)
        # Twice, because forward mode rounds about as much.
        if first.forward is not None and not twin.allows(error, first.allowed * scale, times=2):
            return incoherent(
                "reverse mode is not the adjoint of forward mode",
                ("⟨Jv, w⟩", str(forward)),
                ("⟨v, J*w⟩", str(reverse)),
                _relative(error, scale),
            )
        if first.differences is not None:
            return _compared_with_differences(observations, first, reverse, scale)
        if first.twin is None:
            return coherent()
        # A layer's rounding applies to each element of a gradient, and v has as many.
        elements = spaces.domain.dimension + first.parameters
        scale = math.sqrt(elements) * norms.v * max(norms.pulled, first.reach, first.reach * norms.w)
        error = abs(reverse - twin.product)
        if not twin.allows(error, first.allowed * scale):
            return incoherent(
                "the Jacobian is not the sequential layer's",
                ("⟨v, J*w⟩", str(reverse)),
                ("sequential", str(twin.product)),
                _relative(error, scale),
            )
        return coherent()


def _relative(error: float, scale: float) -> tuple[str, str]:
    """A line on an error relative to the products of norms."""
    return "error", f"{error / scale if scale else error:.3g} (relative to the norms)"


def _has_forward_mode(version: ModuleUnderTest) -> bool:
    # DTensor has no forward mode.
    is_distributed = any(map(arrays.is_dtensor, version.parameters()))
    layer = version.layer
    return layer.has_forward_mode and getattr(layer.module, "forward_mode", True) and not is_distributed


def _pushed_forward(
    point: Point, along_inputs: Sequence[torch.Tensor], along_parameters: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    # The level is only around this call: elsewhere a module may itself take derivatives in forward mode, which does not nest.
    with noted(_IN_FORWARD_MODE), dual_level():
        return point.pushed_forward(along_inputs, along_parameters)


def _paired_as_real(space: Space, x: Sequence[Array], g: Sequence[Array], rank: int) -> Exact:
    """This rank's part of the real inner product, in which torch's gradients are adjoints, even of functions that are not complex-linear."""
    return Exact(pair_local(space, x, g, rank).real)


def _without_sequential_tensor(layer: Layer) -> Tensor | None:
    """The first tensor of the layer without a corresponding whole tensor; None if all have one. Cotangents in overlapping windows are summands."""
    given = (*layer.domain.tensors, *layer.parameters.tensors)
    for tensor in given:
        if has_copies_of_their_own(tensor, in_windows=True):
            return tensor
    return next(filter(has_copies_of_their_own, layer.codomain.dual.tensors), None)


def _of_differences(
    estimates: Sequence[Estimate], codomain: Space, cotangents: Sequence[torch.Tensor], rank: int
) -> Differences | None:
    """Pair the differences with the cotangents; `None` if one is not finite."""
    try:
        product = _paired_as_real(codomain, [each.value for each in estimates], cotangents, rank)
    except NotFinite:
        return None
    return Differences(
        product,
        max((float(each.error.max(initial=0.0)) for each in estimates), default=0.0),
        sum(float(abs(w).sum()) for w in cotangents),
    )


_Paired: TypeAlias = "tuple[Space, Sequence[torch.Tensor], Sequence[torch.Tensor]]"
"""A space, a vector of it, and one of its dual."""


def _products(pairs: Sequence[_Paired], rank: int) -> list[Exact]:
    """This rank's part of the inner product of each pair; empty if one is not finite."""
    try:
        return [_paired_as_real(space, a, b, rank) if space.tensors else ZERO for space, a, b in pairs]
    except NotFinite:  # the judge reports it, unless the twin's are not finite either
        return []


def _norms(pairs: Sequence[_Paired], rank: int) -> Norms:
    """This rank's part of the norms: of outputs, and of inputs and parameters together."""
    outputs, *arguments = [(norm(space, a, rank), norm(space, b, rank)) for space, a, b in pairs]
    v, pulled = (math.hypot(*of_side) for of_side in zip(*arguments, strict=True))
    return Norms(*outputs, v, pulled)


def _compared_with_differences(
    observations: Sequence[JacobianProducts], first: JacobianProducts, reverse: Exact, scale: float
) -> Verdict:
    by_rank = [seen.differences for seen in observations if seen.differences is not None]
    product = sum((each.product for each in by_rank), ZERO)
    # The largest error for every element: at a tie of three, the median has no jump, but is not differentiable either.
    error = max(each.error for each in by_rank) * sum(each.weight for each in by_rank)
    if not error <= _CONCLUSIVE * scale:
        if first.forward is None:
            raise Inapplicable("the layer is not smooth at the point that was drawn")
        return coherent()
    if (wrong := abs(product - reverse)) > error + first.allowed * scale:
        return incoherent(
            "reverse mode is not the derivative, by differences",
            ("⟨Jv, w⟩", str(product)),
            ("⟨v, J*w⟩", str(reverse)),
            ("error", f"{wrong:.3g}, where differences err by {error:.3g} at most"),
            ("perhaps", first.copies),
        )
    return coherent()


def _pairing_of_twin(context: CheckContext) -> TwinPairing:
    """Return <v, J*w> of the sequential twin, summed over the parts of all ranks."""
    layer, keys, directions = context.layer, pass_keys(context, 0), direction_keys(context)

    def run() -> Mapping[str, Local]:
        twin = SequentialTwin(context)
        point = Point(twin, twin.inputs(keys["inputs"]), keys["parameters"])
        cotangents = twin.tensors(layer.codomain.dual, keys["cotangents"])
        outputs = point.outputs(point.inputs)
        by_inputs, by_parameters = point.pulled_back(outputs, cotangents)
        # Outputs too, so that the twin is rejected if they are not finite: their derivatives would be undefined.
        return {"outputs": values(outputs), "inputs": values(by_inputs), "parameters": values(by_parameters)}

    results, allowances = results_of_twin(context, run)
    product = ZERO
    weights = {
        "inputs": np.zeros(len(layer.domain.tensors)),
        "parameters": np.zeros(len(layer.parameters.tensors)),
    }
    for name, space in (("inputs", layer.domain), ("parameters", layer.parameters)):
        draw = directions[name]
        for rank in sorted(space.ranks):
            along = [local_values(space, position, rank, draw) for position in range(len(space.tensors))]
            parts = [held(t.dual, whole, rank) for t, whole in zip(space.tensors, results[name], strict=True)]
            product = product + _paired_as_real(space, along, parts, rank)
            weights[name] += [float(abs(v).sum()) for v in along]
    return TwinPairing(product, allowances, {name: each.tolist() for name, each in weights.items()})


JACOBIAN = JacobianCheck()
