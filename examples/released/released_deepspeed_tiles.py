"""DeepSpeed 0.19.8: layers and losses that are computed tile by tile of a long sequence, which has no part on other ranks.

adjointlab check examples/released/released_deepspeed_tiles.py --check gradients
"""

from __future__ import annotations

import torch
from deepspeed.runtime.sequence_parallel.ulysses_sp import (
    TiledFusedLogitsLoss,
    TiledMLP,
    sequence_tiled_compute,
)
from hypothesis import strategies as st
from torch import nn

import adjointlab as al

WIDTH, WORDS = 3, 4


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 5), nn.Linear(5, WIDTH)

    def forward(self, x):
        return self.down(self.up(x).sin())


class Tiled(nn.Module):
    """A module whose function is `function(module, parameters, *inputs)`."""

    def __init__(self, module, function, input_has_graph):
        super().__init__()
        for name, child in module.named_children():
            self.add_module(name, child)
        self.kind, self.function, self.input_has_graph = type(module), function, input_has_graph

    def forward(self, x, *inputs):
        if self.input_has_graph:
            x = x + torch.zeros((), dtype=x.dtype, requires_grad=True)
        return self.function(self, list(self.parameters()), x, *inputs)


def check(name, module, function, cases=None, input_has_graph=True, **options):
    return al.subject.parallel(
        module,
        lambda whole, mesh: Tiled(whole, function, input_has_graph),
        ranks=(1,),
        name=f"deepspeed.{name}",
        **options,
    )(cases or rows)


def rows(draw, ranks):
    return dict(inputs=(draw(st.integers(1, 2)), draw(st.sampled_from([2, 4])), WIDTH))


def tiled_layer(module, parameters, x):
    return TiledMLP.apply(module.kind.forward, module, x, 2, parameters)


def computed(module, parameters, x):
    function = module.kind.forward
    return sequence_tiled_compute(
        lambda x: function(module, x), x.shape[1], 2, {"x": x}, {}, "x", parameters, 1, None
    )


class Mean(Perceptron):
    """The mean over all elements."""

    def forward(self, x):
        return super().forward(x).mean()


def mean(module, parameters, x):
    return sequence_tiled_compute(
        lambda x: Perceptron.forward(module, x).mean(),
        x.shape[1],
        2,
        {"x": x},
        {},
        "x",
        parameters,
        0,
        "mean",
    )


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x, words):
        return nn.functional.cross_entropy(self.head(x).flatten(0, -2), words.flatten())


def tiled_loss(module, parameters, x, words):
    return TiledFusedLogitsLoss.apply(module.kind.forward, module, x, words, None, 2, parameters, "mean")


def with_words(draw, ranks):
    shape = draw(st.integers(1, 2)), draw(st.sampled_from([2, 4]))
    return dict(inputs=[(*shape, WIDTH), shape], input_dtypes=["float64", "int64"])


def legal(x, words):
    return x.sin(), words.abs() % WORDS


layer = check("tiles.layer", Perceptron, tiled_layer)
compute = check("tiles.compute", Perceptron, computed)
of_frozen = check("tiles.layer.of_frozen", Perceptron, tiled_layer, input_has_graph=False)
without_list = check(
    "tiles.compute.without_list", Perceptron, lambda module, parameters, x: computed(module, None, x)
)
means = check("tiles.mean", Mean, mean)
loss = check("tiles.loss", Loss, tiled_loss, with_words, prepare=legal)
