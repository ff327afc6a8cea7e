"""The graph by which torch computes gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["graph_nodes"]


def graph_nodes(values: Sequence[torch.Tensor]) -> Iterator[Any]:
    """The nodes of the graph of some tensors, each once: none where they require no gradient."""
    met: set[object] = set()
    nodes: list[Any] = [value.grad_fn for value in values]
    while nodes:
        node = nodes.pop()
        if node is None or node in met:
            continue
        met.add(node)
        yield node
        nodes += [following for following, _ in node.next_functions]
