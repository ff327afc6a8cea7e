"""One step of a pipeline schedule as a module: from the inputs and the target of a batch to its loss and outputs.

A schedule of torch.distributed.pipelining runs the backward pass itself, and leaves the gradients of the loss in ``.grad``. As the loss
is a scalar, the gradients for a cotangent c are c times those. So the step has a backward pass like any other module, which needs no
communication.

    rank              0                 1 (the last stage)
    domain            x                 target              each on the rank of its stage
    codomain          loss              loss, y             the loss is sent to all ranks
    parameters        0.weight          1.weight            each on the ranks of its stages, of zero volume elsewhere
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle
from torch.distributed.pipelining.stage import _PipelineStageBase
from torch.distributed.tensor import DTensor

from adjointlab.core import arrays
from adjointlab.core.arrays import DeviceType
from adjointlab.core.layer import NO_HOOKS, PassHooks
from adjointlab.core.layout import Layout
from adjointlab.core.operator import as_tuple
from adjointlab.core.partition import Partition
from adjointlab.core.space import Space, Tensor
from adjointlab.torch_distributed.names import Names, sequential_name
from adjointlab.torch_distributed.numbering import Numbering
from adjointlab.torch_distributed.parallel import NamedModule

__all__ = [
    "EndStages",
    "PipelineStep",
    "RankStages",
    "SequentialStep",
    "Stages",
    "Step",
    "fault_of",
    "held_by",
]

Schedule = PipelineScheduleSingle | PipelineScheduleMulti

_BEFORE: Final = 2.0**-8
"""Part of earlier gradients that stands in ``.grad`` during a step. What rounds with it is smaller than what rounds with the whole afterwards."""


@dataclass(frozen=True)
class Step:
    """The computation of one step: the loss of a batch, the "mean" or the "sum" of the losses of its microbatches."""

    loss: Callable[..., torch.Tensor]
    reduction: str
    by_inputs: bool  # if there are gradients by the inputs too


class SequentialStep(NamedModule):
    """The step of the sequential module, on the whole batch."""

    def __init__(self, module: nn.Module, step: Step) -> None:
        super().__init__(module, dict(module.named_parameters()), Names.of(module).buffers, NO_HOOKS)
        self._step = step

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *inputs, target = given
        result = self.made(*(inputs if self._step.by_inputs else (x.detach() for x in inputs)))
        loss = self._step.loss(result, target.detach())
        if loss.numel() != 1:
            raise TypeError(
                f"the loss of a batch has shape {tuple(loss.shape)}: it has to be a scalar, such as a mean"
            )
        outputs = (output.detach() for output in as_tuple(result))
        return (self._with_gradients(loss.reshape(1), given), *outputs)

    def _with_gradients(self, loss: torch.Tensor, given: Sequence[torch.Tensor]) -> torch.Tensor:
        """The loss with gradients that are computed now, as in a schedule: user code may add to them, say for an auxiliary loss."""
        if not loss.requires_grad:
            return loss
        leaves = [each for each in (*given, *self.made.parameters()) if each.requires_grad]
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        return _loss_with_gradients(loss, gradients, leaves)


@dataclass(frozen=True)
class RankStages:
    """Description of the schedule and stages of one rank, as data that ranks compare."""

    fault: str = ""
    schedule: str = ""
    microbatches: int = 0
    group_size: int = 0
    count: int = 0  # of stages, on all ranks
    ranks: Mapping[int, int] | None = None  # by stage of this rank: where the schedule expects it
    parameters: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return f"{self.schedule} of {self.microbatches} microbatches and {self.count} stages"

    @property
    def stages(self) -> tuple[int, ...]:
        return tuple(self.ranks or ())


@dataclass(frozen=True)
class Stages:
    """The schedule of this rank, and the parameters and buffers of its stages by the names of the sequential module."""

    schedule: Schedule
    stages: Sequence[_PipelineStageBase]
    parameters: Mapping[str, nn.Parameter]
    buffers: Mapping[str, torch.Tensor]

    @classmethod
    def of(cls, schedule: object, module: nn.Module) -> Stages:
        """Read a schedule whose stages are made from parts of `module`. Raises `TypeError` for anything else."""
        if not isinstance(schedule, Schedule):
            raise TypeError(f"{schedule!r} is not a schedule of torch.distributed.pipelining")
        stages = schedule._stages if isinstance(schedule, PipelineScheduleMulti) else [schedule._stage]
        parameters: dict[str, nn.Parameter] = {}
        buffers: dict[str, torch.Tensor] = {}
        known_parameters, known_buffers = dict(module.named_parameters()), dict(module.named_buffers())
        every, tied = dict(module.named_parameters(remove_duplicate=False)), Names.of(module).tied
        for stage in stages:
            number = _numbering(stage.submod, known_parameters)
            for path, held in stage.submod.named_parameters():
                found = _parameter_name(every, path, held, number)
                # Stages may have copies of a tied parameter under different names.
                first = tied.get(found, found)
                if parameters.setdefault(first, held) is not held:
                    raise TypeError(
                        f"stages of one rank have two parameters that are {first} in the sequential module: tie them again"
                    )
            for path, buffer in stage.submod.named_buffers():
                if (name := _name_of(known_buffers, path, buffer, number)) is not None:
                    buffers[name] = buffer
        return cls(schedule, stages, parameters, buffers)

    def described(self) -> RankStages:
        """Describe them as data, for the other ranks."""
        first = self.stages[0]
        if self.schedule._loss_fn is None:
            return RankStages("the schedule has no loss_fn, so that it has no backward pass")
        return RankStages(
            "",
            type(self.schedule).__name__,
            self.schedule._n_microbatches,
            first.group_size,
            first.num_stages,
            {stage.stage_index: stage.stage_index_to_group_rank[stage.stage_index] for stage in self.stages},
            tuple(self.parameters),
            tuple(self.buffers),
        )


def _numbering(stage: nn.Module, known: Mapping[str, torch.Tensor]) -> Numbering:
    """The numbers in the sequential module of a stage's layers, which may be copies that are numbered from 0."""
    own = {id(held) for held in known.values()}
    parts = {
        sequential_name(path, known) or path: arrays.to_numpy(held.detach())
        for path, held in stage.named_parameters()
        if id(held) not in own and not isinstance(held, DTensor)
    }
    wholes = {name: arrays.to_numpy(held.detach()) for name, held in known.items()} if parts else {}
    return Numbering(parts, wholes)


