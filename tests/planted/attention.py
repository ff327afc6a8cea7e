"""Planted bugs of attention, and of dropout: blocks of a ring, and masks by local index."""

from __future__ import annotations

from typing import Any

import torch

from adjointlab.core.layout import Window
from adjointlab.layers.attention import Attention
from adjointlab.layers.dropout import Dropout
from tests.planted.altered import Altered


class MaskByLocalIndex(Dropout):
    """The mask of a tensor that begins where the worker's part does."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.window = tuple((0, stop - start) for start, stop in self.window)


class MaskScaledByTheOwnShare(Dropout):
    """Divides by the share of its own elements that a worker has kept."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        kept = y.detach() != 0
        share = float(kept.sum()) / max(1, int((x.detach() != 0).sum()))
        return y * ((1 - self.p) / share) if self.training and 0 < self.p < 1 and share else y


class StaleBlock(Attention):
    """In the second step of the ring a worker still uses the keys and values of the first."""

    def _attended(self, state: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: Window) -> Any:
        before = getattr(self, "before", None)
        self.before = None if before is not None else (k, v)
        if before is not None and before[0].shape == k.shape and len(self.key_windows) > 1:
            return super()._attended(state, q, *before, window)
        return super()._attended(state, q, k, v, window)


class MaskByLocalPositions(Attention):
    """The causal mask compares positions in the worker's part with positions in the block."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        start, stop = self.query_window
        self.query_window = (0, stop - start)
        self.key_windows = [(0, stop - start) for start, stop in self.key_windows]


class GradientsOfBlocksStayWhereTheyAre(Attention):
    """The backward pass of a step of the ring leaves the gradient of a block with the worker that used it."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        rank = self.rank
        for number, step in enumerate(self.steps):
            shape = step.domain.tensors[0].layout.local_shape(rank)

            def kept(y: torch.Tensor, shape: tuple[int, ...] = shape) -> torch.Tensor:
                return y.clone() if y.shape == shape else y.new_zeros(shape)

            self.steps[number] = Altered(step, adjoint=kept)  # type: ignore[call-overload]
