"""Sums of sparse tensors over ranks, such as gradients of embeddings with sparse=True, as dense messages.

The sum has an element wherever a rank has one, be it zero: an optimiser that takes sparse gradients changes those rows alone. So a message
has the elements of the whole tensor, and behind them the number of ranks that have each of the sparse places.
"""

from __future__ import annotations

import torch

__all__ = ["dense_message", "write_sum"]


def dense_message(tensor: torch.Tensor) -> torch.Tensor:
    """A rank's contribution to the sum, one-dimensional."""
    held = tensor.detach().coalesce()
    places = held.values().new_zeros(held.shape[: held.sparse_dim()])
    places[tuple(held.indices())] = 1
    return torch.cat([held.to_dense().flatten(), places.flatten()])


def write_sum(tensor: torch.Tensor, message: torch.Tensor) -> None:
    """Write the sum of all ranks' messages into `tensor`."""
    whole = message[: tensor.numel()].view(tensor.shape)
    places = message[tensor.numel() :].view(tensor.shape[: tensor.sparse_dim()])
    indices = places.nonzero().T
    values = whole[tuple(indices)]
    total = torch.sparse_coo_tensor(indices, values, tensor.shape, check_invariants=False, is_coalesced=True)
    with torch.no_grad():  # a detached alias would keep the new indices to itself
        tensor.copy_(total)
