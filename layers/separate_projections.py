"""Torch's multi-head attention with a parameter for each projection, which torch itself has only where they differ in size."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional

__all__ = ["SeparateProjections", "separated"]


class SeparateProjections(nn.Module):
    """A `torch.nn.MultiheadAttention` with a weight and a bias of its own for each projection."""

    q_proj_weight: nn.Parameter
    k_proj_weight: nn.Parameter
    v_proj_weight: nn.Parameter
    q_proj_bias: nn.Parameter | None
    k_proj_bias: nn.Parameter
    v_proj_bias: nn.Parameter
    out_proj_weight: nn.Parameter
    out_proj_bias: nn.Parameter | None

    def __init__(self, module: nn.MultiheadAttention) -> None:
        super().__init__()
        self.module_arguments = module.embed_dim, module.num_heads
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
        """Return what torch's module does, with the causal mask if `is_causal`, and twice differentiable."""
        if self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        bias = None
        if self.q_proj_bias is not None:
            bias = torch.cat((self.q_proj_bias, self.k_proj_bias, self.v_proj_bias))
        mask = torch.ones(query.shape[0], key.shape[0], dtype=torch.bool).triu(1) if is_causal else None
        y, weights = functional.multi_head_attention_forward(
            query, key, value, *self.module_arguments, None, bias, None, None, False, 0.0, self.out_proj_weight,
            self.out_proj_bias, attn_mask=mask, use_separate_proj_weight=True, q_proj_weight=self.q_proj_weight,
            k_proj_weight=self.k_proj_weight, v_proj_weight=self.v_proj_weight, average_attn_weights=average_attn_weights,
        )  # fmt: skip
        return (y.transpose(0, 1) if self.batch_first else y), (weights if need_weights else None)


def separated(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The state of the separate projections from a state_dict of torch's module."""
    result: dict[str, torch.Tensor] = {}
    for name, value in state.items():
        if name.startswith("in_proj_"):
            kind = name.removeprefix("in_proj_")
            result |= {
                f"{letter}_proj_{kind}": part for letter, part in zip("qkv", value.chunk(3), strict=True)
            }
        else:
            result[name.replace("out_proj.", "out_proj_")] = value
    return result
