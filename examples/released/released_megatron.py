"""Megatron-core 0.16: the functions of `tensor_parallel.mappings`, which lead into and out of parallel regions, its linear layers and its loss.

adjointlab check examples/released/released_megatron.py --check adjoint --check sequential --check gradients
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from cut_vocabulary import logits_and_targets
from hypothesis import strategies as st
from megatron.core import parallel_state
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear, mappings
from megatron.core.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.nn.functional import cross_entropy, gelu

import adjointlab as al
from adjointlab.adapters.regions import region

if not torch.cuda.is_available():
    # Where buffers are allocated on "the current device", that of a process without one is the CPU.
    torch.cuda.current_device = lambda: "cpu"

CONTIGUOUS = ("row-major",)


def check(kind, function, name, orders=CONTIGUOUS, ranks=(1, 2, 3, 4, 8), **options):
    """The function in the default group, on tensors whose cut dimension the ranks share evenly."""

    def in_default_group(x, **options):
        return function(x, group=dist.group.WORLD, **options)

    def cases(draw, count):
        rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        return {**region(kind, (rows * count, columns * count), count), **options}

    return al.subject.autograd(in_default_group, process_group=True, name=name, orders=orders, ranks=ranks)(
        cases
    )


copies = check("copy", mappings.copy_to_tensor_model_parallel_region, "megatron.copy")
sums = check("reduce", mappings.reduce_from_tensor_model_parallel_region, "megatron.reduce")
copies_in_place = check("copy", mappings.copy_to_tensor_model_parallel_region, "megatron.copy.in_place")
sums_in_place = check("reduce", mappings.reduce_from_tensor_model_parallel_region, "megatron.reduce.in_place")
scatters = check("scatter", mappings.scatter_to_tensor_model_parallel_region, "megatron.scatter")
gathers = check("gather", mappings.gather_from_tensor_model_parallel_region, "megatron.gather")
sequence_scatters = check(
    "scatter sequence", mappings.scatter_to_sequence_parallel_region, "megatron.scatter_sequence"
)
sequence_gathers = check(
    "gather sequence", mappings.gather_from_sequence_parallel_region, "megatron.gather_sequence"
)
whole_gradients = check(
    "gather sequence, whole gradient",
    mappings.gather_from_sequence_parallel_region,
    "megatron.gather_sequence.whole",
    tensor_parallel_output_grad=False,
)
sequence_sums = check(
    "reduce-scatter sequence",
    mappings.reduce_scatter_to_sequence_parallel_region,
    "megatron.reduce_scatter_sequence",
)
last_gathers = check(
    "all-gather", mappings.all_gather_last_dim_from_tensor_parallel_region, "megatron.all_gather_last"
)
last_sums = check(
    "reduce-scatter",
    mappings.reduce_scatter_last_dim_to_tensor_parallel_region,
    "megatron.reduce_scatter_last",
)
to_hidden = check("sequence to hidden", mappings.all_to_all_sp2hp, "megatron.all_to_all_sp2hp")
to_sequence = check("hidden to sequence", mappings.all_to_all_hp2sp, "megatron.all_to_all_hp2sp")

copies_of_any_order = check(
    "copy", mappings.copy_to_tensor_model_parallel_region, "megatron.copy.transposed", ("column-major",), (2,)
)


def with_sizes(function):
    def in_default_group(x, sizes):
        return function(x, group=dist.group.WORLD, **sizes)

    return in_default_group


def uneven(kind, name, keyword):
    def cases(draw, count):
        sizes = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
        spaces = region(kind, (sum(sizes), draw(st.integers(1, 3))), count, sizes=sizes)
        return dict(**spaces, sizes={keyword: sizes})

    return cases


uneven_gathers = al.subject.autograd(
    with_sizes(mappings.gather_from_sequence_parallel_region),
    process_group=True,
    name="megatron.gather_sequence.uneven",
    orders=CONTIGUOUS,
)(uneven("gather sequence", "gather", "output_split_sizes"))
uneven_sums = al.subject.autograd(
    with_sizes(mappings.reduce_scatter_to_sequence_parallel_region),
    process_group=True,
    name="megatron.reduce_scatter_sequence.uneven",
    orders=CONTIGUOUS,
)(uneven("reduce-scatter sequence", "sum", "input_split_sizes"))


# Modules: the package keeps its groups in variables


def initialize():
    parallel_state.initialize_model_parallel(dist.get_world_size())


class Loss(nn.Module):
    """Cross-entropy of each position. Megatron gives the smoothing to all words but the right one, and torch to all words."""

    def __init__(self, smoothing):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits, target):
        words = logits.shape[-1]
        smoothing = self.smoothing * words / (words - 1)
        losses = cross_entropy(
            logits.flatten(0, 1), target.flatten(), label_smoothing=smoothing, reduction="none"
        )
        return losses.reshape(target.shape)


class ParallelLoss(Loss):
    def forward(self, logits, target):
        # It works in the memory of contiguous logits of float32.
        logits = logits.clone(memory_format=torch.contiguous_format)
        return vocab_parallel_cross_entropy(logits, target.contiguous(), self.smoothing)


class LossInPlace(Loss):
    def forward(self, logits, target):
        return vocab_parallel_cross_entropy(logits.contiguous(), target.contiguous(), self.smoothing)


def check_loss(name, kind, smoothing, **options):
    def parallelize(module, mesh):
        initialize()
        return kind(module.smoothing)

    def cases(draw, ranks):
        return dict(logits_and_targets(draw, ranks), smoothing=smoothing)

    return al.subject.parallel(
        Loss,
        parallelize,
        name=f"megatron.{name}",
        rank_local=("megatron.core",),
        prepare=lambda logits, target: (torch.sin(logits), target % 2),
        **options,
    )(cases)


losses = check_loss("loss", ParallelLoss, 0.0)
smoothed_losses = check_loss("loss.smoothed", ParallelLoss, 0.1, ranks=(2,))
losses_in_place = check_loss("loss.in_place", LossInPlace, 0.0, ranks=(1,))


class Perceptron(nn.Module):
    def __init__(self, width, hidden, trains_biases_alone):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        for layer in self.children() if trains_biases_alone else ():
            layer.weight.requires_grad_(False)

    def forward(self, x):
        return self.down(gelu(self.up(x)))


class ParallelPerceptron(nn.Module):
    def __init__(self, module, is_sequence_parallel):
        super().__init__()
        config = ModelParallelConfig(
            tensor_model_parallel_size=dist.get_world_size(),
            sequence_parallel=is_sequence_parallel,
            use_cpu_initialization=True,
            perform_initialization=False,
            params_dtype=module.up.weight.dtype,
        )
        sides, options = (
            (module.up.in_features, module.up.out_features),
            dict(config=config, init_method=None),
        )
        self.up = ColumnParallelLinear(*sides, **options)
        self.down = RowParallelLinear(
            *reversed(sides), bias=True, input_is_parallel=True, skip_bias_add=False, **options
        )

    def forward(self, x):
        return self.down(gelu(self.up(x)[0]))[0]


def sum_gradient_of_bias(module):
    # As Megatron's training loop does for parameters beside the sequence.
    if module.down.bias.grad is not None:
        dist.all_reduce(module.down.bias.grad)


def check_perceptron(name, is_sequence_parallel=False, trains_biases_alone=False, **options):
    def parallelize(module, mesh):
        initialize()
        parallel = ParallelPerceptron(module, is_sequence_parallel)
        for name, parameter in parallel.named_parameters():
            parameter.requires_grad_(module.get_parameter(name).requires_grad)
        return parallel

    def cases(draw, ranks):
        cut = [[Shard(0)]] if is_sequence_parallel else [[Replicate()]]
        return dict(
            inputs=(ranks * draw(st.integers(1, 2)), draw(st.integers(1, 2)), 3),
            width=3,
            hidden=ranks * draw(st.integers(1, 2)),
            trains_biases_alone=trains_biases_alone,
            frozen=0,
            input_placements=cut,
            output_placements=cut,
            parameter_placements={
                "up.weight": [Shard(0)],
                "up.bias": [Shard(0)],
                "down.weight": [Shard(1)],
            },
        )

    return al.subject.parallel(
        Perceptron, parallelize, name=f"megatron.{name}", rank_local=("megatron.core",), **options
    )(cases)


perceptrons = check_perceptron("perceptron")
trained_biases = check_perceptron("perceptron.biases", trains_biases_alone=True, ranks=(2,))
sequence_perceptrons = check_perceptron(
    "perceptron.sequence", True, after_backward=sum_gradient_of_bias, ranks=(2, 3, 4)
)
