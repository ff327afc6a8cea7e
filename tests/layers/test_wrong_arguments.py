"""A wrong argument of a layer's or network's constructor is named, with its value and what would be legal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import adjointlab as al
from adjointlab.layers import (
    Attention,
    Concatenation,
    Conv2d,
    CrossEntropyLoss,
    Linear,
    MatrixProduct,
    MaxUnpool2d,
    Pointwise,
    Stack,
    from_sequential,
)
from adjointlab.worlds.run import Raised
from adjointlab.worlds.world import World

IMAGES = (6, 3, 8, 8)
OVER = (1, 1, 1, 1, 1)


def conv2d(*given: Any, **named: Any) -> Callable[[Any], object]:
    return lambda comm: Conv2d(comm, OVER, *given, **named)


def network(*modules: nn.Module, **named: Any) -> Callable[[Any], object]:
    arguments: dict[str, Any] = {"partition": (1, 1), "input_shape": (4, 3), **named}
    return lambda comm: from_sequential(nn.Sequential(*modules), comm, **arguments)


WRONG: dict[str, tuple[Callable[[Any], object], str, str]] = {
    "no input shape": (
        conv2d(nn.Conv2d(3, 4, 3)),
        "TypeError",
        "input_shape: a Conv2d; the global shape of the input is given before the module",
    ),
    "a negative side": (
        conv2d((6, 3, -8, 8), nn.Conv2d(3, 4, 3)),
        "ValueError",
        "input_shape: a side of a tensor is at least 0, not (6, 3, -8, 8)",
    ),
    "a class": (
        conv2d(IMAGES, nn.Conv2d),
        "TypeError",
        "module: the class Conv2d; pass a module, such as Conv2d(...)",
    ),
    "a misspelt option": (
        conv2d(IMAGES, nn.Conv2d(3, 4, 3), overlp=True),
        "TypeError",
        "overlp: not an argument of Conv2d, which takes dtype, overlap beside a module; did you mean overlap?",
    ),
    "a misspelt argument of torch's": (
        conv2d(IMAGES, 3, 4, 3, strde=2),
        "TypeError",
        "strde: not an argument of Conv2d, which takes dtype, overlap beside the arguments of torch's Conv2d; did you mean stride?",
    ),
    "a module and its arguments": (
        conv2d(IMAGES, nn.Conv2d(3, 4, 3), padding=1),
        "TypeError",
        "padding: Conv2d takes a module or the arguments of one, not both",
    ),
    "an option that is no bool": (
        conv2d(IMAGES, nn.Conv2d(3, 4, 3), overlap="yes"),
        "TypeError",
        "overlap: 'yes' is neither True nor False",
    ),
    "another option that is no bool": (
        lambda comm: CrossEntropyLoss(comm, (1, 1), (6, 3), all_reduce=0),
        "TypeError",
        "all_reduce: 0 is neither True nor False",
    ),
    "the name of an element type": (
        conv2d(IMAGES, 3, 4, 3, dtype="float32"),
        "TypeError",
        "dtype: 'float32' is not a torch.dtype, such as torch.float32",
    ),
    "the name of an element type for a function": (
        lambda comm: Pointwise(comm, al.Layout((4,), (1,)), torch.relu, dtype="float32"),
        "TypeError",
        "dtype: 'float32' is not a torch.dtype, such as torch.float32",
    ),
    "a number for an element type": (
        lambda comm: Attention(comm, (1, 1, 1), (2, 1, 3, 4), dtype=0),
        "TypeError",
        "dtype: 0 is not a torch.dtype, such as torch.float32",
    ),
    "the shape of queries": (
        lambda comm: Attention(comm, (1, 1, 1), 4),
        "TypeError",
        "input_shape: 4 is not a sequence of integers",
    ),
    "a number of keys": (
        lambda comm: Attention(comm, (1, 1, 1), (2, 1, 3, 4), keys=2.5),
        "TypeError",
        "keys: 2.5 is not a whole number",
    ),
    "one shape for several": (
        lambda comm: Concatenation(comm, (1, 1), (2, 3)),
        "TypeError",
        "input_shapes: 2 is not a sequence of integers",
    ),
    "no shapes": (
        lambda comm: Stack(comm, (1, 1), None),
        "TypeError",
        "input_shapes: None is not a list of the shapes of the inputs",
    ),
    "a negative side of a factor": (
        lambda comm: MatrixProduct(comm, (1, 1), (2, -3), (3, 2)),
        "ValueError",
        "a_shape: a side of a tensor is at least 0, not (2, -3)",
    ),
    "the width of a panel": (
        lambda comm: MatrixProduct(comm, (1, 1), (2, 3), (3, 2), panel=1.5),
        "TypeError",
        "panel: 1.5 is not a whole number",
    ),
    "an output size": (
        lambda comm: MaxUnpool2d(comm, (1,) * 4, (1, 1, 2, 2), 2, output_size=4),
        "TypeError",
        "output_size: 4 is not a sequence of integers",
    ),
    "another element type than the module's": (
        lambda comm: Linear(comm, (1, 1, 1), (4, 3), nn.Linear(3, 3), dtype=torch.float64),
        "ValueError",
        "but the parameters of the module are of torch.float32; convert it before, by .to(torch.float64)",
    ),
    "a lazy module": (
        conv2d(IMAGES, nn.LazyConv2d(4, 3)),
        "ValueError",
        "module: weight has no shape yet; call the module once",
    ),
    "the device meta": (
        conv2d(IMAGES, nn.Conv2d(3, 4, 3, device="meta")),
        "ValueError",
        "module: weight lies on the device meta, which has no values",
    ),
    "partitions in a list": (
        network(nn.ReLU(), partitions=[(1, 1)]),
        "TypeError",
        "partitions: a list is not a mapping from names of layers to their partitions, such as {\"0\": (1, 2, 2)}",
    ),
    "a partition of another order": (
        network(nn.ReLU(), partition=(1, 1, 1)),
        "ValueError",
        "partition: of order 3 (1x1x1), but the input [4, 3] has order 2; give a side for each dimension of the input",
    ),
    "a layer's partition of another order": (
        network(nn.ReLU(), partitions={"0": (1, 1, 1)}),
        "ValueError",
        "network: 0 (ReLU): partition: of order 3 (1x1x1), but the input [4, 3] has order 2; give a side",
    ),
    "a network's input shape": (
        network(nn.ReLU(), input_shape="6"),
        "TypeError",
        "input_shape: '6' is not a sequence of integers",
    ),
    "a normalisation over all processes": (
        network(nn.SyncBatchNorm(3)),
        "ValueError",
        "the layers BatchNorm1d, 2d and 3d have the statistics of all workers: use torch.nn.BatchNorm2d in its place",
    ),
    "a module that has a layer": (
        lambda comm: Pointwise(comm, Linear(comm, (1, 1, 1), (4, 3), 3, 3).domain.tensors[0].layout, nn.Linear(3, 3)),
        "ValueError",
        "adjointlab.layers.Linear is the layer of it",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "kind", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_argument_is_named_with_what_would_be_legal(
    adjointlab_world: World, make: Callable[[Any], object], kind: str, message: str
) -> None:
    run = adjointlab_world.run(lambda context, _: make(context.comm), ranks=1)
    (outcome,) = run.outcomes
    assert isinstance(outcome, Raised)
    assert outcome.kind == kind
    assert message in outcome.message
