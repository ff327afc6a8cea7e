"""Distributed multi-head attention over P_n x P_h x P_s: batch, heads and sequence may be cut.

    forward    x̂ = B_{P_x→P} x, for the query, key and value      Ŵ = B_{P_w→P} W, for the four projections
               q, k, v = x̂ Ŵᵀ + b̂                                of the worker's own heads
               a = Attention(q, k, v)                              of the worker's own heads, along the sequence as P_s has it
               ŷ = a Ŵ_oᵀ                                          the summand of the worker's own heads
               y = R_{P→P_y} ŷ
    adjoint    that of each step in the reverse order

P_x and P_y are P with P_h = 1, and P_w is P with P_n = P_s = 1: a worker has the rows of the input projections, and the columns of the
output projection, that belong to its heads. So heads cost one broadcast of each input and one reduction of the output, like a column-
and a row-parallel layer. :mod:`adjointlab.layers.attention` describes the messages along the sequence.

Torch keeps the three input projections in one parameter, in which the rows of one head are not a single window. The layer has separate
parameters, as torch itself does if they differ in size, and joins them when it exchanges values with sequential modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import nn

from adjointlab.core.layout import Layout, balanced_cut
from adjointlab.core.partition import Partition
from adjointlab.core.space import Space, Tensor
from adjointlab.layers.attention import Attention, attention_weights
from adjointlab.layers.channels import windows_of
from adjointlab.layers.differentiable import carried
from adjointlab.layers.distributed import TorchLayer
from adjointlab.layers.grids import with_index_zero
from adjointlab.layers.linear import affine_summand
from adjointlab.layers.separate_projections import SeparateProjections, separated
from adjointlab.layers.torch_modules import dtype_name
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.sum_reduce import SumReduce

__all__ = ["MultiheadAttention"]

_INPUTS = ("query", "key", "value")


class MultiheadAttention(TorchLayer, torch_classes=(nn.MultiheadAttention,)):
    """`torch.nn.MultiheadAttention` over `partition` = P_n x P_h x P_s, for queries of global shape `input_shape`.

    Called with (query, key, value), of shapes (queries, n, embed_dim), (keys, n, kdim) and (keys, n, vdim), with `batch_first` of
    (n, queries, embed_dim) and so on; by default there are as many `keys` as queries. They and the output are cut over P_n and P_s, on
    the workers whose index along P_h is 0; all other workers take and return tensors of zero volume. Heads are cut over P_h. Along the
    sequence `algorithm` is "ring" or "all-to-all".

    Arguments of a call are torch's, and so is the result, a pair. `is_causal` needs no mask. `need_weights` must be `False` if P_s cuts
    the sequence; averaged weights lie on the workers of the output, and those of each head on the workers of the head.

    Raises `ValueError` for an input that is not (queries, n, embed_dim), a partition of another order, `add_bias_kv` and `add_zero_attn`;
    and in a call for `key_padding_mask`, `attn_mask`, weights over a cut sequence, dropout in training, and arguments that differ by rank.
    """

    options = ("keys", "algorithm")
    q_proj_weight: nn.Parameter
    k_proj_weight: nn.Parameter
    v_proj_weight: nn.Parameter
    out_proj_weight: nn.Parameter
    out_proj_bias: nn.Parameter | None

    def lay_out(
        self, module: nn.MultiheadAttention, *, keys: int | None = None, algorithm: str = "ring"
    ) -> None:
        self._refuse_unsupported(module)
        self.embed_dim, self.num_heads, self.head_dim = module.embed_dim, module.num_heads, module.head_dim
        self.dropout, self.batch_first, self.rounding = module.dropout, module.batch_first, None
        self.separate_inputs = not module._qkv_same_embed_dim
        self.dtype_name = dtype_name(self.dtype)
        ends = balanced_cut(self.num_heads, self.partition.shape[1])
        self.of_heads = windows_of([head * self.head_dim for head in ends])
        """The features of each part of the heads."""
        shape = self.input_shape
        queries, n = (shape[1], shape[0]) if self.batch_first else shape[:2]
        self.attention = Attention(
            self.comm,
            self.partition,
            (n, self.num_heads, queries, self.head_dim),
            keys=keys,
            algorithm=algorithm,
            dtype=self.dtype,
        )
        keys = queries if keys is None else keys
        on_face = with_index_zero(self.partition, 1)
        self._lay_out_sequences(module, n, queries, keys, on_face)
        self._own_projections(module, on_face)
        scores = Layout((n, queries, keys), self.partition, axes=(0, None, None))
        self.sum_weights = self._sum(scores, on_face)

    def _refuse_unsupported(self, module: nn.MultiheadAttention) -> None:
        shape, partition = self.input_shape, self.partition
        if len(shape) != 3 or shape[2] != module.embed_dim or partition.order != 3:
            raise ValueError(
                f"input_shape: {shape} over the partition {partition}, but multi-head attention needs (queries, n, embed_dim = "
                f"{module.embed_dim}), with batch_first (n, queries, embed_dim), over batch, heads and sequence"
            )
        for name, given in (
            ("add_bias_kv", module.bias_k is not None),
            ("add_zero_attn", module.add_zero_attn),
        ):
            if given:
                raise ValueError(f"{name}: True is not supported")

    def _lay_out_sequences(
        self, module: nn.MultiheadAttention, n: int, queries: int, keys: int, on_face: Partition
    ) -> None:
        """Lay out inputs and output on the workers of the first heads, which broadcast inputs and sum the output."""
        axes = (0, 2, None) if self.batch_first else (2, 0, None)

        def sequence(length: int, features: int) -> Layout:
            sides = (n, length, features) if self.batch_first else (length, n, features)
            return Layout(sides, on_face, axes=axes)

        q, k, v = (
            sequence(queries, self.embed_dim),
            sequence(keys, module.kdim),
            sequence(keys, module.vdim),
        )
        self.spread_inputs = tuple(self._spread(x, self.partition) for x in (q, k, v))
        self.joined_heads = Layout(q.shape, self.partition, [*q.windows[:2], self.of_heads], (*axes[:2], 1))
        self.sum_y = self._sum(Layout(q.shape, self.partition, q.windows, axes), on_face)
        inputs = zip(_INPUTS, (q, k, v), strict=True)
        self.domain = Space(*(Tensor(x, self.dtype_name, name=name) for name, x in inputs))
        self.codomain = Space(q, dtype=self.dtype_name, name="y")

    def _own_projections(self, module: nn.MultiheadAttention, on_face: Partition) -> None:
        separate = SeparateProjections(module)
        layouts = {
            name: self._parameter_layout(name, tuple(parameter.shape))
            for name, parameter in separate.named_parameters()
        }
        self.spread = {
            name: self._spread(layout, on_face if name == "out_proj_bias" else self.partition)
            for name, layout in layouts.items()
        }
        self.own(separate, layouts)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(module.get_parameter(self.sequential_name(name)).requires_grad)

    def _spread(self, source: Layout, target: Partition) -> Broadcast:
        return Broadcast(self.comm, source, target, dtype=self.dtype_name, preserve_batch=False)

    def _sum(self, summands: Layout, target: Partition) -> SumReduce:
        return SumReduce(self.comm, summands, target, dtype=self.dtype_name, preserve_batch=False)

    def _parameter_layout(self, name: str, shape: tuple[int, ...]) -> Layout:
        """Return a layout without copies: rows of input projections and columns of the output projection by heads, its bias whole."""
        if name == "out_proj_bias":
            return Layout(shape, with_index_zero(self.partition, 0, 1, 2), axes=(None,))
        cut_dim = 1 if name == "out_proj_weight" else 0
        windows = [self.of_heads if dim == cut_dim else ((0, side),) for dim, side in enumerate(shape)]
        axes = [1 if dim == cut_dim else None for dim in range(len(shape))]
        return Layout(shape, with_index_zero(self.partition, 0, 2), windows, axes)

    def results(self, need_weights: bool = True, average_attn_weights: bool = True) -> Space:
        """Return the space of the results of a call with these arguments."""
        (y,) = self.codomain.tensors
        if not need_weights:
            return Space(y)
        (averaged,) = self.sum_weights.codomain.tensors
        n, queries, keys = averaged.layout.shape
        per_head = Layout((n, self.num_heads, queries, keys), self.partition, axes=(0, 1, None, None))
        weights = averaged.layout if average_attn_weights else per_head
        return Space(y, Tensor(weights, self.dtype_name, name="weights"))

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the local tensors of the output and of the weights, or `None` without weights, from those of query, key and value."""
        inputs = self.check_inputs(
            query,
            key,
            value,
            check_others=lambda: self._refuse(key_padding_mask, attn_mask, need_weights),
            flags={
                "need_weights": bool(need_weights),
                # Without weights this flag is not used.
                "average_attn_weights": bool(need_weights and average_attn_weights),
                "is_causal": bool(is_causal),
            },
        )
        q, k, v = (self._projected(number, x) for number, x in enumerate(inputs))
        weights = None
        if need_weights:
            weights = attention_weights(q, k, is_causal=is_causal)
            heads = (weights @ v.to(weights.dtype)).to(v.dtype)
        else:
            self.attention.is_causal = is_causal
            heads = self.attention.attend(q, k, v)
        heads = heads.transpose(1, 2) if self.batch_first else heads.permute(2, 0, 1, 3)
        heads = heads.reshape(self.joined_heads.local_shape(self.rank))
        bias = (
            None if self.out_proj_bias is None else carried(self.spread["out_proj_bias"], self.out_proj_bias)
        )
        weight = carried(self.spread["out_proj_weight"], self.out_proj_weight)
        y = carried(self.sum_y, affine_summand(heads, weight, bias).to(self.dtype))
        if weights is not None:
            weights = weights.to(self.dtype)
            if average_attn_weights:
                weights = carried(self.sum_weights, weights.sum(1) / self.num_heads)
        return y, weights

    def _projected(self, number: int, x: torch.Tensor) -> torch.Tensor:
        """Return the worker's heads of query, key or value, as (n, heads, sequence, head_dim)."""
        letter = "qkv"[number]
        x = carried(self.spread_inputs[number], x)
        weight, bias = (
            None if parameter is None else carried(self.spread[name], parameter)
            for name in (f"{letter}_proj_weight", f"{letter}_proj_bias")
            for parameter in [self._parameters[name]]
        )
        assert weight is not None
        # Under autocast only the product has the lower precision: the operators move the layer's element type.
        heads = affine_summand(x, weight, bias).to(x.dtype)
        heads = heads.reshape(*heads.shape[:2], weight.shape[0] // self.head_dim, self.head_dim)
        heads = heads.transpose(1, 2) if self.batch_first else heads.permute(1, 2, 0, 3)
        return heads.reshape(self.attention.domain.tensors[number].layout.local_shape(self.rank))

    def _refuse(
        self, key_padding_mask: torch.Tensor | None, attn_mask: torch.Tensor | None, need_weights: bool
    ) -> None:
        """Raise `ValueError` for arguments of a call that are not supported."""
        for name, mask in (("key_padding_mask", key_padding_mask), ("attn_mask", attn_mask)):
            if mask is not None:
                raise ValueError(f"{name}: no mask is supported but the causal one, is_causal=True")
        if need_weights and self.partition.shape[2] > 1:
            raise ValueError(
                "need_weights: no worker has the weights of all keys where the sequence is cut; call with need_weights=False"
            )
        if self.training and self.dropout:
            raise ValueError(
                f"dropout: {self.dropout} of the weights is not supported in training; make the module with dropout=0"
            )

    def sequential(self) -> nn.Module:
        module = cast(nn.MultiheadAttention, super().sequential())
        # In the order of torch's constructor; the module has no reset_parameters.
        module.out_proj.reset_parameters()
        module._reset_parameters()
        return module

    def sequential_name(self, name: str) -> str:
        if name.startswith("out_proj"):
            return name.replace("out_proj_", "out_proj.")
        return name if name.endswith("weight") and self.separate_inputs else f"in_proj_{name.split('_')[-1]}"

    def own_names(self, state: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return separated(state)

    def sequential_names(self, own: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        parts: dict[str, list[torch.Tensor]] = {}
        for name, value in own.items():
            parts.setdefault(self.sequential_name(name), []).append(value)
        return {name: torch.cat(values) for name, values in parts.items()}
