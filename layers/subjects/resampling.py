"""Cases of interpolation, padding and adaptive pooling."""

from __future__ import annotations

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn

from adjointlab.core import strategies
from adjointlab.layers.padding import Padding
from adjointlab.layers.pooling.adaptive import AdaptiveAveragePooling, AdaptiveMaxPooling
from adjointlab.layers.subjects.common import Arguments, dtypes, layer_from, layer_subject
from adjointlab.layers.upsampling import Upsample

__all__ = ["adaptive_average_pools", "adaptive_max_pools", "paddings", "upsamplings"]


def _sequential(*, torch_class: str, arguments: dict[str, Any], **_: Any) -> nn.Module:
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()}
    module: nn.Module = getattr(nn, torch_class)(**given)
    return module


def _case(
    draw: DrawFn, ranks: int, sides: tuple[int, ...], lead: int, torch_class: str, arguments: Arguments
) -> dict[str, Any]:
    shape = (*(draw(st.integers(1, 3)) for _ in range(lead)), *sides)
    return {
        "partition": draw(strategies.partitions(ranks, len(shape), whole=False)),
        "input_shape": shape,
        "torch_class": torch_class,
        "arguments": arguments,
        "dtype": draw(dtypes),
    }


def _sides(draw: DrawFn, dims: int, least: int = 1) -> tuple[int, ...]:
    return tuple(draw(st.integers(least, (9, 6, 4)[dims - 1])) for _ in range(dims))


@layer_subject(layer=layer_from(Upsample, _sequential), sequential=_sequential, name="Upsample")
def upsamplings(draw: DrawFn, ranks: int) -> Arguments:
    """One to three dimensions, each cut; all modes, to sizes and by factors, larger and smaller, with aligned corners or without."""
    dims = draw(st.integers(1, 3))
    mode = draw(
        st.sampled_from(
            ("nearest", ("linear", "bilinear", "trilinear")[dims - 1], *["bicubic"] * (dims == 2))
        )
    )
    sides = _sides(draw, dims)
    arguments: Arguments = {"mode": mode}
    if draw(st.booleans()):
        arguments["size"] = tuple(draw(st.integers(1, 8)) for _ in range(dims))
    else:
        factors = tuple(draw(st.sampled_from((2.0, 0.5, 1.5, 3.0, 0.7))) for _ in range(dims))
        assume(all(int(side * factor) for side, factor in zip(sides, factors, strict=True)))
        arguments["scale_factor"] = factors
        arguments["recompute_scale_factor"] = draw(st.sampled_from((None, True)))
    if mode != "nearest":
        arguments["align_corners"] = draw(st.booleans())
    return _case(draw, ranks, sides, 2, "Upsample", arguments)


@layer_subject(layer=layer_from(Padding, _sequential), sequential=_sequential, name="Padding")
def paddings(draw: DrawFn, ranks: int) -> Arguments:
    """All kinds of padding in one to three dimensions, with and without a batch, wider than a part, uneven, negative."""
    dims = draw(st.integers(1, 3))
    kind = draw(st.sampled_from(("Reflection", "Replication", "Circular", "Constant", "Zero")))
    sides = _sides(draw, dims, 2)
    padding: list[int] = []
    for side in reversed(sides):
        most = {"Reflection": side - 1, "Circular": side}.get(kind, 5)
        # Torch (2.13) has no circular padding that also cuts.
        least = 0 if kind == "Circular" else -1
        left = draw(st.integers(least, most))
        padding += [left, draw(st.integers(max(least, 1 - side - left), most))]
    arguments: Arguments = {"padding": tuple(padding)}
    if kind == "Constant":
        arguments["value"] = draw(st.sampled_from((3.0, 0.0, -0.5)))
    return _case(draw, ranks, sides, draw(st.integers(1, 2)), f"{kind}Pad{dims}d", arguments)


@layer_subject(
    layer=layer_from(AdaptiveAveragePooling, _sequential),
    sequential=_sequential,
    name="AdaptiveAveragePooling",
)
def adaptive_average_pools(draw: DrawFn, ranks: int) -> Arguments:
    """One to three dimensions, each cut, with and without a batch; to larger and smaller sizes, and to that of the input."""
    return _adaptive(draw, ranks, "Avg")


@layer_subject(
    layer=layer_from(AdaptiveMaxPooling, _sequential), sequential=_sequential, name="AdaptiveMaxPooling"
)
def adaptive_max_pools(draw: DrawFn, ranks: int) -> Arguments:
    """Sizes as for the average; with the indices and without; many equal elements."""
    case = _adaptive(draw, ranks, "Max")
    return case | {"arguments": {**case["arguments"], "return_indices": draw(st.booleans())}}


def _adaptive(draw: DrawFn, ranks: int, kind: str) -> dict[str, Any]:
    dims = draw(st.integers(1, 3))
    length = st.integers(1, 6) if dims == 1 else st.one_of(st.none(), st.integers(1, 6))
    arguments: Arguments = {
        "output_size": tuple(draw(length) for _ in range(dims)) if dims > 1 else draw(length)
    }
    name = f"Adaptive{kind}Pool{dims}d"
    return _case(draw, ranks, _sides(draw, dims), draw(st.integers(1, 2)), name, arguments)
