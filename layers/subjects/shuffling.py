"""Cases of pixel and channel shuffles."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn

from adjointlab.layers.shuffle import ChannelShuffle, PixelShuffle, PixelUnshuffle
from adjointlab.layers.subjects.common import Arguments, layer_of, layer_subject, twin_of
from adjointlab.layers.subjects.reshaping import rearranged

__all__ = ["channel_shuffles", "pixel_shuffles", "pixel_unshuffles"]


def _pixels(draw: DrawFn) -> tuple[tuple[int, ...], tuple[int, int, int], int]:
    """Draw leading sides, those of channels, height and width, and a factor."""
    lead = tuple(draw(st.integers(1, 3)) for _ in range(draw(st.integers(0, 2))))
    channels, height, width = (draw(st.integers(1, 4)) for _ in range(3))
    return lead, (channels, height, width), draw(st.sampled_from((2, 3, 1)))


@layer_subject(layer=layer_of(PixelShuffle), sequential=twin_of(nn.PixelShuffle), name="PixelShuffle")
def pixel_shuffles(draw: DrawFn, ranks: int) -> Arguments:
    """Three to five dimensions in any cut; channels are also cut inside blocks."""
    lead, (c, h, w), r = _pixels(draw)
    return {
        **rearranged(draw, ranks, (*lead, c * r * r, h, w), (*lead, c, h * r, w * r)),
        "upscale_factor": r,
    }


@layer_subject(layer=layer_of(PixelUnshuffle), sequential=twin_of(nn.PixelUnshuffle), name="PixelUnshuffle")
def pixel_unshuffles(draw: DrawFn, ranks: int) -> Arguments:
    """Three to five dimensions in any cut; pixels are also cut inside blocks."""
    lead, (c, h, w), r = _pixels(draw)
    return {
        **rearranged(draw, ranks, (*lead, c, h * r, w * r), (*lead, c * r * r, h, w)),
        "downscale_factor": r,
    }


@layer_subject(layer=layer_of(ChannelShuffle), sequential=twin_of(nn.ChannelShuffle), name="ChannelShuffle")
def channel_shuffles(draw: DrawFn, ranks: int) -> Arguments:
    """Three to five dimensions in any cut; one group, or as many as channels, too."""
    groups, per_group = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    sides = (draw(st.integers(1, 3)) for _ in range(draw(st.integers(1, 3))))
    shape = (draw(st.integers(1, 3)), groups * per_group, *sides)
    return {**rearranged(draw, ranks, shape, shape), "groups": groups}
