"""Cases of the embedding."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn

from adjointlab.core import strategies
from adjointlab.layers.embedding import Embedding
from adjointlab.layers.subjects.common import (
    Arguments,
    dtypes,
    layer_of,
    layer_subject,
    twin_of,
    with_legal_input,
)

__all__ = ["embeddings"]


def with_legal_indices(module: nn.Module, rows: int) -> nn.Module:
    """Return the module, made to turn its input into indices of `rows` rows."""
    return with_legal_input(module, lambda drawn: drawn % rows)


def _embedding(comm: Any, **case: Any) -> nn.Module:
    return with_legal_indices(layer_of(Embedding)(comm, **case), case["num_embeddings"])


def _sequential_embedding(**case: Any) -> nn.Module:
    module = twin_of(nn.Embedding)(**case)
    if case["padding_idx"] is not None:
        with torch.no_grad():  # which torch starts with zeros
            module.get_parameter("weight")[case["padding_idx"]] = 3.0
    return with_legal_indices(module, case["num_embeddings"])


@layer_subject(layer=_embedding, sequential=_sequential_embedding, name="Embedding")
def embeddings(draw: DrawFn, ranks: int) -> Arguments:
    """Indices of order zero to two, cut in any dimension; a table cut by vocabulary and by feature; with a padding row."""
    order = draw(st.integers(0, 2))
    rows = draw(st.integers(1, 6))
    return {
        "partition": draw(strategies.partitions(ranks, order + 2, whole=False)),
        # At least one index: torch (2.13) raises in the second derivative of an embedding without any.
        "input_shape": tuple(draw(st.integers(1, 5)) for _ in range(order)),
        "num_embeddings": rows,
        "embedding_dim": draw(st.integers(1, 4)),
        "padding_idx": draw(st.sampled_from((None, 0, rows - 1))),
        "dtype": draw(dtypes),
    }
