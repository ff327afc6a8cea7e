"""Planted bugs of layers that move elements: reshaping, stacking, joining, splitting, shuffling, adaptive and power pooling, unpooling; and of soft targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from adjointlab.layers.joining import Chunk, Chunks, Concatenation, Split, Stack
from adjointlab.layers.losses import CrossEntropyLoss
from adjointlab.layers.pooling import AdaptiveMaxPooling, LPPooling, MaxUnpooling
from adjointlab.layers.pooling.windows import global_positions
from adjointlab.layers.reshape import Reshape, Unflatten
from adjointlab.layers.shuffle import ChannelShuffle, PixelShuffle, PixelUnshuffle
from tests.planted.altered import counting_own_classes


def instead(own: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """A worker's own result in the place of the right one, where it has its shape; every rank still communicates."""
    return own + 0 * right if own.shape == right.shape else right


def own_first(x: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The right result, with the elements that the worker had itself in the place of the first ones."""
    own = x.flatten()[: right.numel()]
    return torch.cat([own, right.flatten()[own.numel() :]]).reshape(right.shape) + 0 * right


class ReshapedLocally(Reshape):
    """Each worker reshapes the elements that it has, which are not those of its part of the result."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return own_first(x, super().forward(x))


class UnflattenedInTheOtherOrder(Unflatten):
    """Takes elements that follow each other to lie along the first of the new dimensions, where that is the last."""

    def lay_out(self, module: Any, *arguments: Any, **named: Any) -> None:
        super().lay_out(module, *arguments, **named)
        self.dim = module.dim % len(self.input_shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return instead(y.transpose(self.dim, self.dim + 1), y) if y.ndim > len(self.input_shape) else y


class StackedAlongAnotherDimension(Stack):
    """Stacks along the first dimension, and views that as the shape that was asked for."""

    def stacked(self, x: tuple[torch.Tensor, ...]) -> torch.Tensor:
        y = super().stacked(x)
        return torch.stack(x).reshape(y.shape) if self.partition.is_active(self.rank) else y


class ChunksOfTheOwnPart(Chunk):
    """Each worker chunks what it holds, and returns that as its part of each chunk."""

    def lay_out(self, module: nn.Module) -> None:
        super().lay_out(module)
        self.chunks = cast(Chunks, module).chunks

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        right, own = super().forward(x), x.chunk(self.chunks, self.dim)
        return (*map(instead, own, right), *right[len(own) :])


class PixelsOfAnUnevenChannelCut(PixelShuffle):
    """Takes the first of the worker's own channels for its blocks, also where they begin inside of one."""

    def lay_out(self, module: Any, *arguments: Any, **named: Any) -> None:
        super().lay_out(module, *arguments, **named)
        self.factor = module.upscale_factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, square = super().forward(x), self.factor**2
        needed = y.shape[-3] * square
        own = x[..., :needed, :, :]
        own = functional.pad(own, [0, 0, 0, 0, 0, needed - own.shape[-3]])
        return y if 0 in own.shape else instead(functional.pixel_shuffle(own, self.factor), y)


class PixelsOfTheOwnPart(PixelUnshuffle):
    """Counts the blocks of pixels from the worker's own first pixel."""

    def lay_out(self, module: Any, *arguments: Any, **named: Any) -> None:
        super().lay_out(module, *arguments, **named)
        self.factor = module.downscale_factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, r = super().forward(x), self.factor
        height, width = y.shape[-2] * r, y.shape[-1] * r
        if 0 in (*x.shape, *y.shape) or x.shape[-2] < height or x.shape[-1] < width:
            return y
        return instead(functional.pixel_unshuffle(x[..., :height, :width], r), y)


class ChannelsLeftWhereTheyAreCut(ChannelShuffle):
    """Shuffles channels on workers that have all of them, and nowhere else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return own_first(x, y) if self.partition.shape[1] > 1 else y


class AdaptiveMaximaOfTheOwnPart(AdaptiveMaxPooling):
    """Each worker spreads its outputs over what it holds itself."""

    def forward(self, x: torch.Tensor) -> Any:
        result = super().forward(x)
        y = result[0] if self.return_indices else result
        if 0 in (*x.shape, *y.shape):
            return result
        pool = getattr(functional, f"adaptive_max_pool{self.dims}d")
        own = instead(pool(x, self.local_output_shape[-self.dims :]), y)
        return (own, result[1]) if self.return_indices else own


class AdaptiveIndicesInTheOwnPart(AdaptiveMaxPooling):
    """Counts indices from the first element that the worker has got."""

    def _globally(self, indices: torch.Tensor, elements: Sequence[torch.Tensor]) -> torch.Tensor:
        return global_positions(
            indices, [each.flatten() for each in elements], self.input_shape[-self.dims :]
        )


class ClippedWindowsCountedWhole(LPPooling):
    """Sums what a window at the border has, where torch scales it up to a whole window."""

    def averages(self, x: torch.Tensor) -> torch.Tensor:
        return super().averages(x) * self.count / torch.Size(self.kernel_size).numel()


class UnpooledByLocalIndex(MaxUnpooling):
    """Takes an index for a position in the worker's own part."""

    def local_places(self, indices: torch.Tensor, elsewhere: int) -> torch.Tensor:
        return torch.where(indices < elsewhere, indices, elsewhere)


class OfProbabilities(CrossEntropyLoss):
    """Base of the bugs of a cross-entropy with probabilities as targets."""


class ProbabilitiesSmoothedOverTheOwnClasses(OfProbabilities):
    """Divides the label smoothing by the number of the worker's own classes."""

    def expected(self, x: torch.Tensor, targets: torch.Tensor, log_sums: torch.Tensor) -> torch.Tensor:
        with counting_own_classes(self):
            return super().expected(x, targets, log_sums)


class PositionsCountedByEveryWorker(OfProbabilities):
    """A mean over the positions of every worker, which along P_c are the same ones."""

    def reduced_over_targets(self, losses: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return super().reduced_over_targets(losses, torch.ones_like(weights))


class JoinedOnEachWorker(Concatenation):
    """Each worker joins what it holds of the tensors, which along a cut is not what it holds of the result."""

    def forward(self, *x: torch.Tensor) -> torch.Tensor:
        y, own = super().forward(*x), torch.cat(x, self.dim)
        return own + 0 * y if own.shape == y.shape else y


class PartsInTheWrongOrder(Split):
    """Every part but the first begins where the one before it does."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = super().forward(x)
        return tuple(
            before + 0 * part if before.shape == part.shape else part
            for before, part in zip((parts[0], *parts), parts, strict=False)
        )
