"""The distributed embedding: rows of a table that is cut by vocabulary, by feature, or both, over P_lead x P_v x P_e.

    forward    î = B_{P_i→P} i    Ŵ = B_{P_w→P} W
               ŷ = rows of Ŵ for the indices of the worker's own vocabulary, and zeros for all others
               y = R_{P→P_y} ŷ
    adjoint    δŷ = R* δy    δŴ: the sums of the rows    δW = B* δŴ

P_i is P with P_v = P_e = 1, P_w with all leading sides 1, P_y with P_v = 1. Every index is in the vocabulary of one worker, so the sum
over P_v has only one summand that is not zero.
"""

from __future__ import annotations

import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.core.space import Space
from adjointlab.layers.differentiable import carried, of_nothing, without_gradient
from adjointlab.layers.distributed import TorchLayer
from adjointlab.layers.grids import with_index_zero
from adjointlab.layers.torch_modules import dtype_name
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.sum_reduce import SumReduce

__all__ = ["Embedding"]


class Embedding(TorchLayer, torch_classes=(nn.Embedding,)):
    """`torch.nn.Embedding` over `partition` = P_lead... x P_v x P_e, for indices of global shape `input_shape`.

    The indices, of element type int64, are cut over the leading dimensions, on the workers whose index along P_v and P_e is 0;
    the output (*lead, embedding_dim) over the leading dimensions and P_e, on those whose index along P_v is 0. All other workers take
    and return tensors of zero volume. The weight lies where the leading indices are 0.

    Raises `ValueError` for a partition of another order, for the arguments `max_norm`, `scale_grad_by_freq` and `sparse`, and in
    a call, with torch's message and the same on every rank, for an index outside the vocabulary.
    """

    weight: nn.Parameter

    def lay_out(self, module: nn.Embedding) -> None:
        comm, partition, shape = self.comm, self.partition, self.input_shape
        if partition.order != len(shape) + 2:
            raise ValueError(
                f"partition: of order {partition.order} ({partition}), but indices of order {len(shape)} need one dimension for "
                "each of theirs, one for the vocabulary and one for the features"
            )
        for name in ("max_norm", "scale_grad_by_freq", "sparse"):
            value = getattr(module, name)
            if value or (name == "max_norm" and value is not None):
                raise ValueError(f"{name}: {value} is not supported over a table that is cut")
        self.num_embeddings, self.embedding_dim = module.num_embeddings, module.embedding_dim
        self.padding_idx = module.padding_idx
        lead = tuple(range(len(shape)))
        vocabulary, features = len(lead), len(lead) + 1  # of the partition
        name = dtype_name(self.dtype)
        indices = Layout(shape, with_index_zero(partition, vocabulary, features), axes=lead)
        table = (self.num_embeddings, self.embedding_dim)
        weight = Layout(table, with_index_zero(partition, *lead), axes=(vocabulary, features))
        y_shape = (*shape, self.embedding_dim)
        y = Layout(y_shape, with_index_zero(partition, vocabulary), axes=(*lead, features))
        summands = Layout(y_shape, partition, y.windows, (*lead, features))
        self.local_output_shape = summands.local_shape(self.rank)
        self.window = (0, 0)
        """The rows that this worker holds."""
        if partition.is_active(self.rank):
            self.window = weight.windows[0][partition.index(self.rank)[vocabulary]]
        self.spread_indices = Broadcast(comm, indices, partition, dtype="int64", preserve_batch=False)
        self.spread_weight = Broadcast(comm, weight, partition, dtype=name, preserve_batch=False)
        self.sum_y = SumReduce(comm, summands, y.partition, dtype=name, preserve_batch=False)
        self.domain = Space(indices, dtype="int64")
        self.codomain = Space(y, dtype=name, name="y")
        self.own(module, {"weight": weight})

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """The local tensor of y, from that of the indices."""
        (indices,) = self.check_inputs(indices)
        indices = without_gradient(self.spread_indices, indices)
        weight = carried(self.spread_weight, self.weight)
        return carried(self.sum_y, self._own_rows(indices, weight))

    def _own_rows(self, indices: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return this worker's summand of y: zeros for indices of other workers' vocabulary."""
        start, stop = self.window
        if start == stop:
            # A row is selected here too: it saves a tensor, so that a checkpoint recomputes here as on the other workers.
            first = indices.new_zeros(1)
            return of_nothing(self.local_output_shape, lambda zero: zero.index_select(0, first), weight)
        own = (indices >= start) & (indices < stop)
        # Indices of other workers select any row, which `where` drops; a product with 0 would not, as a row may be infinite.
        at = torch.where(own, indices - start, 0)
        rows = weight.index_select(0, at.reshape(-1)).reshape(*at.shape, weight.shape[1])
        if self.padding_idx is not None:
            # No derivative in either mode; torch's embedding has one in forward mode.
            rows = torch.where((indices == self.padding_idx).unsqueeze(-1), rows.detach(), rows)
        return torch.where(own.unsqueeze(-1), rows, rows.new_zeros(()))

    def _check_inputs(self, x: tuple[torch.Tensor, ...]) -> None:
        super()._check_inputs(x)
        if bool(((x[0] < 0) | (x[0] >= self.num_embeddings)).any()):
            raise ValueError("index out of range in self")
