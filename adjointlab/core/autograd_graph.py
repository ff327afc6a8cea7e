"""Torch's autograd graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["graph_nodes"]


def graph_nodes(values: Sequence[torch.Tensor]) -> Iterator[Any]:
    """Yield the nodes of the autograd graph of some tensors, each once; none if they require no gradient."""
    visited: set[object] = set()
    nodes: list[Any] = [value.grad_fn for value in values]
    while nodes:
        node = nodes.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        yield node
        nodes += [following for following, _ in node.next_functions]
