"""Matrix multiplication: the panels that are moved, the matrix that is not, and the same errors on every rank."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from adjointlab.core.partition import Partition
from adjointlab.layers.matrix_product import MatrixProduct
from adjointlab.layers.windows import local_window
from adjointlab.worlds.world import World

from .counting import Counting, Sent
from .twin_assertions import error_of_every_rank, run_on_ranks, sines

DOUBLE = torch.float64
M, K, N = 4, 8, 12


def traffic(world: World, shape: tuple[int, int], **named: Any) -> tuple[Counter[Sent], Counter[Sent]]:
    """The collectives of a forward and of a backward pass of an M x K by K x N product on one of four ranks, equal on all."""
    if world.ranks < 4:
        pytest.skip("needs 4 ranks")

    def body(comm: Any) -> tuple[Counter[Sent], Counter[Sent]]:
        counting = Counting(comm)
        layer = MatrixProduct(counting, Partition(shape), (M, K), (K, N), dtype=DOUBLE, **named)
        a, b = (
            local_window(sines(*tensor.layout.shape), tensor.layout, comm.Get_rank()).requires_grad_()
            for tensor in layer.domain.tensors
        )
        counting.sent.clear()
        c = layer(a, b)
        forward = Counter(counting.sent)
        counting.sent.clear()
        c.sum().backward()
        return forward, Counter(counting.sent)

    counts = run_on_ranks(world, 4, body)
    collectives = [
        tuple(Counter({sent: n for sent, n in each.items() if sent.kind != "message"}) for each in passes)
        for passes in counts
    ]
    assert all(each == collectives[0] for each in collectives)
    return collectives[0][0], collectives[0][1]


@pytest.mark.parametrize("recompute", [True, False])
def test_panels_of_a_and_b_come_to_the_product_and_their_gradients_are_summed(
    adjointlab_world: World, recompute: bool
) -> None:
    """On a 2 x 2 grid each rank takes part in two panels, each of half a row or column of blocks; the product is never moved."""
    a, b = 8 * M // 2 * K // 2, 8 * K // 2 * N // 2
    forward, backward = traffic(adjointlab_world, (2, 2), algorithm="stationary-c", recompute=recompute)
    assert forward == {Sent("broadcast", 2, a): 2, Sent("broadcast", 2, b): 2}
    sums = Counter({Sent("reduce", 2, a): 2, Sent("reduce", 2, b): 2})
    assert backward == (sums + forward if recompute else sums)


@pytest.mark.parametrize(
    ("algorithm", "moved", "summed"),
    [("stationary-a", K // 2 * N // 2, M // 2 * N // 2), ("stationary-b", M // 2 * K // 2, M // 2 * N // 2)],
)
def test_a_factor_that_stays_is_never_moved(
    adjointlab_world: World, algorithm: str, moved: int, summed: int
) -> None:
    """The other factor's panels come to it, and the product's are summed from it; in the backward pass the other way round."""
    forward, backward = traffic(adjointlab_world, (2, 2), algorithm=algorithm)
    assert forward == {Sent("broadcast", 2, 8 * moved): 2, Sent("reduce", 2, 8 * summed): 2}
    assert backward == {
        Sent("broadcast", 2, 8 * moved): 2,  # again
        Sent("broadcast", 2, 8 * summed): 2,
        Sent("reduce", 2, 8 * moved): 2,
    }


@pytest.mark.parametrize(("shape", "words"), [((1, 4), M * K // 4), ((4, 1), K // 4 * N)])
def test_over_one_row_or_column_only_one_factor_is_moved(
    adjointlab_world: World, shape: tuple[int, int], words: int
) -> None:
    forward, _ = traffic(adjointlab_world, shape, algorithm="stationary-c")
    assert forward == {Sent("broadcast", 4, 8 * words): 4}


def test_a_panel_is_no_wider_than_asked(adjointlab_world: World) -> None:
    forward, _ = traffic(adjointlab_world, (1, 4), algorithm="stationary-c", panel=1)
    assert forward == {Sent("broadcast", 4, 8 * M): K}


@pytest.mark.parametrize(
    ("m", "k", "n", "stays"), [(9, 5, 2, "a"), (2, 5, 9, "b"), (9, 2, 5, "c"), (3, 3, 3, "c"), (2, 3, 3, "b")]
)
def test_the_largest_matrix_stays_where_it_is(
    adjointlab_world: World, m: int, k: int, n: int, stays: str
) -> None:
    def body(comm: Any) -> tuple[str, str]:
        layer = MatrixProduct(comm, Partition((1, 1)), (m, k), (k, n))
        return layer.algorithm, repr(layer)

    shapes = f"a=[{m}, {k}], b=[{k}, {n}], c=[{m}, {n}]"
    assert set(run_on_ranks(adjointlab_world, 1, body)) == {
        (f"stationary-{stays}", f"MatrixProduct(algorithm='stationary-{stays}', {shapes}, partition=1x1)")
    }


def test_transforms_of_torch_func_go_through_panels_that_are_kept(adjointlab_world: World) -> None:
    ranks, a, b = min(adjointlab_world.ranks, 2), sines(3, 4), sines(4, 2)

    def body(comm: Any) -> None:
        layer = MatrixProduct(comm, Partition((ranks, 1)), (3, 4), (4, 2), recompute=False, dtype=DOUBLE)
        of_a, of_b = (
            local_window(x, t.layout, comm.Get_rank())
            for x, t in zip((a, b), layer.domain.tensors, strict=True)
        )
        got = torch.func.grad(lambda x: (layer(x, of_b) ** 2).sum())(of_a)
        want = local_window(2 * (a @ b) @ b.mT, layer.domain.tensors[0].layout, comm.Get_rank())
        torch.testing.assert_close(got, want)

    run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize(
    ("shapes", "named", "message"),
    [
        (((2, 3), (4, 2)), {}, None),
        (((3,), (3, 2)), {}, "b_shape: (3, 2), but a is (3,); both need the same leading dimensions"),
        (((2, 2, 3), (3, 2)), {}, "b_shape: (3, 2), but a is (2, 2, 3); both need the same leading"),
        (((2, 2, 3), (2, 3, 2)), {}, "partition: of order 2"),
        (((2, 3), (3, 2)), {"algorithm": "summa"}, "algorithm: 'summa' is not one of auto, stationary-a"),
        (
            ((2, 3), (3, 2)),
            {"panel": 0},
            "panel: 0 is not a width; it is at least 1, or None for that of a block",
        ),
    ],
)
def test_an_illegal_argument_is_the_same_error_on_every_rank(
    adjointlab_world: World, shapes: Any, named: dict[str, Any], message: str | None
) -> None:
    raised = error_of_every_rank(
        adjointlab_world, 2, lambda comm: MatrixProduct(comm, Partition((1, comm.size)), *shapes, **named)
    )
    if message is None:
        with pytest.raises(RuntimeError) as refused:
            torch.empty(shapes[0], device="meta") @ torch.empty(shapes[1], device="meta")
        message = str(refused.value)
    assert raised.startswith(message)
