"""Are the gradients of a layer the sequential ones: of its inputs, and of every parameter?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adjointlab.checks.bench import Bench
from adjointlab.checks.check import Check, Spaces
from adjointlab.checks.twin import Seen, draws, first_wrong, run_twin, twin_passes
from adjointlab.checks.verdict import Verdict, coherent, incoherent

__all__ = ["GradcheckCheck", "GradientsCheck"]


class GradientsCheck(Check):
    """Outputs, all gradients under a random cotangent, and buffers, beside the sequential layer's.

    What requires a gradient is drawn: everything, some tensors, or others on each rank.
    """

    name = "gradients"

    def observe(self, bench: Bench) -> tuple[Seen, ...]:
        return twin_passes(bench, backward=True)

    def judge(self, spaces: Spaces, observations: Sequence[tuple[Seen, ...]]) -> Verdict:
        return first_wrong(observations)


class GradcheckCheck(Check):
    """torch.autograd.gradcheck of the sequential twin alone: asked when the two disagree, to say which side is wrong."""

    name = "gradcheck"

    def observe(self, bench: Bench) -> str:
        if bench.rank:
            return ""
        import torch
        from torch.autograd.gradcheck import GradcheckError

        twin, values = run_twin(bench, draws(bench, 0))
        twin.double()
        leaves = [x.double().requires_grad_() if x.is_floating_point() else x for x in values.inputs]
        parameters = [twin.get_parameter(tensor.name) for tensor in bench.layer.parameters.tensors]

        def function(*given: torch.Tensor) -> Any:
            # The parameters are leaves of the module: gradcheck perturbs them where they are.
            return twin(*given[: len(leaves)])

        try:
            torch.autograd.gradcheck(function, (*leaves, *parameters), eps=1e-4, atol=1e-3, rtol=1e-3)
        except GradcheckError as error:
            return str(error).strip().splitlines()[0]
        return ""

    def judge(self, spaces: Spaces, observations: Sequence[str]) -> Verdict:
        return incoherent(f"gradcheck fails: {observations[0]}") if observations[0] else coherent()
