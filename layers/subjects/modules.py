"""How the cases of the built-in layers are drawn (entry-point group ``adjointlab.subjects``)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from adjointlab.core import strategies
from adjointlab.core.layout import Layout
from adjointlab.engine.subject import subject
from adjointlab.layers.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from adjointlab.layers.convolution import Conv1d, Conv2d, Conv3d, Padded
from adjointlab.layers.flatten import Flatten
from adjointlab.layers.linear import Linear
from adjointlab.layers.losses import CrossEntropyLoss, Loss, MSELoss
from adjointlab.layers.pointwise import Pointwise
from adjointlab.layers.pooling import AvgPool1d, AvgPool2d, AvgPool3d, MaxPool1d, MaxPool2d, MaxPool3d
from adjointlab.layers.repartition import Repartition

__all__ = [
    "average_pools",
    "batch_norms",
    "convolutions",
    "cross_entropies",
    "flattens",
    "linears",
    "max_pools",
    "mean_squared_errors",
    "pointwise_layers",
    "repartition_layers",
]

_DTYPES = ("float64", "float32")
_CONVOLUTIONS = (Conv1d, Conv2d, Conv3d)


def _linear(comm: Any, *, dtype: str, **arguments: Any) -> Linear:
    return Linear(comm, dtype=getattr(torch, dtype), **arguments)


def _sequential_linear(
    *, in_features: int, out_features: int, bias: bool, dtype: str, **_: Any
) -> torch.nn.Linear:
    return torch.nn.Linear(in_features, out_features, bias, dtype=getattr(torch, dtype))


@subject(layer=_linear, sequential=_sequential_linear, twice_differentiable=True, name="Linear")
def linears(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """Any leading dimensions, cut or not; features cut along both dimensions of the weight; fewer features than workers."""
    lead = draw(st.integers(0, 2))
    shape = draw(strategies.shapes(lead + 2))
    return {
        "partition": draw(strategies.partitions(ranks, lead + 2, whole=False)),
        "input_shape": (*shape[:lead], max(1, shape[lead])),
        "in_features": max(1, shape[lead]),
        "out_features": max(1, shape[lead + 1]),
        "bias": draw(st.booleans()),
        "dtype": draw(st.sampled_from(_DTYPES)),
    }


def _convolution(comm: Any, *, dims: int, dtype: str, **arguments: Any) -> Any:
    return _CONVOLUTIONS[dims - 1](comm, dtype=getattr(torch, dtype), **arguments)


def _sequential_convolution(
    *, dims: int, dtype: str, partition: Any, input_shape: Any, padding: Any, **arguments: Any
) -> torch.nn.Module:
    module = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)[dims - 1]
    even = isinstance(padding, str) or all(left == right for left, right in padding)
    own = padding if isinstance(padding, str) else tuple(left for left, _ in padding)
    convolution = module(padding=own if even else 0, dtype=getattr(torch, dtype), **arguments)
    return convolution if even else Padded(convolution, padding, arguments["padding_mode"])


@subject(
    layer=_convolution, sequential=_sequential_convolution, twice_differentiable=True, name="Convolution"
)
def convolutions(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """One to three dimensions; batch, channels and features cut; kernels with all that torch lets them have."""
    dims = draw(st.integers(1, 3))
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(dims))
    dilation = tuple(draw(st.integers(1, 2)) for _ in range(dims))
    stride = tuple(draw(st.integers(1, 3)) for _ in range(dims))
    mode = draw(st.sampled_from(("zeros", "zeros", "circular")))
    reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    padding: Any = tuple((draw(st.integers(0, r)), draw(st.integers(0, r))) for r in reach)
    if draw(st.booleans()):
        padding = "same" if stride == (1,) * dims and draw(st.booleans()) else "valid"
    pads = (
        [(0, 0)] * dims
        if padding == "valid"
        else [(r // 2, r - r // 2) for r in reach]
        if padding == "same"
        else padding
    )
    sides = []
    for r, (left, right) in zip(reach, pads, strict=True):
        least = max(r + 1 - left - right, 1, *((left, right) if mode == "circular" else ()))
        sides.append(draw(st.integers(least, least + (8 if dims == 1 else 3))))
    groups = draw(st.integers(1, 3))
    channels = [groups * draw(st.integers(1, 3 if groups == 1 else 2)) for _ in range(2)]
    batch, bias, dtype = draw(st.integers(0, 3)), draw(st.booleans()), draw(st.sampled_from(_DTYPES))
    # Last, as the number of draws depends on the number of ranks: so cases shrink to fewer.
    partition = draw(strategies.partitions(ranks, dims + 3, whole=False))
    if 1 not in partition.shape[1:3]:
        groups = 1
    return {
        "dims": dims,
        "partition": partition,
        "input_shape": (batch, channels[0], *sides),
        "in_channels": channels[0],
        "out_channels": channels[1],
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "bias": bias,
        "padding_mode": mode,
        "dtype": dtype,
    }


_MAX_POOLS = (MaxPool1d, MaxPool2d, MaxPool3d)
_AVERAGE_POOLS = (AvgPool1d, AvgPool2d, AvgPool3d)


def _pooling_arguments(draw: DrawFn, ranks: int, dims: int, *, dilated: bool) -> dict[str, Any]:
    """Windows apart, side by side and overlapping; padding up to half of the kernel; with ceil_mode, beyond it."""
    largest = 5 if dims == 1 else 3
    kernel = tuple(draw(st.integers(1, largest)) for _ in range(dims))
    stride = tuple(draw(st.integers(1, largest)) for _ in range(dims)) if draw(st.booleans()) else None
    padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    dilation = tuple(draw(st.integers(1, 3 if dilated else 1)) for _ in range(dims))
    ceil_mode = draw(st.booleans())
    sides = []
    for k, s, p, d in zip(kernel, stride or kernel, padding, dilation, strict=True):
        least = max(1, d * (k - 1) + 1 - 2 * p - (s - 1 if ceil_mode else 0))
        if d > 1 and p:  # torch's own gradient writes beyond the tensor where a window misses it
            least = max(least, d)
        if dims == 3 and not dilated:  # torch's average in three dimensions asks for more than the others
            least = max(least, k)
        sides.append(draw(st.integers(least, least + (10 if dims == 1 else 4))))
    batch = (draw(st.integers(0, 3)),) if draw(st.integers(0, 4)) else ()
    arguments = {
        "dims": dims,
        "partition": draw(strategies.partitions(ranks, dims + 1 + len(batch), whole=False)),
        "input_shape": (*batch, draw(st.integers(1, 3)), *sides),
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "ceil_mode": ceil_mode,
        "dtype": draw(st.sampled_from(_DTYPES)),
    }
    return {**arguments, "dilation": dilation} if dilated else arguments


def _max_pool(comm: Any, *, dims: int, dtype: str, **arguments: Any) -> Any:
    return _MAX_POOLS[dims - 1](comm, dtype=getattr(torch, dtype), **arguments)


def _sequential_max_pool(
    *, dims: int, partition: Any, input_shape: Any, dtype: str, **arguments: Any
) -> torch.nn.Module:
    module: Any = (torch.nn.MaxPool1d, torch.nn.MaxPool2d, torch.nn.MaxPool3d)[dims - 1]
    return module(**arguments)  # type: ignore[no-any-return]


def _negative(x: torch.Tensor) -> tuple[torch.Tensor]:
    """The lab's integers go from -4 to 4; of negative numbers a zero in the padding would be the largest."""
    return (x - 5,)


