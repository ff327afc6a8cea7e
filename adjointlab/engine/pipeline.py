"""Steps of pipeline schedules as layers, with the spaces that follow from the ranks of the stages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from adjointlab.core.arrays import DeviceType, dtype_name
from adjointlab.core.declaration import require_accepts
from adjointlab.core.layer import NO_HOOKS, Layer, PassHooks, Prepare, elementwise, prepared, trained
from adjointlab.core.operator import as_tuple
from adjointlab.core.space import Space
from adjointlab.engine.adapters import Parameters, UserFunction
from adjointlab.engine.parallel import MakeOptimizer, Reduction
from adjointlab.engine.sequential_module import (
    freeze,
    require_made_anew,
    sequential_module,
    shapes_of,
    type_of,
    types_of,
    zeros_for,
)
from adjointlab.engine.user_layers import declared_tolerance, in_mode, truth_of
from adjointlab.typing import Communicator

if TYPE_CHECKING:
    import torch

    from adjointlab.torch_distributed.pipelines import EndStages, RankStages, SequentialStep, Stages, Step

__all__ = ["ENTRIES_OF_PIPELINE", "MakePipeline", "PipelineRecipe"]

MakePipeline: TypeAlias = Callable[..., object]
"""Makes this rank's schedule from a module and the arguments of a case."""

ENTRIES_OF_PIPELINE: Final = frozenset(
    {
        "inputs",
        "input_dtypes",
        "target",
        "pipeline",
        "dtype",
        "training",
        "frozen",
        "input_gradient",
        "rounding",
        "reach",
    }
)
"""Entries of a case that are not arguments of the sequential module."""


@dataclass(frozen=True)
class PipelineRecipe:
    """Makes the pipeline of a case on each rank, and the sequential step."""

    sequential: UserFunction
    pipeline: MakePipeline
    loss: Callable[..., Any]
    reduction: Reduction = "mean"
    prepare: Prepare = elementwise
    optimizer: MakeOptimizer | None = None
    steps: int = 0
    hooks: PassHooks = NO_HOOKS
    device_type: DeviceType = "cpu"

    def twin(self, /, **parameters: Any) -> SequentialStep:
        """Make the sequential step of a case."""
        from adjointlab.torch_distributed.pipelines import SequentialStep

        return SequentialStep(self._made(parameters), self._step(parameters))

    def _made(self, parameters: Parameters) -> torch.nn.Module:
        return sequential_module(self.sequential, parameters, ENTRIES_OF_PIPELINE, self.device_type)

    def build(self, comm: Communicator, /, **parameters: Any) -> Layer:
        """Make the pipeline of a case on this rank. Raises the same `ValueError` on all ranks if it does not fit them. Collective."""
        from adjointlab.torch_distributed.names import Names
        from adjointlab.torch_distributed.pipelines import EndStages, PipelineStep, fault_of

        inputs, target = shapes_of(parameters["inputs"]), self._target(parameters)
        first = self.twin(**parameters)
        outputs = self._results(first, parameters, target)
        module = self._made(parameters)
        require_made_anew(first.made, module)
        frozen = freeze(module, parameters.get("frozen", 0), leaves_one=True)
        names = Names.of(module)
        known = dict(module.named_parameters()) | dict(module.named_buffers())
        stages, described = self._stages(module, parameters)
        ranks: list[RankStages] = comm.allgather(described)
        if fault := fault_of(ranks, names, next(iter(inputs[0]), 1)):
            raise ValueError(fault)
        assert stages is not None
        ends = EndStages.of(ranks)
        results = [dtype_name(y) for y in outputs]
        made = PipelineStep(
            module, stages, self._step(parameters), ends, names, results, self.hooks, self.device_type
        )
        in_mode(made, parameters)
        domain = _domain(ends, parameters, target)
        by_inputs = truth_of(parameters, "input_gradient")
        without_gradient = {tensor.name for tensor in domain.tensors[-1 if by_inputs else 0 :]}
        tolerance = declared_tolerance(module, parameters)
        return Layer(
            comm,
            made,
            domain,
            _codomain(ends, outputs, len(ranks)),
            _space_of_stages(names.parameters, known, [each.parameters for each in ranks]),
            _space_of_stages(names.buffers, known, [each.buffers for each in ranks]),
            **tolerance._asdict(),
            prepare=self.prepare,
            user_class=type(made.made),
            uniform_requires_grad=True,
            frozen=frozen.union(without_gradient),
            # A hook that reduces .grad as a whole would reduce earlier gradients again.
            accumulates=not self.hooks.change_gradients,
            needs_all_outputs=True,  # only the loss has a gradient
            optimizer=self.optimizer,
            steps=self.steps,
            trained=trained(made),
        )

    def _stages(self, module: torch.nn.Module, parameters: Parameters) -> tuple[Stages | None, RankStages]:
        """Make the pipeline. A wrong result is returned, not raised: it may be wrong on one rank only, and all have to raise."""
        import torch

        from adjointlab.torch_distributed.converted_modules import convert
        from adjointlab.torch_distributed.made_parameters import made_in
        from adjointlab.torch_distributed.pipelines import RankStages, Stages

        arguments, dtype = parameters.get("pipeline", {}), getattr(torch, type_of(parameters))
        require_accepts("pipeline", self.pipeline, ("module",), arguments)
        with made_in(dtype):
            schedule = self.pipeline(module, **arguments)
        try:
            stages = Stages.of(schedule, module)
        except (TypeError, NotImplementedError) as error:
            name = getattr(self.pipeline, "__name__", "pipeline")
            return None, RankStages(f"what {name} returned: {error}")
        convert((*stages.parameters.values(), *stages.buffers.values()), dtype)  # created by `pipeline`
        return stages, stages.described()

    def _step(self, parameters: Parameters) -> Step:
        from adjointlab.torch_distributed.pipelines import Step

        return Step(self.loss, self.reduction, truth_of(parameters, "input_gradient"))

    def _target(self, parameters: Parameters) -> tuple[int, ...]:
        """The shape of the target; by default that of the output."""
        import torch

        if "target" in parameters:
            return tuple(parameters["target"])
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            zeros = [*zeros_for(parameters, self.device_type), torch.zeros(0, device=self.device_type)]
            result = self._made(parameters)(*prepared(self.prepare, *zeros)[:-1])
        return tuple(as_tuple(result)[0].shape)

    def _results(
        self, step: SequentialStep, parameters: Parameters, target: tuple[int, ...]
    ) -> tuple[torch.Tensor, ...]:
        """Loss and outputs of the sequential step for zeros, for their shapes."""
        import torch

        dtype = getattr(torch, type_of(parameters))
        of_target = torch.zeros(target, dtype=dtype, device=self.device_type)
        zeros = [*zeros_for(parameters, self.device_type), of_target]
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            results: tuple[torch.Tensor, ...] = step(*prepared(self.prepare, *zeros))
            return results


