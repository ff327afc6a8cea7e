"""muon-optimizer 0.1.0: an optimiser whose steps the ranks of DistributedDataParallel share, a parameter each.

adjointlab check examples/released/released_muon.py --check training

Parameters that are gathered together have one shape, which gloo asks for.
"""

from __future__ import annotations

from hypothesis import strategies as st
from muon import Muon
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import adjointlab as al

WIDTH = 3


def network(layers):
    return nn.Sequential(
        *(each for _ in range(layers) for each in (nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh()))
    )


def check(name, layers, **options):
    def cases(draw, ranks):
        return dict(inputs=(2 * ranks, WIDTH), layers=draw(layers(ranks)), frozen=0)

    return al.subject.parallel(
        network,
        lambda module, mesh: DistributedDataParallel(module),
        data_parallel="mean",
        optimizer=lambda parameters: Muon(list(parameters)),
        steps=3,
        name=f"muon.{name}",
        **options,
    )(cases)


even = check("even", lambda ranks: st.integers(1, 2).map(lambda rounds: ranks * rounds))
uneven = check("uneven", lambda ranks: st.just(ranks + 1), ranks=(3,))
