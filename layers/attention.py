"""Distributed scaled dot-product attention over P_n x P_h x P_s: batch, heads and sequence may be cut.

    y = softmax(q kᵀ / √e + mask) v        for each sample and head

Heads are independent, and need no message. Along the sequence, with P_s = p workers:

ring        The blocks of k and v are passed around: in step t worker s has the block of worker s - t, and adds its share with the
            running maximum and sum of the softmax:

                m' = max(m, max s)    o' = e^(m - m') o + e^(s - m') v    l' = e^(m - m') l + Σ e^(s - m')    y = o / l

            p - 1 messages of the size of a block for each worker. The adjoint of a step is the step back, so the gradients of a block
            are passed around in the other direction and end where the block lies.
all-to-all  q, k and v are repartitioned so that heads are cut over P_h P_s workers and the sequence is whole, and y back: four
            repartitions; at most as many workers have work as there are heads.

The causal mask compares global indices, which follow from the layouts. The maximum has no gradient, as y does not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from adjointlab.core.layout import Layout, Window
from adjointlab.core.partition import Partition, PartitionLike, whole_number
from adjointlab.core.space import Space, Tensor
from adjointlab.layers.arguments import shape_of
from adjointlab.layers.differentiable import apply, connected, in_graph
from adjointlab.layers.distributed import DistributedModule
from adjointlab.layers.half_precision import accumulation_dtype
from adjointlab.layers.torch_modules import dtype_name
from adjointlab.primitives.repartition import Repartition
from adjointlab.typing import Communicator

__all__ = ["Attention", "ScaledDotProductAttention", "attention_weights"]

ALGORITHMS = ("ring", "all-to-all")


class ScaledDotProductAttention(nn.Module):
    """`torch.nn.functional.scaled_dot_product_attention` as a module, with no mask other than the causal one, and twice differentiable."""

    def __init__(self, is_causal: bool = False, scale: float | None = None) -> None:
        super().__init__()
        self.is_causal, self.scale = is_causal, scale

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Return y, of shape (n, heads, queries, features of v)."""
        weights = attention_weights(q, k, self.scale, is_causal=self.is_causal)
        return (weights @ v.to(weights.dtype)).to(v.dtype)


def attention_weights(
    q: torch.Tensor, k: torch.Tensor, scale: float | None = None, *, is_causal: bool = False
) -> torch.Tensor:
    """Return the weights softmax(q kᵀ · scale + mask) of all keys for each query, from whole sequences; float32 for half precision."""
    q, k = (each.to(accumulation_dtype(each.dtype)) for each in (q, k))
    scores = q @ k.transpose(-1, -2) * _scale(scale, q.shape[-1])
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~allowed, -torch.inf)
    return torch.softmax(scores, -1)