def _name_of(
    known: Mapping[str, torch.Tensor], path: str, held: torch.Tensor, number: Numbering
) -> str | None:
    """The name of a tensor of a stage: that of the same tensor, else one that fits its path."""
    same = next((name for name, tensor in known.items() if tensor is held), None)
    if same is not None or (name := sequential_name(path, known)) is None:
        return same
    return renumbered if (renumbered := number(name)) in known else name


def _parameter_name(
    known: Mapping[str, torch.Tensor], path: str, held: torch.Tensor, number: Numbering
) -> str:
    """The name of a parameter of a stage. Raises `NotImplementedError` for a DTensor, `TypeError` if it has no name."""
    if isinstance(held, DTensor):
        raise NotImplementedError(
            f"the parameter {path} of a stage is a DTensor: pipelines of sharded stages are not compared"
        )
    name = _name_of(known, path, held, number)
    if name is None or known[name].shape != held.shape:
        raise TypeError(
            f"a stage has a parameter {path}, and the sequential module none of that name: make stages of parts of the module that "
            "the function is given, or keep the names of its parameters"
        )
    return name


def fault_of(ranks: Sequence[RankStages], names: Names, rows: int) -> str:
    """Describe the first fault of schedules and stages in one sentence; empty if there is none."""
    for rank, each in enumerate(ranks):
        if each.fault:
            return f"{each.fault} (rank {rank})"
    first = ranks[0]
    for rank, each in enumerate(ranks):
        if each.text != first.text:
            return f"rank 0 has a {first.text}, and rank {rank} a {each.text}"
        if each.group_size != len(ranks):
            return f"the stages of rank {rank} are on a group of {each.group_size} ranks, and the case has {len(ranks)}"
        for stage, wanted in (each.ranks or {}).items():
            if wanted != rank:
                return f"rank {rank} has stage {stage}, and {each.schedule} looks for it on rank {wanted}"
    for stage in range(first.count):
        if not any(stage in each.stages for each in ranks):
            return (
                f"no rank has stage {stage} of {first.count}: {first.schedule} has stages {', '.join(map(str, first.stages))} "
                f"on rank 0 of {len(ranks)}{_advice_on_ranks(first.count, len(ranks))}"
            )
    if rows < first.microbatches:
        return f"the batch has {rows} rows, too few for {first.microbatches} microbatches"
    if len(ranks) > 1 and rows % first.microbatches:
        return (
            f"the batch has {rows} rows, which {first.microbatches} microbatches cannot share evenly: torch's stages receive parts of "
            "the size of the first"
        )
    for name in names.parameters:
        if not any(name in each.parameters for each in ranks):
            return (
                f"no stage has the parameter {name} of the sequential module: make stages of parts of the module that the "
                "function is given, which together are all of it"
            )
    return ""


def _advice_on_ranks(stages: int, ranks: int) -> str:
    return "; where the stages are fixed, `ranks` says on how many they are" if ranks < stages else ""


@dataclass(frozen=True)
class EndStages:
    """The ranks of the first and of the last stage, and whether the schedule can run forward only."""

    first: int
    last: int
    evaluates: bool

    @classmethod
    def of(cls, ranks: Sequence[RankStages]) -> EndStages:
        rank_of = {stage: rank for rank, each in enumerate(ranks) for stage in each.stages}
        # `eval` of torch 2.13 fails if a stage follows another one on the same rank: it needs a gradient that does not exist.
        evaluates = all(rank_of[stage] != rank_of[stage - 1] for stage in rank_of if stage)
        return cls(rank_of[0], rank_of[len(rank_of) - 1], evaluates)


