"""Are the gradients of a layer the sequential ones: of its inputs, and of every parameter?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from adjointlab.checks.check import Check, CheckedSubject, Spaces
from adjointlab.checks.context import CheckContext
from adjointlab.checks.layers.passes import fill
from adjointlab.checks.layers.twin import (
    Seen,
    draws,
    first_wrong,
    make_twin,
    twin_passes,
    whole_inputs,
    whole_tensors,
)
from adjointlab.checks.verdict import Verdict, coherent, incoherent

__all__ = ["GradcheckCheck", "GradientsCheck"]


class GradientsCheck(Check[tuple[Seen, ...]]):
    """Outputs, all gradients under a random cotangent, and buffers, beside the sequential layer's, in two passes.

    Drawn are: what requires a gradient (everything, some tensors, or others on each rank); whether both passes go forward
    before either goes backward; whether gradients are added to others; and where inputs and cotangents lie in memory. These,
    and what was returned, must be left as they are.
    """

    name = "gradients"
    order = 90

    def applies_to(self, subject: CheckedSubject) -> bool:
        return subject.is_layer

    def follow_up(self) -> Check[Any]:
        return GRADCHECK

    def explained(self, verdict: Verdict, answer: Verdict | None) -> Verdict:
        said = "gradcheck does not apply" if answer is None else answer.headline or "gradcheck passes"
        return replace(verdict, lines=(*verdict.lines, ("sequential twin", said)))

    def observe(self, context: CheckContext) -> tuple[Seen, ...]:
        return twin_passes(context, backward=True)

    def judge(self, spaces: Spaces, observations: Sequence[tuple[Seen, ...]]) -> Verdict:
        return first_wrong(observations)


class GradcheckCheck(Check[str]):
    """torch.autograd.gradcheck of the sequential twin alone: asked when the two disagree, to say which side is wrong."""

    name = "gradcheck"

    def observe(self, context: CheckContext) -> str:
        if context.rank:
            return ""
        import torch
        from torch.autograd.gradcheck import GradcheckError

        layer, keys = context.layer, draws(context, 0)
        names = [tensor.name for tensor in layer.parameters.tensors]
        twin = make_twin(context)
        fill(twin, dict(zip(names, whole_tensors(layer.parameters, keys["parameters"]), strict=True)))
        twin.double()
        leaves = [
            x.double().requires_grad_() if x.is_floating_point() else x
            for x in whole_inputs(layer, keys["inputs"])
        ]
        parameters = [twin.get_parameter(name) for name in names]

        def function(*given: torch.Tensor) -> Any:
            # The parameters are leaves of the module: gradcheck perturbs them where they are.
            inputs = given[: len(leaves)]
            return twin(*(x.clone() for x in inputs) if layer.overwrites_inputs else inputs)

        try:
            torch.autograd.gradcheck(function, (*leaves, *parameters), eps=1e-4, atol=1e-3, rtol=1e-3)
        except GradcheckError as error:
            return str(error).strip().splitlines()[0]
        return ""

    def judge(self, spaces: Spaces, observations: Sequence[str]) -> Verdict:
        return incoherent(f"gradcheck fails: {observations[0]}") if observations[0] else coherent()


GRADIENTS, GRADCHECK = GradientsCheck(), GradcheckCheck()
