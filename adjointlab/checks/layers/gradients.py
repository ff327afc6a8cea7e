"""Gradients of a layer, by its inputs and by every parameter, compared with the sequential ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from adjointlab.checks.check import AnyCheck, Check, Spaces
from adjointlab.checks.context import CheckContext, InputSetting
from adjointlab.checks.hints import Hint
from adjointlab.checks.layers.compared_passes import SECOND_PASS, PassObservation
from adjointlab.checks.layers.drawn_values import pass_keys
from adjointlab.checks.layers.modules import SequentialTwin
from adjointlab.checks.layers.own_part import is_of_own_part
from adjointlab.checks.layers.passes import PASSES, PassPlan, plainer_seeds
from adjointlab.checks.layers.twin import TwinCheck, twin_passes
from adjointlab.checks.verdict import Verdict, coherent, incoherent
from adjointlab.core import arrays
from adjointlab.core.layer import outputs_of

if TYPE_CHECKING:
    import torch

__all__ = ["GRADIENTS", "GradcheckCheck", "GradientsCheck"]


_OF_RIGHT_CODE: Final = (
    "of right code too: at a kink; at a tie, where a maximum, say, may take another of the equal values (`prepare=torch.sin` makes inputs "
    "without ties); at infinite inputs; where it stops a gradient, as `detach` does; and where it casts to a narrower type"
)

_OF_LAYOUT: Final = "grad is incorrect layout"
"""gradcheck's complaint of sparse gradients, such as those of an embedding with sparse=True, whose numbers have passed before."""


class GradientsCheck(TwinCheck):
    """Outputs, all gradients under random cotangents, and buffers, compared with the sequential layer's, in two passes.

    A case draws which tensors require a gradient (all, some, or different ones on each rank), whether both passes run forward before
    either runs backward, whether gradients are added to earlier ones, and the memory orders of inputs and cotangents. The layer
    must not write into these, nor into outputs that it has returned.
    """

    name = "gradients"
    order = 90
    share = 0.7
    varies_values = True

    def follow_up(self) -> AnyCheck:
        return GRADCHECK

    def explained(self, verdict: Verdict, answer: Verdict | None) -> Verdict:
        if answer is None:
            result = "gradcheck does not apply"
        else:
            number = int(SECOND_PASS in verdict.lines)
            result = dict(answer.lines).get(_name_of_pass(number), "gradcheck passes")
        return verdict.with_lines(("sequential twin", result))

    def observe(self, context: CheckContext) -> tuple[PassObservation, ...]:
        return twin_passes(context, backward=True)

    def is_of_own_part(
        self,
        observations: Sequence[tuple[PassObservation, ...]],
        others: Sequence[tuple[PassObservation, ...]],
        rank: int,
    ) -> bool | None:
        return is_of_own_part(observations, others, rank)

    def plainer_settings(self, setting: InputSetting) -> Iterator[tuple[Hint, InputSetting]]:
        yield from super().plainer_settings(setting)
        for hint, seed in plainer_seeds(setting.seed):
            yield hint, replace(setting, seed=seed)


class GradcheckCheck(Check[tuple[str, ...]]):
    """`torch.autograd.gradcheck` of the sequential twin alone: if layer and twin disagree, it shows which side is wrong.

    At the inputs of both passes of `gradients`, because it fails at a kink, and only one of them may lie at one.
    """

    name = "gradcheck"

    def observe(self, context: CheckContext) -> tuple[str, ...]:
        """Return gradcheck's error, or an empty text, for each pass; on rank 0 only."""
        _ = context.layer  # made by all ranks before rank 0 goes on alone
        if context.rank:
            return ()
        with context.alone():
            return tuple(self._complaint(context, number) for number in range(PASSES))

    def _complaint(self, context: CheckContext, number: int) -> str:
        import torch
        from torch.autograd.gradcheck import GradcheckError

        twin = SequentialTwin(context)
        plan = PassPlan.of(context.setting.seed, backward=True).for_layer(twin.layer)
        twin.fill_parameters(pass_keys(context, plan.parameters_in(number))["parameters"])
        # gradcheck's differences need double precision.
        arrays.convert_module(twin.module, torch.float64)
        frozen = twin.layer.frozen or frozenset()
        drawn = zip(twin.layer.domain.tensors, twin.inputs(pass_keys(context, number)["inputs"]), strict=True)
        leaves = [
            x.to(arrays.element_type_in(torch.float64, x.dtype)).requires_grad_(tensor.name not in frozen)
            if arrays.is_differentiable(x)
            else x
            for tensor, x in drawn
        ]

        def function(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            # The parameters are leaves of the module: gradcheck perturbs them in place.
            outputs = outputs_of(twin.module(*twin.given(given[: len(leaves)])))
            # gradcheck (torch 2.13) does not accept integers before differentiable outputs.
            return tuple(filter(arrays.is_differentiable, outputs))

        try:
            torch.autograd.gradcheck(function, (*leaves, *twin.parameters()), eps=1e-4, atol=1e-3, rtol=1e-3)
        except GradcheckError as error:
            complaint = str(error).strip().splitlines()[0].rstrip(",")
            return "" if complaint.startswith(_OF_LAYOUT) else complaint
        return ""

    def judge(self, spaces: Spaces, observations: Sequence[tuple[str, ...]]) -> Verdict:
        complaints = [
            (_name_of_pass(number), f"gradcheck fails: {complaint} ({_OF_RIGHT_CODE})")
            for number, complaint in enumerate(observations[0])
            if complaint
        ]
        return incoherent("gradcheck fails", *complaints) if complaints else coherent()


def _name_of_pass(number: int) -> str:
    return f"pass {number}"


GRADIENTS, GRADCHECK = GradientsCheck(), GradcheckCheck()