class PipelineStep(NamedModule):
    """The step of a schedule whose first and last stages are at these `ends`. `results` are the element types of loss and outputs.

    In place of tensors that only other ranks hold, a rank has empty ones on `device_type`.
    """

    def __init__(
        self,
        module: nn.Module,
        stages: Stages,
        step: Step,
        ends: EndStages,
        names: Names,
        results: Sequence[str],
        hooks: PassHooks,
        device_type: DeviceType,
    ) -> None:
        dtype = getattr(torch, results[0])
        parameters = {
            name: stages.parameters[name]
            if name in stages.parameters
            else nn.Parameter(torch.zeros(0, dtype=dtype, device=device_type))
            for name in names.parameters
        }
        super().__init__(module, parameters, names.buffers, hooks)
        self._stages, self._step, self._ends = stages, step, ends
        self._results = tuple(getattr(torch, name) for name in results)
        self._device_type = device_type

    def train(self, mode: bool = True) -> PipelineStep:
        for stage in self._stages.stages:
            stage.submod.train(mode)
        return super().train(mode)

    def get_buffer(self, target: str) -> torch.Tensor:
        return self._stages.buffers.get(target, torch.zeros(0, device=self._device_type))

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *drawn, target = given
        # torch before 2.13 refuses inputs whose strides are not those of the first step.
        inputs = [x.contiguous() for x in drawn]
        if not torch.is_grad_enabled() and self._ends.evaluates:
            return self._stepped(self._stages.schedule.eval, inputs, target)
        by_inputs = self._step.by_inputs
        leaves = [x.detach().requires_grad_(by_inputs and x.requires_grad) for x in inputs]
        held = [p for p in self._stages.parameters.values() if p.requires_grad]
        # A schedule that scales gradients scales what stands in .grad before, too: so its steps do not add up.
        adds_up = not self._stages.schedule.scale_grads
        with torch.enable_grad(), _gradients_of_step(held, adds_up=adds_up) as gradients_of:
            loss, *outputs = self._stepped(self._stages.schedule.step, leaves, target)
            gradients = [*(leaf.grad for leaf in leaves), *gradients_of()]
        behind = (*(inputs if by_inputs else leaves), *held)
        return (_loss_with_gradients(loss, gradients, behind), *outputs)

    def _stepped(
        self, call: Callable[..., Any], inputs: Sequence[torch.Tensor], target: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """The loss and, on the rank of the last stage, the outputs."""
        rank, losses = dist.get_rank(), list[torch.Tensor]()
        is_last = rank == self._ends.last
        result = call(
            *(inputs if rank == self._ends.first else ()),
            **(dict(target=target.detach(), losses=losses) if is_last else {}),
        )
        zeros = partial(torch.zeros, device=self._device_type)
        loss = zeros(1, dtype=self._results[0])
        if is_last:
            of_each = torch.stack([each.detach().reshape(()) for each in losses])
            loss += of_each.mean() if self._step.reduction == "mean" else of_each.sum()
        dist.broadcast(loss, self._ends.last)
        if not is_last:
            return (loss, *(zeros(0, dtype=dtype) for dtype in self._results[1:]))
        return (loss, *(y.detach() for y in as_tuple(result)))


@contextmanager
def _gradients_of_step(
    parameters: Sequence[nn.Parameter], *, adds_up: bool
) -> Iterator[Callable[[], list[torch.Tensor | None]]]:
    """Context of a step, with a function that returns what the step adds to gradients of parameters.

    They begin with small multiples of those that they had, if the step `adds_up`, or with none. Afterwards they have those again.
    """
    earlier = [parameter.grad for parameter in parameters]
    before = [None if each is None or not adds_up else each * _BEFORE for each in earlier]
    try:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
        yield lambda: [
            _added(parameter.grad, each) for parameter, each in zip(parameters, before, strict=True)
        ]
    finally:
        for parameter, gradient in zip(parameters, earlier, strict=True):
            parameter.grad = gradient


def _added(gradient: torch.Tensor | None, before: torch.Tensor | None) -> torch.Tensor | None:
    if before is None:
        return gradient
    return -before if gradient is None else gradient - before


def _loss_with_gradients(
    loss: torch.Tensor, gradients: Sequence[torch.Tensor | None], leaves: Sequence[torch.Tensor]
) -> torch.Tensor:
    function: Any = _WithGradients
    result: torch.Tensor = function.apply(loss.detach(), gradients, *leaves)
    return result


class _WithGradients(torch.autograd.Function):
    """The loss with gradients that have been computed already."""

    @staticmethod
    def forward(
        ctx: Any, loss: torch.Tensor, gradients: Sequence[torch.Tensor | None], *leaves: torch.Tensor
    ) -> torch.Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> Any:
        by = cotangent.reshape(())
        return (None, None, *(None if each is None else each * by for each in ctx.gradients))


# Spaces


def held_by(ranks: Sequence[int], shape: Sequence[int], dtype: str, name: str) -> Tensor:
    """A tensor of which only these ranks hold copies."""
    partition = Partition((len(ranks),), ranks)
    layout = Layout(tuple(shape), partition, axes=(None,) * len(shape))
    return Space(layout, dtype=dtype, types=("invariant",), name=name).tensors[0]
