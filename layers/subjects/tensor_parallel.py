"""Cases of the column- and row-parallel linear layers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn
from torch.nn import functional

from adjointlab.core import strategies
from adjointlab.layers.subjects.common import Arguments, dtypes, layer_of, layer_subject, twin_of
from adjointlab.layers.tensor_parallel import ColumnParallelLinear, RowParallelLinear

__all__ = ["column_parallel_linears", "row_parallel_linears"]


class BiasBeside(nn.Linear):
    """A linear layer that returns its bias as a second result instead of adding it."""

    def forward(self, x: torch.Tensor) -> Any:
        return functional.linear(x, self.weight), self.bias.clone()


def sequential_linear(*, skip_bias_add: bool, **case: Any) -> nn.Module:
    """Return the sequential twin of a case."""
    return twin_of(BiasBeside if skip_bias_add and case["bias"] else nn.Linear)(**case)


def parallel_linear(comm: Any, *, kind: type[nn.Module], **case: Any) -> nn.Module:
    """Return the layer of a case; if it has no bias to return with y, it returns only y."""
    layer = layer_of(kind)(comm, **case)  # type: ignore[arg-type]
    if case["skip_bias_add"] and not case["bias"]:
        layer.register_forward_hook(lambda _, __, result: result[0])
    return layer


@layer_subject(
    layer=partial(parallel_linear, kind=ColumnParallelLinear),
    sequential=sequential_linear,
    name="ColumnParallelLinear",
)
def column_parallel_linears(draw: DrawFn, ranks: int) -> Arguments:
    """Inputs whole or cut along the sequence, outputs cut or gathered, in balanced and in uneven parts, some of them empty."""
    case, outputs = _linear(draw), draw(st.integers(1, 6))
    sequence_parallel = len(case["input_shape"]) > 1 and draw(st.booleans())
    return {
        **case,
        "out_features": outputs,
        "sequence_parallel": sequence_parallel,
        "gather_output": not sequence_parallel and draw(st.booleans()),
        **_over(draw, ranks, outputs),
    }


@layer_subject(
    layer=partial(parallel_linear, kind=RowParallelLinear),
    sequential=sequential_linear,
    name="RowParallelLinear",
)
def row_parallel_linears(draw: DrawFn, ranks: int) -> Arguments:
    """Inputs cut or whole, outputs whole or cut along the sequence, in balanced and in uneven parts, some of them empty."""
    case = _linear(draw)
    sequence_parallel = len(case["input_shape"]) > 1 and draw(st.booleans())
    return {
        **case,
        "out_features": draw(st.integers(1, 4)),
        "sequence_parallel": sequence_parallel,
        "input_is_parallel": sequence_parallel or draw(st.booleans()),
        **_over(draw, ranks, case["in_features"]),
    }


def _linear(draw: DrawFn) -> dict[str, Any]:
    lead, features = draw(st.integers(0, 2)), draw(st.integers(1, 6))
    # A sequence to cut has an element: parts that are all empty would be copies, which do not make up one tensor.
    shape = tuple(draw(st.integers(int(dim == 0), 4)) for dim in range(lead))
    return {
        "input_shape": (*shape, features),
        "in_features": features,
        "bias": draw(st.booleans()),
        "skip_bias_add": draw(st.booleans()),
        "dtype": draw(dtypes),
    }


def _over(draw: DrawFn, ranks: int, features: int) -> dict[str, Any]:
    # Last, since the number of draws depends on the number of ranks: so cases shrink to fewer ranks.
    partition = draw(strategies.partitions(ranks, 1, whole=False))
    uneven = draw(st.booleans())
    return {
        "partition": partition,
        "cut": draw(strategies.cuts(features, partition.size)) if uneven else None,
    }
