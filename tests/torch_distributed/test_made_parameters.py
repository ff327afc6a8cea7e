"""A parallel module may be made anew, in torch's default type, before it is wrapped: its parameters are of the type of the case as soon as it has them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import adjointlab as al

pytestmark = pytest.mark.mpi_skip


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def made_anew(module: nn.Module) -> nn.Sequential:
    made = perceptron()
    assert made[0].weight.dtype == module.get_parameter("0.weight").dtype == torch.float64
    made.load_state_dict(module.state_dict())
    return made


def with_a_wrapper(module: nn.Module, mesh: Any) -> nn.Module:
    return DistributedDataParallel(made_anew(module))


def in_shards(module: nn.Module, mesh: Any) -> nn.Module:
    made = made_anew(module)
    fully_shard(made[0], mesh=mesh)
    return fully_shard(made, mesh=mesh)


def with_hooks(module: nn.Module, mesh: Any) -> nn.Module:
    """Averages gradients where they are accumulated, as Megatron does."""
    made: Any = made_anew(module)
    made.nodes = [
        parameter.expand_as(parameter).grad_fn.next_functions[0][0] for parameter in made.parameters()
    ]
    for node in made.nodes:

        def average(*_: Any, parameter: nn.Parameter = node.variable) -> None:
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

        node.register_hook(average)
    module_of_case: nn.Module = made
    return module_of_case


@pytest.mark.parametrize("parallelize", [with_a_wrapper, in_shards, with_hooks])
def test_a_module_made_anew_may_be_wrapped_before_it_is_returned(parallelize: Any) -> None:
    al.check_parallel(
        perceptron,
        parallelize,
        torch.zeros(4, 3),
        data_parallel="mean",
        mesh=(2,),
        frozen=(),
        accumulates=False,
        cases=6,
    )


def rounded_before(module: nn.Module, mesh: Any) -> nn.Module:
    return DistributedDataParallel(made_anew(module).half().float())


def of_half_precision(module: nn.Module, mesh: Any) -> nn.Module:
    return DistributedDataParallel(module.half())


def converted_to_what_it_is(module: nn.Module, mesh: Any) -> nn.Module:
    return DistributedDataParallel(module).to(torch.float32)


def converted_afterwards(module: nn.Module, mesh: Any) -> nn.Module:
    return DistributedDataParallel(module).half().float()


CONVERTED: dict[str, Any] = dict(data_parallel="mean", mesh=(2,), frozen=(), checks=["gradients"])


@pytest.mark.parametrize("parallelize", [rounded_before, of_half_precision, converted_to_what_it_is])
def test_a_wrapper_stays_around_a_module_that_is_converted_as_training_may_do(parallelize: Any) -> None:
    al.check_parallel(perceptron, parallelize, torch.zeros(4, 3), cases=2, **CONVERTED)


def test_a_wrapper_loses_a_module_that_is_converted_afterwards_as_in_training() -> None:
    with pytest.raises(AssertionError, match="a mean over the ranks is missing"):
        al.check_parallel(perceptron, converted_afterwards, torch.zeros(4, 3), cases=2, **CONVERTED)


def test_modules_are_made_in_the_default_type_again_afterwards() -> None:
    al.check_parallel(perceptron, with_a_wrapper, torch.zeros(4, 3), data_parallel="mean", frozen=(), cases=2)
    assert perceptron()[0].weight.dtype == perceptron().float()[0].weight.dtype == torch.float32
    assert perceptron().half()[0].weight.dtype == torch.float16


def of_a_lazy_layer(module: Any, mesh: Any) -> nn.Module:
    made = nn.Sequential(nn.LazyLinear(4), nn.Tanh(), nn.Linear(4, 2))
    made[0](torch.zeros(1, 3))
    made.load_state_dict(module.state_dict())
    return made


@pytest.mark.filterwarnings("ignore:.*no rank communicated with another")
def test_a_layer_that_learns_its_shape_later_is_left_alone_until_then() -> None:
    al.check_parallel(perceptron, of_a_lazy_layer, torch.zeros(4, 3), frozen=(), cases=2)


class Scaled(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 3)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * super().forward(x)


def layers() -> nn.ModuleDict:
    return nn.ModuleDict({"0": Scaled(), "1": Scaled()})


class InOrder(nn.Module):
    def __init__(self, layers: nn.ModuleDict) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            x = layer(x)
        return x


def with_new_stages(module: nn.Module) -> Any:
    made, rank = InOrder(layers()), dist.get_rank()
    made.load_state_dict(module.state_dict())
    del made.layers[str(1 - rank)]
    return ScheduleGPipe(PipelineStage(made, rank, 2, torch.device("cpu")), 2, loss_fn=mse_loss)


def test_stages_of_a_pipeline_may_be_made_anew() -> None:
    al.check_pipeline(
        lambda: InOrder(layers()), with_new_stages, torch.zeros(4, 3), loss=mse_loss, ranks=2, cases=3
    )