class Attention(DistributedModule):
    """Scaled dot-product attention over `partition` = P_n x P_h x P_s, for queries of `input_shape` (n, heads, queries, features).

    Called with (q, k, v): k has the shape (n, heads, keys, features), and v (n, heads, keys, value_features); `keys` defaults to the
    number of queries and `value_features` to that of features. All lie over `partition`, balanced along n, heads and sequence, and so
    does the result (n, heads, queries, value_features).

    With `is_causal` query i attends to the keys up to i; `scale` is by default 1/√features; `algorithm` is "ring" or "all-to-all".

    Raises `ValueError` for shapes and partitions of another order, for no keys, and for another algorithm.
    """

    def __init__(
        self,
        comm: Communicator,
        partition: PartitionLike,
        input_shape: Sequence[int],
        *,
        keys: int | None = None,
        value_features: int | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        algorithm: str = "ring",
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(comm, partition, ScaledDotProductAttention(is_causal, scale))
        partition = self.partition
        shape = shape_of("input_shape", input_shape)
        _check_arguments(shape, partition, algorithm)
        n, heads, queries, features = shape
        keys = queries if keys is None else whole_number("keys", keys)
        if keys < 1:
            raise ValueError("keys: there is none to attend to")
        values = features if value_features is None else whole_number("value_features", value_features)
        self.is_causal, self.scale, self.algorithm = is_causal, _scale(scale, features), algorithm
        self.rounding = None
        name = dtype_name(dtype)
        shapes = ((n, heads, queries, features), (n, heads, keys, features), (n, heads, keys, values))
        q, k, v = (_layout(each, partition) for each in shapes)
        y = _layout((n, heads, queries, values), partition)
        self.domain = Space(Tensor(q, name, name="q"), Tensor(k, name, name="k"), Tensor(v, name, name="v"))
        self.codomain = Space(y, dtype=name, name="y")
        self.steps: list[Repartition] = []
        """The moves of keys and values along the ring."""
        self.spread: tuple[Repartition, ...] = ()
        self.gather: Repartition | None = None
        work = q  # where the queries lie in the computation
        self.blocks = [k]
        """The layouts of the keys that this worker has in turn."""
        if algorithm == "ring":
            self._pass_around(k, features + values, name)
        elif partition.shape[2] > 1:
            work = self._cut_heads_instead(q, k, v, y, name)
        self.query_window = _sequence_window(work, self.rank)
        self.key_windows = [_sequence_window(block, self.rank) for block in self.blocks]

    def _pass_around(self, k: Layout, features: int, dtype: str) -> None:
        """Set up the steps that pass the blocks of keys and values, of `features` together, around the workers."""
        rings = [_rotated(self.partition, step) for step in range(self.partition.shape[2])]
        self.blocks = [_layout((*k.shape[:3], features), ring, like=k) for ring in rings]
        moves = pairwise(self.blocks)
        self.steps = [Repartition(self.comm, source, target, dtype=dtype) for source, target in moves]

    def _cut_heads_instead(self, q: Layout, k: Layout, v: Layout, y: Layout, dtype: str) -> Layout:
        """Set up the repartitions that cut the heads instead of the sequence; return the layout of the moved queries."""
        batches = self.partition.shape[0]
        over_heads = Partition((batches, self.partition.size // batches, 1), self.partition.ranks)
        moved = [_layout(each.shape, over_heads) for each in (q, k, v)]
        self.spread = tuple(
            Repartition(self.comm, source, target, dtype=dtype)
            for source, target in zip((q, k, v), moved, strict=True)
        )
        self.gather = Repartition(self.comm, _layout(y.shape, over_heads), y, dtype=dtype)
        self.blocks = [moved[1]]
        return moved[0]

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The local tensor of y, from those of q, k and v."""
        q, k, v = self.check_inputs(q, k, v, flags={"is_causal": bool(self.is_causal)})
        return self.attend(in_graph(q), k, v)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Return the local tensor of y, from those of q, k and v, which must be in the domain."""
        if self.spread:
            q, k, v = (apply(move, x) for move, x in zip(self.spread, (q, k, v), strict=True))
        features, dtype = k.shape[-1], v.dtype
        block = torch.cat((k, v), -1)
        q = q.to(accumulation_dtype(dtype))
        state = _State.empty(q, v.shape[-1])
        for step, window in enumerate(self.key_windows):
            if step:
                block = apply(self.steps[step - 1], block)
            state = self._attended(state, q, block[..., :features], block[..., features:], window)
        # The last block is in the graph of every worker, and so are all moves: their adjoints take place on all workers.
        y = connected((state.sums / state.weights.unsqueeze(-1)).to(dtype), block)
        return y if self.gather is None else apply(self.gather, y)

    def _attended(
        self, state: _State, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: Window
    ) -> _State:
        """Return the state after the keys and values of a block, those of `window`."""
        k, v = k.to(q.dtype), v.to(q.dtype)
        scores = q @ k.transpose(-1, -2) * self.scale
        if self.is_causal:
            queries, keys = (torch.arange(*each, device=q.device) for each in (self.query_window, window))
            scores = scores.masked_fill(queries[:, None] < keys, -torch.inf)
        largest = state.largest
        if scores.shape[-1]:
            largest = torch.maximum(largest, scores.detach().amax(-1))
        # If all keys so far are masked, the difference would be ∞ - ∞.
        finite = torch.where(largest == -torch.inf, 0.0, largest)
        shares = torch.exp(scores - finite.unsqueeze(-1))
        kept = torch.exp(state.largest - finite)
        return _State(
            largest, state.weights * kept + shares.sum(-1), state.sums * kept.unsqueeze(-1) + shares @ v
        )


class _State(NamedTuple):
    """For each query, the largest score m so far, the sum of the weights exp(score - m), and that of the values with these weights."""

    largest: torch.Tensor
    weights: torch.Tensor
    sums: torch.Tensor

    @staticmethod
    def empty(q: torch.Tensor, features: int) -> _State:
        """Return the state before the first block."""
        per_query = q.shape[:-1]
        return _State(
            q.new_full(per_query, -torch.inf), q.new_zeros(per_query), q.new_zeros((*per_query, features))
        )


def _check_arguments(shape: Sequence[int], partition: Partition, algorithm: str) -> None:
    if len(shape) != 4 or partition.order != 3:
        raise ValueError(
            f"input_shape: {shape} over the partition {partition}, but attention needs (n, heads, queries, features) over "
            "batch, heads and sequence"
        )
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm: {algorithm!r} is not one of {', '.join(ALGORITHMS)}")


def _scale(scale: float | None, features: int) -> float:
    return 1 / math.sqrt(max(1, features)) if scale is None else scale


def _layout(shape: Sequence[int], partition: Partition, like: Layout | None = None) -> Layout:
    """Return the layout of (n, heads, sequence, features), the first three of which are cut: in the windows of `like`, or balanced."""
    windows = None if like is None else [*like.windows[:3], ((0, shape[3]),)]
    return Layout(shape, partition, windows, (0, 1, 2, None))


def _rotated(partition: Partition, step: int) -> Partition:
    """Return the partition in which every block along the sequence lies `step` workers further on."""
    grid = np.asarray(partition.ranks).reshape(partition.shape)
    return Partition(partition.shape, [int(rank) for rank in np.roll(grid, -step, axis=2).reshape(-1)])


def _sequence_window(layout: Layout, rank: int) -> Window:
    window = layout.window(rank)
    return (0, 0) if window is None else window[2]