@subject(
    layer=_max_pool,
    sequential=_sequential_max_pool,
    prepare=_negative,
    twice_differentiable=True,
    name="MaxPooling",
)
def max_pools(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """One to three dimensions, with dilation, or with the indices; negative data, with many equal ones."""
    arguments = _pooling_arguments(draw, ranks, draw(st.integers(1, 3)), dilated=True)
    return {**arguments, "return_indices": draw(st.booleans())}


def _average_pool(comm: Any, *, dims: int, dtype: str, **arguments: Any) -> Any:
    return _AVERAGE_POOLS[dims - 1](comm, dtype=getattr(torch, dtype), **arguments)


def _sequential_average_pool(
    *, dims: int, partition: Any, input_shape: Any, dtype: str, **arguments: Any
) -> torch.nn.Module:
    module: Any = (torch.nn.AvgPool1d, torch.nn.AvgPool2d, torch.nn.AvgPool3d)[dims - 1]
    return module(**arguments)  # type: ignore[no-any-return]


@subject(
    layer=_average_pool, sequential=_sequential_average_pool, twice_differentiable=True, name="AveragePooling"
)
def average_pools(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """One to three dimensions, and every way to count; often with divisors that keep the arithmetic exact."""
    dims = draw(st.integers(1, 3))
    arguments = _pooling_arguments(draw, ranks, dims, dilated=False)
    arguments["count_include_pad"] = draw(st.booleans())
    if dims > 1:
        arguments["divisor_override"] = draw(st.sampled_from((None, None, 1, 8, 3, -2)))
    return arguments


_BATCH_NORMS = (BatchNorm1d, BatchNorm2d, BatchNorm3d)


def _batch_norm(comm: Any, *, dtype: str, **arguments: Any) -> Any:
    dims = max(1, len(arguments["input_shape"]) - 2)
    layer = _BATCH_NORMS[dims - 1](comm, dtype=getattr(torch, dtype), **arguments)
    layer.load_sequential(_sequential_batch_norm(dtype=dtype, **arguments))
    return layer


def _sequential_batch_norm(
    *, partition: Any, input_shape: Any, dtype: str, bias: bool, **arguments: Any
) -> torch.nn.Module:
    dims = max(1, len(input_shape) - 2)
    kind: Any = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)[dims - 1]
    without = {} if bias else {"bias": False}
    module: torch.nn.Module = kind(**arguments, **without, dtype=getattr(torch, dtype))
    if arguments["track_running_stats"]:  # some that were not just made
        channel = torch.arange(arguments["num_features"])
        module.get_buffer("running_mean").copy_(channel / 4 - 1)
        module.get_buffer("running_var").copy_(channel + 0.5)
        module.get_buffer("num_batches_tracked").fill_(3)
    return module


@subject(
    layer=_batch_norm, sequential=_sequential_batch_norm, twice_differentiable=True, name="BatchNormalisation"
)
def batch_norms(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """Inputs of order two to five, cut in any dimension; training and evaluation; batches of one, or of none."""
    order = draw(st.integers(2, 5))
    training, tracked = draw(st.booleans()), draw(st.booleans())
    channels = draw(st.integers(1, 4))
    batch = draw(st.integers(0, 6 if order == 2 else 3))
    sides = [draw(st.integers(1, 6 if order == 3 else 3)) for _ in range(order - 2)]
    if (training or not tracked) and batch * math.prod(sides) == 1:
        batch = 2  # of one value per channel there are no statistics
    affine = draw(st.booleans())
    return {
        "partition": draw(strategies.partitions(ranks, order, whole=False)),
        "input_shape": (batch, channels, *sides),
        "num_features": channels,
        "eps": draw(st.sampled_from((1e-5, 0.25))),
        "momentum": draw(st.sampled_from((0.1, None, 0.5, 0.0, 1.0))),
        "affine": affine,
        "track_running_stats": tracked,
        "bias": draw(st.integers(0, 3)) > 0,
        "dtype": draw(st.sampled_from(_DTYPES)),
        "training": training,
    }


def _legal_targets(
    layer: torch.nn.Module, classes: int, ignore_index: int, windows: tuple[tuple[int, int], ...] | None
) -> torch.nn.Module:
    """The layer, which makes class indices of the lab's integers, some of them ignored: never the first place, so that a
    mean is one of something. `windows` is where its targets lie; none of them are, on some ranks.
    """

    def prepare(_: Any, inputs: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        logits, drawn = inputs
        first = torch.tensor([]) if windows is None else torch.ones(())
        for start, stop in windows or ():
            first = first[..., None] * (torch.arange(start, stop) == 0)
        legal = drawn.abs() % classes
        away = (legal + 1) % classes if classes > 1 else legal
        kept = torch.where(legal == ignore_index, away, legal)
        first = first.reshape(drawn.shape) > 0
        return logits, torch.where(first, kept, torch.where(drawn < -1, ignore_index, legal))

    layer.register_forward_pre_hook(prepare)
    return layer


def _class_weights(classes: int, weighted: bool, dtype: str) -> torch.Tensor | None:
    return (torch.arange(classes) % 3 + 1).to(getattr(torch, dtype)) / 2 if weighted else None


def _cross_entropy(
    comm: Any, *, input_shape: tuple[int, ...], weighted: bool, dtype: str, **arguments: Any
) -> torch.nn.Module:
    classes = input_shape[min(1, len(input_shape) - 1)]
    layer = CrossEntropyLoss(
        comm,
        input_shape=input_shape,
        weight=_class_weights(classes, weighted, dtype),
        dtype=getattr(torch, dtype),
        **arguments,
    )
    windows = layer.domain.tensors[1].layout.window(comm.Get_rank())
    return _legal_targets(layer, classes, arguments["ignore_index"], windows)


def _sequential_cross_entropy(
    *, input_shape: tuple[int, ...], weighted: bool, dtype: str, **arguments: Any
) -> torch.nn.Module:
    along = min(1, len(input_shape) - 1)
    module = torch.nn.CrossEntropyLoss(
        _class_weights(input_shape[along], weighted, dtype),
        **{name: arguments[name] for name in ("ignore_index", "reduction", "label_smoothing")},
    )
    windows = tuple((0, side) for dim, side in enumerate(input_shape) if dim != along)
    return _legal_targets(module, input_shape[along], arguments["ignore_index"], windows)


def _loss_arguments(draw: DrawFn, ranks: int, shape: tuple[int, ...], reduction: str) -> dict[str, Any]:
    """Where the input lies, in any cut, and where the loss goes."""
    dtype, all_reduce = draw(st.sampled_from(_DTYPES)), draw(st.booleans())
    partition = draw(strategies.partitions(ranks, len(shape), whole=False))
    cuts = tuple(
        draw(strategies.cuts(side, parts)) for side, parts in zip(shape, partition.shape, strict=True)
    )
    return {
        "partition": partition,
        "input_shape": shape,
        "reduction": reduction,
        "root": draw(st.integers(0, ranks - 1)),
        "all_reduce": all_reduce,
        "dtype": dtype,
        "cuts": cuts,
    }


@subject(
    layer=_cross_entropy,
    sequential=_sequential_cross_entropy,
    twice_differentiable=True,
    name="CrossEntropyLoss",
)
def cross_entropies(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """Logits of order one to four, cut anywhere; weights, smoothing, ignored targets, of a class too; batches down to
    one, and none where the loss is a number even so.
    """
    order = draw(st.integers(1, 4))
    reduction = draw(st.sampled_from(Loss.reduction_names))
    classes = draw(st.integers(1, 6))
    least = 1 if reduction == "mean" else 0
    sides = [draw(st.integers(least, 6 if order == 2 else 3)) for _ in range(order - 1)]
    options = {
        "weighted": draw(st.booleans()),
        # Of one class alone, ignoring it leaves nothing.
        "ignore_index": draw(st.sampled_from((-100, 0, 2) if classes > 1 else (-100, 2))),
        "label_smoothing": draw(st.sampled_from((0.0, 0.25, 0.1, 1.0))),
    }
    shape = (*sides[:1], classes, *sides[1:])
    return {**options, **_loss_arguments(draw, ranks, shape, reduction)}


def _mean_squared_error(comm: Any, *, dtype: str, **arguments: Any) -> MSELoss:
    return MSELoss(comm, dtype=getattr(torch, dtype), **arguments)


def _sequential_mean_squared_error(*, reduction: str, **_: Any) -> torch.nn.Module:
    return torch.nn.MSELoss(reduction=reduction)


@subject(
    layer=_mean_squared_error,
    sequential=_sequential_mean_squared_error,
    twice_differentiable=True,
    name="MSELoss",
)
def mean_squared_errors(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """Tensors of order zero to four in any cut; of a mean, with an element at least."""
    reduction = draw(st.sampled_from(Loss.reduction_names))
    shape = draw(strategies.shapes(draw(st.sampled_from((1, 2, 3, 4, 0)))))
    if reduction == "mean":
        shape = tuple(max(1, side) for side in shape)
    return _loss_arguments(draw, ranks, shape, reduction)


def _flatten(comm: Any, *, dtype: str, **arguments: Any) -> Flatten:
    return Flatten(comm, dtype=getattr(torch, dtype), **arguments)


def _sequential_flatten(*, start_dim: int, end_dim: int, **_: Any) -> torch.nn.Module:
    return torch.nn.Flatten(start_dim, end_dim)


@subject(layer=_flatten, sequential=_sequential_flatten, twice_differentiable=True, name="Flatten")
def flattens(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """Any range of dimensions, counted from both ends, in any cut; the output where it is, or in any other layout."""
    shape = draw(strategies.shapes(draw(st.sampled_from((2, 3, 4, 5, 1, 0)))))
    dims = max(1, len(shape))
    start = draw(st.integers(0, dims - 1))
    end = draw(st.integers(start, dims - 1))
    flat = (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :])
    arguments = {
        "input_shape": shape,
        "start_dim": start - draw(st.sampled_from((0, dims))),
        "end_dim": end - draw(st.sampled_from((dims, 0))),
        "dtype": draw(st.sampled_from(_DTYPES)),
    }
    partition = draw(strategies.partitions(ranks, len(shape), whole=False))
    cuts = tuple(
        draw(strategies.cuts(side, parts)) for side, parts in zip(shape, partition.shape, strict=True)
    )
    target = draw(strategies.layouts(ranks, shape=flat, whole=False)) if draw(st.booleans()) else None
    return {**arguments, "partition": partition, "cuts": cuts, "target": target}


def _repartition(comm: Any, *, dtype: str, **arguments: Any) -> Repartition:
    return Repartition(comm, dtype=getattr(torch, dtype), **arguments)


def _identity(**_: Any) -> torch.nn.Module:
    return torch.nn.Identity()


def _shared(draw: DrawFn, ranks: int, shape: tuple[int, ...]) -> tuple[Layout, tuple[str, ...]]:
    """A layout in any cut, copied along one more dimension of the workers, and local types that say what copies are."""
    partition = draw(strategies.partitions(ranks, len(shape) + 1, whole=False))
    place = draw(st.integers(0, len(shape)))
    axes = [dim for dim in range(len(shape) + 1) if dim != place]
    ends = [
        draw(strategies.cuts(side, partition.shape[axis])) for side, axis in zip(shape, axes, strict=True)
    ]
    copies = draw(st.sampled_from(("invariant", "replicated", "partial")))
    types = tuple(copies if dim == place else "varying" for dim in range(len(shape) + 1))
    return Layout.cut(shape, partition, ends, axes), types


@subject(layer=_repartition, sequential=_identity, twice_differentiable=True, name="RepartitionLayer")
def repartition_layers(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """Any cut to any cut, over other workers in another order; copies of each local type."""
    shape = draw(strategies.shapes(draw(st.sampled_from((1, 2, 3, 4, 0)))))
    dtype = draw(st.sampled_from(_DTYPES))
    (layout, types), (target, target_types) = (_shared(draw, ranks, shape) for _ in range(2))
    return {
        "layout": layout,
        "target": target,
        "dtype": dtype,
        "types": types,
        "target_types": target_types,
    }


class _Doubled(torch.nn.Module):
    """2 x."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


_POINTWISE: dict[str, Callable[[], torch.nn.Module]] = {
    "ReLU": torch.nn.ReLU,
    "in place": lambda: torch.nn.Sequential(_Doubled(), torch.nn.ReLU(inplace=True)),
    "LeakyReLU": lambda: torch.nn.LeakyReLU(0.25),
    "Hardtanh": lambda: torch.nn.Hardtanh(-2, 2),
    "tanh": torch.nn.Tanh,
    "sigmoid": torch.nn.Sigmoid,
    "GELU": torch.nn.GELU,
    "SiLU": torch.nn.SiLU,
    "ELU": torch.nn.ELU,
    "Softplus": torch.nn.Softplus,
    "double": _Doubled,
    "dropout": torch.nn.Dropout,
}


def _pointwise(comm: Any, *, layout: Layout, function: str, dtype: str) -> Pointwise:
    return Pointwise(comm, layout, _POINTWISE[function](), dtype=getattr(torch, dtype))


def _sequential_pointwise(*, function: str, **_: Any) -> torch.nn.Module:
    return _POINTWISE[function]()


@subject(layer=_pointwise, sequential=_sequential_pointwise, twice_differentiable=True, name="Pointwise")
def pointwise_layers(draw: DrawFn, ranks: int) -> dict[str, Any]:
    """Activations, one of them in place, and dropout that is not training, over tensors in any cut."""
    function = draw(st.sampled_from(tuple(_POINTWISE)))
    shape = draw(strategies.shapes(draw(st.sampled_from((1, 2, 3, 4, 0)))))
    return {
        "function": function,
        "dtype": draw(st.sampled_from(_DTYPES)),
        "training": function != "dropout" and draw(st.booleans()),
        "layout": draw(strategies.layouts(ranks, shape=shape, whole=False)),
    }
