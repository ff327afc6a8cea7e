"""ColossalAI 0.5.0: the functions of tensor and sequence parallelism, and the loss of a cut vocabulary.

adjointlab check examples/released/released_colossalai.py --check adjoint --check gradients

The package asks for torch 2.5 and an old transformers, which its other modules need.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist
from exchanges import exchange, length_and_heads
from hypothesis import strategies as st
from parts_of_packages import without_init
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard

import adjointlab as al

parts = ("nn", "pipeline", "shardformer", "shardformer.layer")
without_init("colossalai", *(f"colossalai.{part}" for part in parts))
sys.modules["colossalai.shardformer.shard"] = SimpleNamespace(ShardConfig=object)

from colossalai.shardformer.layer import _operation as functions  # noqa: E402
from colossalai.shardformer.layer.loss import cross_entropy_1d  # noqa: E402

SEQUENCE = 1


def group():
    return dist.group.WORLD


def check(name, function, source, target, **options):
    def cases(draw, ranks):
        shape = 2, ranks * draw(st.integers(1, 2)), 3
        domain, codomain = (al.Space.of_dtensor((ranks,), [kind], shape) for kind in (source, target))
        return dict(domain=domain, codomain=codomain, gain=ranks)

    return al.subject.autograd(
        lambda x: function(x.contiguous()),  # they say nothing about other tensors
        process_group=True,
        reference=lambda x: x,
        name=f"colossalai.{name}",
        **options,
    )(cases)


CUT = Shard(SEQUENCE)
gathered = check(
    "gather", lambda x: functions.gather_forward_split_backward(x, SEQUENCE, group()), CUT, Replicate()
)
split = check(
    "split", lambda x: functions.split_forward_gather_backward(x, SEQUENCE, group()), Replicate(), CUT
)
gathered_for_each = check(
    "gather_scatter",
    lambda x: functions.gather_forward_reducescatter_backward(x, group(), SEQUENCE),
    CUT,
    "replicated",
)
scattered = check(
    "scatter_gather",
    lambda x: functions.reducescatter_forward_gather_backward(x, group(), SEQUENCE),
    Partial(),
    CUT,
)
reduced_in_place = check(
    "reduce.in_place", lambda x: functions.reduce_forward(x, group()), Partial(), Replicate(), ranks=(2,)
)
copied_in_place = check(
    "copy.in_place", lambda x: functions.reduce_backward(x, group()), Replicate(), "replicated", ranks=(2,)
)


def exchanged(x, scatter, gather):
    return functions.all_to_all_comm(x, group(), scatter, gather)


exchanges = exchange("colossalai.exchange", exchanged, length_and_heads, (1, 2))


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(3, 8), nn.Linear(8, 3, bias=False)

    def forward(self, x):
        return self.down(self.up(x).sin())


class CutPerceptron(nn.Module):
    """With its hidden layer cut, and the sequence outside it."""

    def __init__(self, module, up_in_ring, down_in_ring):
        super().__init__()
        self.rings = up_in_ring, down_in_ring
        self.up, self.down = nn.Linear(1, 1), nn.Linear(1, 1, bias=False)
        for part, whole, dims in ((self.up, module.up, (0, 0)), (self.down, module.down, (1,))):
            for (name, parameter), dim in zip(whole.named_parameters(), dims, strict=True):
                own = parameter.detach().chunk(dist.get_world_size(), dim)[dist.get_rank()].clone()
                setattr(part, name, nn.Parameter(own, parameter.requires_grad))

    def forward(self, x):
        up, down = self.up, self.down
        hidden = functions.linear_gather_forward_reducescatter_backward(
            x.contiguous(), up.weight, up.bias, group(), True, SEQUENCE, self.rings[0]
        )
        return functions.linear_reducescatter_forward_gather_backward(
            hidden.sin(), down.weight, None, group(), SEQUENCE, self.rings[1]
        )


def check_perceptron(name, up_in_ring=False, down_in_ring=False, ranks=(2, 4)):
    def cases(draw, ranks):
        return dict(
            inputs=(draw(st.integers(1, 2)), ranks * draw(st.integers(1, 2)), 3),
            mesh=(ranks,),
            input_placements=[[CUT]],
            output_placements=[[CUT]],
            parameter_placements={
                "up.weight": [Shard(0)],
                "up.bias": [Shard(0)],
                "down.weight": [Shard(1)],
            },
        )

    return al.subject.parallel(
        Perceptron,
        lambda module, mesh: CutPerceptron(module, up_in_ring, down_in_ring),
        ranks=ranks,
        name=f"colossalai.perceptron{name}",
    )(cases)


perceptron = check_perceptron("")
ring_down = check_perceptron(".ring_down", down_in_ring=True)
ring_up = check_perceptron(".ring_up", up_in_ring=True, ranks=(2,))

WORDS = 4
"""On each rank."""


class Loss(nn.Module):
    def forward(self, logits, targets):
        return nn.functional.cross_entropy(logits, targets)


class LossOfCutVocabulary(nn.Module):
    def forward(self, logits, targets):
        return cross_entropy_1d(
            logits.contiguous(), targets.contiguous(), process_group=group(), dtype=logits.dtype
        )


def check_loss(name, prepare, number=None, **options):
    def cases(draw, ranks):
        rows = number or draw(st.integers(1, 4))
        return dict(
            inputs=[(rows, WORDS * ranks), (rows,)],
            input_dtypes=["float64", "int64"],
            input_placements=[[Shard(1)], [Replicate()]],
            rounding="float32",
        )

    return al.subject.parallel(
        Loss,
        lambda module, mesh: LossOfCutVocabulary(),
        prepare=prepare,
        name=f"colossalai.loss{name}",
        **options,
    )(cases)


loss = check_loss("", lambda logits, targets: (logits.sin(), targets.abs() % WORDS))
ignored = check_loss(
    ".ignored",
    lambda logits, targets: (logits.sin(), torch.where(targets == 1, -100, targets.abs() % WORDS)),
)
certain = check_loss(
    ".certain", lambda logits, targets: (1000 * logits.sin(), targets.abs() % WORDS), 4, ranks=(1,)
)
