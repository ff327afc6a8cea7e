"""Torch's multi-head attention with a parameter for each projection, which torch itself has only if they differ in size."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional

from adjointlab.layers.attention import attention_weights

__all__ = ["SeparateProjections", "separated"]


class SeparateProjections(nn.Module):
    """A `torch.nn.MultiheadAttention` with a separate weight and bias for each projection."""

    q_proj_weight: nn.Parameter
    k_proj_weight: nn.Parameter
    v_proj_weight: nn.Parameter
    q_proj_bias: nn.Parameter | None
    k_proj_bias: nn.Parameter | None
    v_proj_bias: nn.Parameter | None
    out_proj_weight: nn.Parameter
    out_proj_bias: nn.Parameter | None

    def __init__(self, module: nn.MultiheadAttention) -> None:
        super().__init__()
        self.num_heads = module.num_heads
        self.batch_first = module.batch_first
        for name, value in separated(module.state_dict()).items():
            self.register_parameter(name, nn.Parameter(value.clone()))
        if "q_proj_bias" not in self._parameters:
            for name in ("q_proj_bias", "k_proj_bias", "v_proj_bias", "out_proj_bias"):
                self.register_parameter(name, None)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        need_weights: bool = True,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the result of torch's module, with the causal mask if `is_causal`; twice differentiable.

        The mask replaces scores, as in :mod:`adjointlab.layers.attention`. Torch adds it, and gets NaN if a score is infinite.
        """
        inputs = (
            (query, key, value) if self.batch_first else tuple(x.transpose(0, 1) for x in (query, key, value))
        )
        learnt = (
            (self.q_proj_weight, self.q_proj_bias),
            (self.k_proj_weight, self.k_proj_bias),
            (self.v_proj_weight, self.v_proj_bias),
        )
        projected = (
            functional.linear(x, weight, bias) for x, (weight, bias) in zip(inputs, learnt, strict=True)
        )
        q, k, v = (x.reshape(*x.shape[:2], self.num_heads, -1).transpose(1, 2) for x in projected)
        weights = attention_weights(q, k, is_causal=is_causal)
        y = functional.linear(
            (weights @ v).transpose(1, 2).flatten(2), self.out_proj_weight, self.out_proj_bias
        )
        if not self.batch_first:
            y = y.transpose(0, 1)
        if not need_weights:
            return y, None
        return y, weights.mean(1) if average_attn_weights else weights


def separated(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the state of the separate projections from a state_dict of torch's module.

    Raises `ValueError` if the rows of the joint projection are not a multiple of three.
    """
    result: dict[str, torch.Tensor] = {}
    for name, value in state.items():
        if name.startswith("in_proj_"):
            kind = name.removeprefix("in_proj_")
            if len(value) % 3:
                raise ValueError(f"state: {name} has {len(value)} rows, but needs those of three projections")
            result |= {
                f"{letter}_proj_{kind}": part for letter, part in zip("qkv", value.chunk(3), strict=True)
            }
        else:
            result[name.replace("out_proj.", "out_proj_")] = value
    return result
