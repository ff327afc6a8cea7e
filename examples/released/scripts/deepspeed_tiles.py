"""DeepSpeed 0.19.8: tiles of a long sequence. `sequence_tiled_compute` divides the gradient that it gets, in place, by the number of tiles, so that a
loss beside it has another gradient; it needs the list of parameters that is documented as optional. The weights in a tile have no gradient if
its input requires none. `TiledFusedLogitsLoss` makes the gradients of weights in its forward pass, and so does not multiply them by what the loss is
multiplied by, which it does with those of the input.
"""

import torch
from deepspeed.runtime.sequence_parallel.ulysses_sp import (
    TiledFusedLogitsLoss,
    TiledMLP,
    sequence_tiled_compute,
)
from torch import nn


def mean(x, parameters):
    return sequence_tiled_compute(lambda x: x.mean(), x.shape[1], 2, {"x": x}, {}, "x", parameters, 0, "mean")


if __name__ == "__main__":
    x, beside = torch.ones(1, 4, 2, requires_grad=True), torch.ones((), requires_grad=True)
    other = beside * 1
    (mean(x, []) + other).backward()
    print(f"the gradient of a loss beside the mean: {beside.grad.item()}, should be 1")
    try:
        mean(x, None)
    except TypeError as error:
        print(f"without a list of parameters: {error}")

    layer = nn.Linear(2, 2)
    for requires_grad in (True, False):
        layer.zero_grad()
        x = torch.ones(1, 4, 2, requires_grad=requires_grad)
        y = TiledMLP.apply(lambda self, x: self(x), layer, x, 2, [layer.weight, layer.bias])
        print(
            f"an input that requires {'a' if requires_grad else 'no'} gradient: y requires one: {y.requires_grad}"
        )

    x, words = torch.ones(1, 4, 2, requires_grad=True), torch.zeros(1, 4, dtype=torch.int64)
    for factor in (1, 10):
        layer.zero_grad()
        x.grad = None
        loss = TiledFusedLogitsLoss.apply(
            lambda self, x, y: nn.functional.cross_entropy(self(x), y),
            layer,
            x,
            words,
            None,
            2,
            [layer.weight, layer.bias],
            "mean",
        )
        (factor * loss).backward()
        print(
            f"a loss times {factor}: gradient of the input {x.grad.norm().item():.4f}, of the weight {layer.weight.grad.norm().item():.4f}"
        )
