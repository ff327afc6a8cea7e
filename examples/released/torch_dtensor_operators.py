"""Operators of DTensor over drawn placements, beside the same operators of plain tensors.

adjointlab check examples/released/torch_dtensor_operators.py --check gradients
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from dtensor_functions import OPERATIONS, constant, dtensor_function, finding, has_empty, has_uneven, is_apart
from hypothesis import strategies as st
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.nn.attention import SDPBackend, sdpa_kernel

import adjointlab as al

side = st.integers(1, 5)


def one(ndim: int) -> Any:
    return lambda draw: ([draw(al.strategies.shapes(ndim))], {})


def alike(ndim: int, number: int = 2) -> Any:
    return lambda draw: ([draw(al.strategies.shapes(ndim))] * number, {})


def along(ndim: int, least: int = 0, **options: Any) -> Any:
    """One tensor, and a dimension of it. Sides are `least` at least."""

    def shapes(draw: Any) -> Any:
        shape = tuple(max(n, least) for n in draw(al.strategies.shapes(ndim)))
        drawn = {name: draw(strategy) for name, strategy in options.items()}
        return [shape], dict(dim=draw(st.integers(0, ndim - 1)), **drawn)

    return shapes


def averages_shards(shapes: Any, mesh: Any, placements: Any, options: Any) -> bool:
    return options["reduction"] == "mean" and is_apart(mesh, placements)


def weighs_rows(shapes: Any, mesh: Any, placements: Any, options: Any) -> bool:
    has_weights = options["weighted"] or options["ignored"] >= 0
    return has_weights and averages_shards(shapes, mesh, placements, options)


def cuts_unevenly(shapes: Any, mesh: Any, placements: Any, options: Any) -> bool:
    return has_uneven(shapes, mesh, placements)


def is_more_than_rows(shapes: Any, mesh: Any, placements: Any, options: Any) -> bool:
    """True if not rows alone are sharded, or some input is partial."""
    others = [p for p in placements[0] if not (p.is_replicate() or p.is_shard(0))]
    return bool(others) or has_empty(shapes, mesh, placements)


def keeps_dim(shapes: Any, mesh: Any, placements: Any, options: Any) -> bool:
    return options["keepdim"] and is_apart(mesh, placements)


def holds_nothing(shapes: Any, mesh: Any, placements: Any, options: Any) -> bool:
    return has_empty(shapes, mesh, placements)


def cuts_rows_twice_or_holds_nothing(shapes: Any, mesh: Any, placements: Any, options: Any) -> bool:
    by_rows = [extent for placement, extent in zip(placements[0], mesh, strict=True) if placement.is_shard(0)]
    return (min(by_rows, default=1) > 1 and len(by_rows) > 1) or has_empty(shapes, mesh, placements)


def distinct(x: Any) -> Any:
    """Shift the elements by different fractions, so that no two are equal."""
    return x + constant(x, torch.linspace(0, 0.1, x.numel(), dtype=torch.float64).reshape(x.shape))


# Products


def of_matmul(draw: Any) -> Any:
    m, k, n = draw(al.strategies.shapes(3))
    return [(m, k), (k, n)], {}


def of_bmm(draw: Any) -> Any:
    b, m, k, n = (*draw(al.strategies.shapes(3)), draw(side))
    return [(b, m, k), (b, k, n)], {}


def of_linear(draw: Any) -> Any:
    b, s, k, n = (draw(side) for _ in range(4))
    return [(b, s, k), (n, k), (n,)], {}


def of_addmm(draw: Any) -> Any:
    m, k, n = draw(al.strategies.shapes(3))
    return [(n,), (m, k), (k, n)], {}


def of_attention(draw: Any) -> Any:
    b, h, s, d = (draw(st.integers(1, 4)) for _ in range(4))
    return [(b, h, s, d)] * 3, {}


def of_conv(ndim: int) -> Any:
    def shapes(draw: Any) -> Any:
        b, c, o = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
        sides = [draw(st.integers(3, 6)) for _ in range(ndim)]
        kernel = [draw(st.integers(1, 3)) for _ in range(ndim)]
        options = dict(stride=draw(st.integers(1, 2)), padding=draw(st.integers(0, 1)))
        return [(b, c, *sides), (o, c, *kernel), (o,)], options

    return shapes


@dtensor_function(of_matmul)
def matmul(a, b):
    return a @ b


@dtensor_function(of_bmm)
def bmm(a, b):
    return torch.bmm(a, b)


@dtensor_function(of_linear, known=cuts_unevenly)
def linear(x, weight, bias):
    return F.linear(x, weight, bias)


@dtensor_function(of_addmm)
def addmm(bias, a, b):
    return torch.addmm(bias, a, b)


@dtensor_function(of_bmm)
def einsum(a, b):
    return torch.einsum("bik,bkj->bij", a, b)


@dtensor_function(alike(1))
def dot(a, b):
    return torch.dot(a, b)


@dtensor_function(of_attention)
def attention(q, k, v):
    # The backward pass of the fused kernel for the CPU has no sharding strategy.
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v)


@dtensor_function(of_conv(1), known=is_more_than_rows, replicated=(1, 2))
def conv1d(x, weight, bias, stride, padding):
    return F.conv1d(x, weight, bias, stride, padding)


@dtensor_function(of_conv(2), known=is_more_than_rows, replicated=(1, 2))
def conv2d(x, weight, bias, stride, padding):
    return F.conv2d(x, weight, bias, stride, padding)


# Normalisation


def of_layer_norm(draw: Any) -> Any:
    b, s, n = draw(side), draw(side), draw(st.integers(2, 5))
    return [(b, s, n), (n,), (n,)], {}


def of_rms_norm(draw: Any) -> Any:
    return of_layer_norm(draw)[0][:2], {}


@dtensor_function(of_layer_norm)
def layer_norm(x, weight, bias):
    return F.layer_norm(distinct(x), weight.shape, weight, bias, eps=0.1)


@dtensor_function(of_rms_norm)
def rms_norm(x, weight):
    return F.rms_norm(x, weight.shape, weight, eps=0.1)


def group_norm(x, weight, bias, groups):
    return F.group_norm(distinct(x), groups, weight, bias, eps=0.1)


OPERATIONS["group_norm"] = group_norm  # its backward pass has no rule: a finding


@dtensor_function(along(3, least=1))
def softmax(x, dim):
    return F.softmax(x, dim)


@dtensor_function(along(3, least=1))
def log_softmax(x, dim):
    return F.log_softmax(x, dim)


# Losses

REDUCTIONS = st.sampled_from(["mean", "sum", "none"])


def of_loss(draw: Any) -> Any:
    shape = tuple(max(1, n) for n in draw(al.strategies.shapes(2)))
    return [shape, shape], dict(reduction=draw(REDUCTIONS))


def of_classes(draw: Any) -> Any:
    shape = draw(side), draw(st.integers(2, 5))
    ignored = draw(st.sampled_from([-100, 0]))
    return [shape], dict(reduction=draw(REDUCTIONS), ignored=ignored, weighted=draw(st.booleans()))


def targets(x: Any) -> Any:
    return constant(x, (torch.arange(x.shape[0]) * 2 + 1) % x.shape[1])


@dtensor_function(of_loss, known=averages_shards)
def mse_loss(x, y, reduction):
    return F.mse_loss(x, y, reduction=reduction)


@dtensor_function(of_loss, known=averages_shards)
def smooth_l1_loss(x, y, reduction):
    return F.smooth_l1_loss(distinct(x), y, reduction=reduction)


@dtensor_function(of_loss, known=averages_shards)
def bce_with_logits(x, y, reduction):
    return F.binary_cross_entropy_with_logits(x, y, reduction=reduction)


@dtensor_function(of_classes, known=weighs_rows)
def cross_entropy(x, reduction, ignored, weighted):
    weight = constant(x, torch.arange(1.0, x.shape[1] + 1, dtype=torch.float64)) if weighted else None
    return F.cross_entropy(x, targets(x), weight, ignore_index=ignored, reduction=reduction)


@dtensor_function(of_classes, known=weighs_rows)
def nll_loss(x, reduction, ignored, weighted):
    weight = constant(x, torch.arange(1.0, x.shape[1] + 1, dtype=torch.float64)) if weighted else None
    return F.nll_loss(x, targets(x), weight, ignore_index=ignored, reduction=reduction)


# Look-up


def of_embedding(draw: Any) -> Any:
    rows, columns = draw(st.integers(1, 7)), draw(side)
    length = 24  # so that every rank has a part of the result
    indices = draw(st.lists(st.integers(0, rows - 1), min_size=length, max_size=length))
    return [(rows, columns)], dict(indices=indices)


def of_index(ndim: int) -> Any:
    def shapes(draw: Any) -> Any:
        [shape], options = along(ndim, least=1)(draw)
        last = shape[options["dim"]] - 1
        return [shape], dict(**options, indices=draw(st.lists(st.integers(0, last), min_size=1, max_size=5)))

    return shapes


@dtensor_function(of_embedding, known=cuts_rows_twice_or_holds_nothing)
def embedding(weight, indices):
    return F.embedding(constant(weight, torch.tensor(indices)), weight)


@dtensor_function(of_index(2))
def index_select(x, dim, indices):
    return torch.index_select(x, dim, constant(x, torch.tensor(indices)))


@dtensor_function(of_index(2), known=holds_nothing)
def gather(x, dim, indices):
    shape = list(x.shape)
    shape[dim] = len(indices)
    view = [1, 1]
    view[dim] = len(indices)
    return torch.gather(x, dim, constant(x, torch.tensor(indices).reshape(view).expand(shape).contiguous()))


@dtensor_function(of_embedding)
def index(x, indices):
    return x[constant(x, torch.tensor(indices))]


# Reductions

KEEP = dict(keepdim=st.booleans())


@dtensor_function(along(3, **KEEP), name="sum")
def sum_(x, dim, keepdim):
    return x.sum(dim, keepdim)


@dtensor_function(one(2))
def sum_all(x):
    return x.sum()


@dtensor_function(along(3, least=1, **KEEP))
def mean(x, dim, keepdim):
    return x.mean(dim, keepdim)


@dtensor_function(along(2, least=1, **KEEP), name="max")
def max_(x, dim, keepdim):
    return distinct(x).max(dim, keepdim).values


@dtensor_function(along(2, least=1, **KEEP), known=holds_nothing)
def amax(x, dim, keepdim):
    return distinct(x).amax(dim, keepdim)


@dtensor_function(along(2, least=1, **KEEP), known=holds_nothing)
def amin(x, dim, keepdim):
    return distinct(x).amin(dim, keepdim)


@dtensor_function(along(1, least=1), known=holds_nothing)
def max_all(x, dim):
    return distinct(x).max()


@dtensor_function(along(2, least=2, correction=st.integers(0, 1), **KEEP))
def var(x, dim, correction, keepdim):
    return x.var(dim, correction=correction, keepdim=keepdim)


@dtensor_function(along(2, least=2, order=st.sampled_from([1, 2, 3]), **KEEP))
def vector_norm(x, dim, order, keepdim):
    return torch.linalg.vector_norm(distinct(x) + 3, order, dim, keepdim)


@dtensor_function(along(2, least=1, **KEEP), known=keeps_dim)
def logsumexp(x, dim, keepdim):
    return torch.logsumexp(x, dim, keepdim)


@dtensor_function(along(2, least=1))
def cumsum(x, dim):
    return x.cumsum(dim)


@dtensor_function(along(2, least=1, descending=st.booleans()))
def sort(x, dim, descending):
    return distinct(x).sort(dim, descending).values


@dtensor_function(along(2, least=2))
def topk(x, dim):
    return distinct(x).topk(2, dim).values


# Shapes


def of_view(draw: Any) -> Any:
    a, b, c = (draw(st.integers(1, 4)) for _ in range(3))
    shapes = [(a, b, c), (a * b, c), (a, b * c), (a * b * c,), (b, a, c), (a, 1, b, c)]
    return [draw(st.sampled_from(shapes))], dict(shape=draw(st.sampled_from(shapes)))


def of_cat(draw: Any) -> Any:
    shape, dim = list(draw(al.strategies.shapes(2))), draw(st.integers(0, 1))
    other = list(shape)
    other[dim] = draw(side)
    return [tuple(shape), tuple(other)], dict(dim=dim)


def of_expand(draw: Any) -> Any:
    a, b = draw(side), draw(side)
    return [draw(st.sampled_from([(1, b), (a, 1), (b,), (a, b)]))], dict(shape=(draw(side), a, b))


def of_slice(draw: Any) -> Any:
    [shape], options = along(2, least=1)(draw)
    start = draw(st.integers(0, shape[options["dim"]] - 1))
    length = draw(st.integers(1, shape[options["dim"]] - start))
    return [shape], dict(**options, start=start, length=length)


@dtensor_function(of_view)
def view(x, shape):
    return x.view(shape)


@dtensor_function(of_view)
def reshape(x, shape):
    return x.transpose(0, -1).reshape(shape)


@dtensor_function(along(3, least=1))
def flatten(x, dim):
    return x.flatten(dim)


@dtensor_function(one(2))
def transpose(x):
    return x.transpose(0, 1)


@dtensor_function(one(3))
def permute(x):
    return x.permute(2, 0, 1)


@dtensor_function(of_cat)
def cat(a, b, dim):
    return torch.cat([a, b], dim)


@dtensor_function(lambda draw: ([draw(al.strategies.shapes(2))] * 2, dict(dim=draw(st.integers(0, 2)))))
def stack(a, b, dim):
    return torch.stack([a, b], dim)


@dtensor_function(along(2, least=1, size=st.integers(1, 3)))
def split(x, dim, size):
    return x.split(size, dim)


@dtensor_function(along(2, least=1))
def unbind(x, dim):
    return x.unbind(dim)


@dtensor_function(of_expand)
def expand(x, shape):
    return x.expand(shape)


@dtensor_function(along(2))
def unsqueeze(x, dim):
    return x.unsqueeze(dim)


@dtensor_function(lambda draw: ([(draw(side), 1, draw(side))], {}))
def squeeze(x):
    return x.squeeze(1)


@dtensor_function(of_slice)
def narrow(x, dim, start, length):
    return x.narrow(dim, start, length)


@dtensor_function(along(2, least=1))
def select(x, dim):
    return x.select(dim, x.shape[dim] - 1)


@dtensor_function(
    lambda draw: ([draw(al.strategies.shapes(2))], dict(widths=[draw(st.integers(0, 2)) for _ in range(4)]))
)
def pad(x, widths):
    return F.pad(x, widths)


@dtensor_function(along(2, least=1))
def flip(x, dim):
    return x.flip(dim)


@dtensor_function(along(2, least=1, shift=st.integers(-2, 2)))
def roll(x, dim, shift):
    return x.roll(shift, dim)


@dtensor_function(
    lambda draw: ([(draw(side), draw(side))], dict(times=(draw(st.integers(1, 3)), draw(st.integers(1, 2)))))
)
def repeat(x, times):
    return x.repeat(times)


@dtensor_function(lambda draw: ([(draw(side), draw(side))], dict(diagonal=draw(st.integers(-2, 2)))))
def tril(x, diagonal):
    return x.tril(diagonal)


@dtensor_function(lambda draw: ([(draw(side), draw(side))], {}))
def diagonal(x):
    return x.diagonal()


# Element by element


@dtensor_function(alike(2))
def where(a, b):
    condition = torch.arange(a.numel()).reshape(a.shape) % 3 == 0
    return torch.where(constant(a, condition), a, b)


@dtensor_function(one(2))
def masked_fill(x):
    condition = torch.arange(x.numel()).reshape(x.shape) % 3 == 0
    return x.masked_fill(constant(x, condition), 0.5)


@dtensor_function(alike(2))
def mul(a, b):
    return a * b


@dtensor_function(
    lambda draw: ([draw(al.strategies.shapes(2)), draw(al.strategies.shapes(2))[:0] or (1,)], {})
)
def add(a, b):
    return a + b


@dtensor_function(alike(2))
def div(a, b):
    return a / (b * b + 1)


@dtensor_function(one(2))
def gelu(x):
    return F.gelu(x)


@dtensor_function(one(2))
def clamp(x):
    return distinct(x).clamp(-0.4, 0.6)


# Pooling


def of_pool(draw: Any) -> Any:
    return [(draw(side), draw(st.integers(1, 3)), draw(st.integers(2, 5)), draw(st.integers(2, 5)))], {}


@dtensor_function(of_pool)
def max_pool2d(x):
    return F.max_pool2d(distinct(x), 2)


# Findings: docs/findings.md

ROWS, WHOLE = (Shard(0),), (Replicate(),)

gradient_of_mse_loss = finding(
    "DTensor.mse_loss.mean", "mse_loss", [(2, 1)] * 2, (2,), [ROWS] * 2, reduction="mean"
)
gradient_of_smooth_l1_loss = finding(
    "DTensor.smooth_l1_loss.mean", "smooth_l1_loss", [(2, 1)] * 2, (2,), [ROWS] * 2, reduction="mean"
)
value_of_uneven_mse_loss = finding(
    "DTensor.mse_loss.uneven", "mse_loss", [(3, 1)] * 2, (2,), [ROWS] * 2, reduction="mean"
)
value_of_uneven_bce_loss = finding(
    "DTensor.bce_with_logits.uneven", "bce_with_logits", [(3, 1)] * 2, (2,), [ROWS] * 2, reduction="mean"
)
mean_with_ignored_rows = finding(
    "DTensor.cross_entropy.ignored",
    "cross_entropy",
    [(2, 3)],
    (2,),
    [ROWS],
    reduction="mean",
    ignored=0,
    weighted=False,
)
placement_of_kept_dim = finding(
    "DTensor.logsumexp.keepdim", "logsumexp", [(1, 2)], (2,), [(Shard(1),)], dim=0, keepdim=True
)
group_norm_of_rows = finding(
    "DTensor.group_norm.rows", "group_norm", [(2, 2, 2), (2,), (2,)], (2,), [ROWS, WHOLE, WHOLE], groups=1
)
linear_of_uneven_rows = finding(
    "DTensor.linear.uneven", "linear", [(3, 2, 1), (1, 1), (1,)], (1, 2), [ROWS * 2, WHOLE * 2, WHOLE * 2]
)
conv_of_partial = finding(
    "DTensor.conv1d.partial",
    "conv1d",
    [(1, 1, 3), (1, 1, 1), (1,)],
    (2,),
    [(Partial(),), WHOLE, WHOLE],
    stride=1,
    padding=0,
)
conv_of_output_channels = finding(
    "DTensor.conv1d.channels",
    "conv1d",
    [(2, 1, 3), (2, 1, 1), (2,)],
    (2,),
    [WHOLE, ROWS, WHOLE],
    stride=1,
    padding=0,
)
conv_of_width = finding(
    "DTensor.conv2d.width",
    "conv2d",
    [(1, 1, 2, 4), (1, 1, 2, 2), (1,)],
    (2,),
    [(Shard(3),), WHOLE, WHOLE],
    stride=2,
    padding=0,
)
embedding_of_few_rows = finding("DTensor.embedding.empty", "embedding", [(4, 1)], (3,), [ROWS], indices=[0])
maximum_of_few = finding("DTensor.max_all.empty", "max_all", [(4,)], (3,), [ROWS], dim=0)
embedding_cut_twice = finding(
    "DTensor.embedding.twice", "embedding", [(4, 1)], (2, 2), [ROWS * 2], indices=[0, 1, 2, 3]
)