def _domain(ends: EndStages, parameters: Parameters, target: tuple[int, ...]) -> Space:
    """The inputs, on the rank of the first stage, and the target, on that of the last."""
    from adjointlab.torch_distributed.pipelines import held_by

    inputs = zip(shapes_of(parameters["inputs"]), types_of(parameters), strict=True)
    return Space(
        *(
            held_by([ends.first], shape, dtype, f"x{number or ''}")
            for number, (shape, dtype) in enumerate(inputs)
        ),
        held_by([ends.last], target, type_of(parameters), "target"),
    )


def _codomain(ends: EndStages, results: Sequence[torch.Tensor], ranks: int) -> Space:
    """The loss, which all ranks have, and the outputs of the last stage."""
    from adjointlab.torch_distributed.pipelines import held_by

    loss, *outputs = results
    return Space(
        held_by(range(ranks), (1,), dtype_name(loss), "loss"),
        *(
            held_by([ends.last], tuple(y.shape), dtype_name(y), f"y{number or ''}")
            for number, y in enumerate(outputs)
        ),
    )


def _space_of_stages(
    names: Iterable[str], tensors: Mapping[str, torch.Tensor], held: Sequence[Collection[str]]
) -> Space:
    """The space of the `tensors` with these `names`, each on the ranks that hold it; `held` has the names that each rank holds."""
    from adjointlab.torch_distributed.pipelines import held_by

    return Space(
        *(
            held_by(
                [rank for rank, of_rank in enumerate(held) if name in of_rank],
                tuple(tensors[name].shape),
                dtype_name(tensors[name]),
                name,
            )
            for name in names
        )
    )
