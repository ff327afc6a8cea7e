"""A non-reentrant checkpoint of a layer that sends nothing but what its check of inputs does is computed again on all ranks or on none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from adjointlab.core.layout import Layout  # noqa: E402
from adjointlab.core.partition import Partition  # noqa: E402
from adjointlab.layers import (  # noqa: E402
    Attention,
    BatchNorm1d,
    Concatenation,
    Dropout,
    Flatten,
    GroupNorm,
    InstanceNorm1d,
    LayerNorm,
    MatrixProduct,
    MSELoss,
    Pointwise,
    RMSNorm,
    Stack,
    Transpose,
    local_window,
)
from adjointlab.worlds.world import World  # noqa: E402
from tests.layers.twin_assertions import run_on_ranks, sines  # noqa: E402

DOUBLE = torch.float64

LAYERS: dict[str, Callable[[Any, int], Any]] = {
    "dropout": lambda comm, ranks: Dropout(comm, (ranks, 1), (3, 4), 0.5, seed=1, dtype=DOUBLE),
    "dropout on one worker": lambda comm, ranks: Dropout(comm, (1, 1), (3, 4), 0.5, seed=1, dtype=DOUBLE),
    "dropout with a mask for each call": lambda comm, ranks: Dropout(
        comm, (ranks, 1), (3, 4), 0.5, dtype=DOUBLE
    ),
    "dropout of nothing": lambda comm, ranks: Dropout(comm, (ranks, 1), (3, 4), 0.0, dtype=DOUBLE),
    "dropout in evaluation": lambda comm, ranks: Dropout(comm, (ranks, 1), (3, 4), dtype=DOUBLE).eval(),
    "dropout in place": lambda comm, ranks: Dropout(
        comm, (ranks, 1), (3, 4), 0.5, inplace=True, seed=1, dtype=DOUBLE
    ),
    "attention": lambda comm, ranks: Attention(comm, (ranks, 1, 1), (3, 1, 2, 4), dtype=DOUBLE),
    "attention on one worker": lambda comm, ranks: Attention(comm, (1, 1, 1), (3, 1, 2, 4), dtype=DOUBLE),
    "batch normalisation in evaluation": lambda comm, ranks: BatchNorm1d(
        comm, (ranks, 1), (3, 4), nn.BatchNorm1d(4, affine=False, dtype=DOUBLE).eval()
    ).eval(),
    "instance normalisation in evaluation": lambda comm, ranks: InstanceNorm1d(
        comm, (ranks, 1, 1), (3, 2, 4), nn.InstanceNorm1d(2, track_running_stats=True, dtype=DOUBLE).eval()
    ).eval(),
    "loss of each element": lambda comm, ranks: MSELoss(comm, (ranks,), (3,), reduction="none", dtype=DOUBLE),
    "flattening": lambda comm, ranks: Flatten(comm, (ranks, 1), (3, 4), dtype=DOUBLE),
    "transposition": lambda comm, ranks: Transpose(comm, (ranks, 1), (3, 4), 0, 1, dtype=DOUBLE),
    "stack": lambda comm, ranks: Stack(comm, (ranks, 1), [(3, 4), (3, 4)], dtype=DOUBLE),
    "concatenation": lambda comm, ranks: Concatenation(comm, (ranks, 1), [(3, 4), (3, 4)], 1, dtype=DOUBLE),
    "layer normalisation of nothing": lambda comm, ranks: LayerNorm(
        comm, (ranks, 1), (0, 4), 4, elementwise_affine=False, dtype=DOUBLE
    ),
    "root mean square of nothing": lambda comm, ranks: RMSNorm(
        comm, (ranks, 1), (0, 4), 4, elementwise_affine=False, dtype=DOUBLE
    ),
    "group normalisation of nothing": lambda comm, ranks: GroupNorm(
        comm, (ranks, 1), (0, 4), 2, 4, affine=False, dtype=DOUBLE
    ),
    "product along nothing": lambda comm, ranks: MatrixProduct(
        comm, (ranks, 1), (3, 0), (0, 4), dtype=DOUBLE
    ),
    "function": lambda comm, ranks: Pointwise(
        comm, Layout((3, 4), Partition((ranks, 1))), torch.square, dtype=DOUBLE
    ),
}


@pytest.mark.parametrize("everywhere", [True, False], ids=["on all ranks", "on rank 0"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_checkpoint_takes_part_whichever_rank_has_an_input_that_requires_a_gradient(
    adjointlab_world: World, name: str, everywhere: bool
) -> None:
    ranks = min(adjointlab_world.ranks, 2)

    def body(comm: Any) -> None:
        layer = LAYERS[name](comm, ranks)
        rank, spaces = comm.Get_rank(), layer.domain.tensors

        def gradient(run: Callable[..., Any]) -> Any:
            torch.manual_seed(5)
            inputs = [
                local_window(sines(*space.layout.shape), space.layout, rank).clone() for space in spaces
            ]
            inputs[0].requires_grad_(everywhere or rank == 0)
            run(*inputs).sum().backward()
            return inputs[0].grad

        def values(x: Any, *others: Any) -> Any:
            return layer(x.clone(), *others)

        def squares(*inputs: Any) -> Any:
            return values(*inputs) ** 2

        plain = gradient(squares)
        for again in (
            gradient(lambda *inputs: checkpoint(squares, *inputs, use_reentrant=False)),
            gradient(lambda *inputs: checkpoint(values, *inputs, use_reentrant=False) ** 2),
        ):
            assert (plain is None) == (again is None)
            if plain is not None:
                torch.testing.assert_close(again, plain)

    run_on_ranks(adjointlab_world, ranks, body)
