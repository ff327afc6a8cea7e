"""nanotron 0.4: the functions of tensor parallelism, its linear layers and the cross-entropy of a cut vocabulary.

adjointlab check examples/released/released_nanotron.py --check adjoint --check gradients
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist
from cut_vocabulary import logits_and_targets
from hypothesis import strategies as st
from parts_of_packages import without_init
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.nn.functional import cross_entropy, gelu

import adjointlab as al

# Its modules import one another in a circle. The only thing needed of this one is a check of the environment for devices.
without_init("nanotron", "nanotron.parallel", "nanotron.parallel.tensor_parallel")
sys.modules["nanotron.parallel.utils"] = SimpleNamespace(assert_cuda_max_connections_set_to_1=lambda f: f)
from nanotron.parallel.tensor_parallel import distributed_differentiable_primitives as primitives  # noqa: E402
from nanotron.parallel.tensor_parallel import functional  # noqa: E402
from nanotron.parallel.tensor_parallel.enum import TensorParallelLinearMode as Mode  # noqa: E402


def check(name, function, source, target):
    """A function of a tensor that is cut along its rows, or whole."""

    def cases(draw, ranks):
        shape = ranks * draw(st.integers(1, 2)), draw(st.integers(1, 3))
        domain, codomain = (al.Space.of_dtensor((ranks,), [kind], shape) for kind in (source, target))
        return dict(gain=ranks, domain=domain, codomain=codomain)

    return al.subject.autograd(
        lambda x: function(x, dist.group.WORLD),
        process_group=True,
        reference=lambda x: x,
        orders=("row-major",),
        name=f"nanotron.{name}",
    )(cases)


rows = Shard(0)
copied = check("copy", primitives.differentiable_identity, Replicate(), "replicated")
reduced = check("reduce", primitives.differentiable_all_reduce_sum, Partial(), Replicate())
gathered = check("gather", primitives.differentiable_all_gather, rows, "replicated")
copied_in_place = check("copy.in_place", primitives.differentiable_identity, Replicate(), "replicated")
reduced_in_place = check("reduce.in_place", primitives.differentiable_all_reduce_sum, Partial(), Replicate())
scattered = check("reduce_scatter", primitives.differentiable_reduce_scatter_sum, Partial(), rows)


class Perceptron(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(gelu(self.up(x)))


class ParallelPerceptron(nn.Module):
    """The package's modules hold what this one holds: the last bias is on rank 0 alone."""

    def __init__(self, whole, mode, overlaps):
        super().__init__()
        self.mode, self.overlaps = mode, overlaps
        self.up, self.down = nn.Module(), nn.Module()
        self.up.weight = self.part(whole.up.weight, 0)
        self.up.bias = self.part(whole.up.bias, 0)
        self.down.weight = self.part(whole.down.weight, 1)
        self.down.bias = None if dist.get_rank() else nn.Parameter(whole.down.bias.detach().clone())

    def part(self, parameter, dim):
        return nn.Parameter(parameter.detach().chunk(dist.get_world_size(), dim)[dist.get_rank()].clone())

    def forward(self, x):
        group = dist.group.WORLD
        # The layers that overlap want contiguous tensors.
        x = x.contiguous()
        hidden = functional.column_linear(x, self.up.weight, self.up.bias, group, self.mode, self.overlaps)
        overlaps = self.overlaps and self.mode is Mode.REDUCE_SCATTER  # the package refuses the other
        return functional.row_linear(
            gelu(hidden), self.down.weight, self.down.bias, group, self.mode, overlaps
        )


def check_perceptron(name, mode, overlaps=False, **options):
    def cases(draw, ranks):
        placement = Shard(0) if mode is Mode.REDUCE_SCATTER else Replicate()
        return dict(
            inputs=(ranks * draw(st.integers(1, 2)), draw(st.integers(1, 2)), 3),
            width=3,
            hidden=ranks * draw(st.integers(1, 2)),
            input_placements=[[placement]],
            output_placements=[[placement]],
            parameter_placements={
                "up.weight": [Shard(0)],
                "up.bias": [Shard(0)],
                "down.weight": [Shard(1)],
            },
        )

    return al.subject.parallel(
        Perceptron,
        lambda module, mesh: ParallelPerceptron(module, mode, overlaps),
        name=f"nanotron.perceptron.{name}",
        **options,
    )(cases)


whole_sequences = check_perceptron("whole", Mode.ALL_REDUCE)
whole_overlapping = check_perceptron("whole.overlapping", Mode.ALL_REDUCE, overlaps=True)
cut_sequences = check_perceptron("cut", Mode.REDUCE_SCATTER)
cut_overlapping = check_perceptron("cut.overlapping", Mode.REDUCE_SCATTER, overlaps=True, ranks=(2,))


class Loss(nn.Module):
    def forward(self, logits, target):
        losses = cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
        return losses.reshape(target.shape)


class LossOfParts(nn.Module):
    def forward(self, logits, target):
        return functional.sharded_cross_entropy(logits.contiguous(), target.contiguous(), dist.group.WORLD)


losses = al.subject.parallel(
    Loss,
    lambda module, mesh: LossOfParts(),
    prepare=lambda logits, target: (torch.sin(logits), target % 2),
    name="nanotron.loss",
)(logits_and_targets)
