"""A perceptron with tensor parallelism and FSDP, against the same module before: outputs, gradients, and three steps of Adam.

Without pytest it is one call: ``al.check_parallel(perceptron, parallelize, torch.randn(4, 6), mesh=("dp", "tp"), ...)``.
"""

from functools import partial

import torch
from hypothesis import strategies as st
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import adjointlab as al


def perceptron(hidden=4):
    return nn.Sequential(nn.Linear(6, hidden), nn.GELU(), nn.Linear(hidden, 3), nn.Tanh())


def parallelize(model, mesh):
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return fully_shard(model, mesh=mesh["dp"])


@al.subject.parallel(
    perceptron,
    parallelize,
    data_parallel={"dp": "mean"},
    optimizer=partial(torch.optim.Adam, lr=0.1),
    steps=3,
)
def perceptrons(draw, ranks):
    dp = draw(st.sampled_from([size for size in (1, 2, ranks) if ranks % size == 0]))
    hidden = ranks // dp * draw(st.integers(2, 3))  # these styles of torch want parts of equal size
    return dict(inputs=(draw(st.integers(1, 5)), 6), hidden=hidden, mesh={"dp": dp, "tp": ranks // dp})


TestPerceptron = al.coherence_tests(perceptrons)
