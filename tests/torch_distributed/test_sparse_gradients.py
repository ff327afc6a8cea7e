"""Sparse gradients, as of embeddings with sparse=True: their sums over ranks, and modules that have them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import adjointlab as al
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget

pytestmark = pytest.mark.mpi_skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32])
def test_a_sum_of_sparse_tensors_has_elements_wherever_a_rank_has_some(
    world: al.SimulatedWorld, dtype: torch.dtype
) -> None:
    def body(context: Any, payload: None) -> Any:
        with al.process_group(context.comm):
            # One row twice, and a row of zeros on both ranks.
            rows = [dist.get_rank(), 3, dist.get_rank()]
            values = torch.tensor([[1, 2], [0, 0], [3, 4]], dtype=dtype)
            tensor = torch.sparse_coo_tensor([rows], values, (5, 2), check_invariants=True)
            dist.all_reduce(tensor, async_op=True).wait()
            found = tensor.coalesce()
            return found.dtype, found.indices().tolist(), found.values().int().tolist()

    expected = (dtype, [[0, 1, 3]], [[4, 6], [4, 6], [0, 0]])
    assert world.run(body, None, 2).values == (expected, expected)


@pytest.mark.parametrize("check", ["gradients", "training"])
def test_an_embedding_with_sparse_gradients_is_coherent_in_data_parallelism(
    world: al.SimulatedWorld, check: str
) -> None:
    subject = al.subject.parallel(
        lambda: nn.Embedding(5, 2, sparse=True),
        lambda module, mesh: DistributedDataParallel(module),
        data_parallel="mean",
        prepare=lambda index: [index.long() % 5],
        optimizer=partial(torch.optim.SparseAdam, lr=0.1),
        steps=2,
    )(lambda draw, ranks: {"inputs": (2 * ranks,)})
    verdict = investigate(world, subject, check, Budget(20, ranks=2, seed=1, shrinking=0)).verdict
    assert verdict.is_coherent, str(verdict)
