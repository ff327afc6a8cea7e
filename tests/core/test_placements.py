"""Placements of DTensor as windows, local types and an order of ranks, by hand; beside torch in tests/torch_distributed."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from adjointlab.core.layout import Layout, Window
from adjointlab.core.partition import Partition
from adjointlab.core.placements import chunks, placed, sharded

torch = pytest.importorskip("torch")
tensor = pytest.importorskip("torch.distributed.tensor")

pytestmark = pytest.mark.mpi_skip
Shard, Replicate, Partial = tensor.Shard, tensor.Replicate, tensor.Partial
Strided = pytest.importorskip("torch.distributed.tensor.placement_types")._StridedShard


@pytest.mark.parametrize(
    ("window", "parts", "windows"),
    [
        ((0, 5), 4, [(0, 2), (2, 4), (4, 5), (5, 5)]),
        ((0, 2), 4, [(0, 1), (1, 2), (2, 2), (2, 2)]),
        ((2, 9), 3, [(2, 5), (5, 8), (8, 9)]),
        ((2, 8), 3, [(2, 4), (4, 6), (6, 8)]),
        ((3, 3), 2, [(3, 3), (3, 3)]),
        ((1, 7), 1, [(1, 7)]),
    ],
)
def test_every_chunk_but_the_last_ones_has_the_same_size(
    window: Window, parts: int, windows: list[Window]
) -> None:
    assert chunks(window, parts) == windows


@pytest.mark.parametrize("side", range(10))
@pytest.mark.parametrize("parts", range(1, 6))
def test_chunks_have_the_sizes_of_torchs(side: int, parts: int) -> None:
    sizes = [len(part) for part in torch.zeros(side).chunk(parts)]
    assert [stop - start for start, stop in chunks((4, 4 + side), parts)] == sizes + [0] * (
        parts - len(sizes)
    )


ROWS, COLUMNS = ((0, 3), (3, 5)), ((0, 2), (2, 4), (4, 4))
CASES = [
    # mesh, placements, shape: sides and ranks of the partition, windows, axes, local types
    ((2,), [Shard(0)], (5,), (2,), (0, 1), (ROWS,), (0,), "varying"),
    ((2,), [Shard(-1)], (4, 5), (2,), (0, 1), (((0, 4),), ROWS), (None, 0), "varying"),
    ((2,), [Shard(-2)], (5, 4), (2,), (0, 1), (ROWS, ((0, 4),)), (0, None), "varying"),
    ((2,), [Replicate()], (5,), (2,), (0, 1), (((0, 5),),), (None,), "invariant"),
    ((2,), ["replicated"], (5,), (2,), (0, 1), (((0, 5),),), (None,), "replicated"),
    ((2,), ["varying"], (5,), (2,), (0, 1), (((0, 5),),), (None,), "varying"),
    ((2,), [Partial()], (), (2,), (0, 1), (), (), "partial"),
    (
        (2, 3),
        [Partial("sum"), Shard(1)],
        (5, 4),
        (3, 2),
        (0, 3, 1, 4, 2, 5),
        (((0, 5),), COLUMNS),
        (None, 0),
        "varying partial",
    ),
    (
        (2, 3),
        [Shard(0), Shard(1)],
        (5, 4),
        (2, 3),
        (0, 1, 2, 3, 4, 5),
        (ROWS, COLUMNS),
        (0, 1),
        "varying varying",
    ),
    (
        (3, 2),
        [Shard(1), Shard(0)],
        (5, 4),
        (3, 2),
        (0, 1, 2, 3, 4, 5),
        (ROWS, COLUMNS),
        (1, 0),
        "varying varying",
    ),
    (
        (2, 2),
        [Shard(0), Shard(0)],
        (5,),
        (4,),
        (0, 1, 2, 3),
        (((0, 2), (2, 3), (3, 4), (4, 5)),),
        (0,),
        "varying",
    ),
    (
        (2, 2),
        [Strided(0, split_factor=2), Shard(0)],
        (7,),
        (4,),
        (0, 2, 1, 3),
        (((0, 2), (2, 4), (4, 6), (6, 7)),),
        (0,),
        "varying",
    ),
    (
        (2, 3, 2),
        [Strided(0, split_factor=6), Shard(0), Shard(0)],
        (12,),
        (12,),
        (0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11),
        (tuple((start, start + 1) for start in range(12)),),
        (0,),
        "varying",
    ),
    (
        (2, 3, 2),
        [Strided(0, split_factor=3), Shard(0), Shard(0)],
        (12,),
        (12,),
        (0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11),
        (tuple((start, start + 1) for start in range(12)),),
        (0,),
        "varying",
    ),
    (
        (2, 2, 2),
        [Replicate(), Shard(0), Partial()],
        (5,),
        (2, 2, 2),
        (0, 1, 4, 5, 2, 3, 6, 7),
        (ROWS,),
        (0,),
        "varying invariant partial",
    ),
]


@pytest.mark.parametrize(("mesh", "placements", "shape", "sides", "ranks", "windows", "axes", "types"), CASES)
def test_a_placed_tensor_has_the_windows_ranks_and_types_of_its_placements(
    mesh: tuple[int, ...],
    placements: Sequence[object],
    shape: tuple[int, ...],
    sides: tuple[int, ...],
    ranks: tuple[int, ...],
    windows: tuple[tuple[Window, ...], ...],
    axes: tuple[int | None, ...],
    types: str,
) -> None:
    layout = Layout(shape, Partition(sides, ranks), windows, axes)
    assert placed(mesh, placements, shape) == (layout, tuple(types.split()))
    if not any(isinstance(each, Strided) for each in placements):
        cut_by: dict[int, list[int]] = {}
        for grid_dim, each in enumerate(placements):
            if isinstance(each, Shard):
                cut_by.setdefault(each.dim % len(shape), []).append(grid_dim)
        assert sharded(Partition(mesh), cut_by, shape) == layout


def test_a_mesh_has_the_ranks_that_it_lists() -> None:
    mesh = SimpleNamespace(mesh=torch.tensor([[5, 3], [1, 7]]))
    expected = Layout((5,), Partition((2, 2), (5, 1, 3, 7)), (ROWS,), (0,))
    assert placed(mesh, ["partial", Shard(0)], (5,)) == (expected, ("varying", "partial"))


@pytest.mark.parametrize(
    ("mesh", "placements", "message"),
    [
        ((2, 2), [Shard(0)], "1 of them for a mesh of shape (2, 2); give one for each dimension of the mesh"),
        ((2,), [Shard(0)] * 2, "2 of them for a mesh of shape (2,); give one for each dimension of the mesh"),
        ((2,), [Shard(2)], f"{Shard(2)} cannot hold a tensor of shape (3, 4)"),
        ((2,), [Shard(3)], f"{Shard(3)} cannot hold a tensor of shape (3, 4)"),
        ((2,), [Shard(-3)], f"{Shard(-3)} cannot hold a tensor of shape (3, 4)"),
        ((2,), [Shard(-4)], f"{Shard(-4)} cannot hold a tensor of shape (3, 4)"),
        *(
            (
                (2,),
                [wrong],
                f"{wrong!r} has no local type; those of Shard(dim), _StridedShard, Replicate() and Partial('sum') are known, and "
                "the names varying, replicated, partial, invariant",
            )
            for wrong in (Partial("max"), Partial("avg"), "S(0)", "shard", 0, None)
        ),
        *(
            (
                (2, 3, 2),
                [Strided(0, split_factor=before), Shard(0), Shard(0)],
                f"{Strided(0, split_factor=before)!r} comes after {before} shards, and the mesh dimensions behind it make [3, 2]; a tensor of which a rank holds several pieces, such as fused weights, has no layout: "
                "keep the pieces as parameters of their own",
            )
            for before in (2, 4, 7, 12)
        ),
    ],
)
def test_placements_without_windows_or_types_are_refused_with_what_is_known(
    mesh: tuple[int, ...], placements: Sequence[object], message: str
) -> None:
    with pytest.raises(ValueError, match=r"^placements: ") as raised:
        placed(mesh, placements, (3, 4))
    assert str(raised.value) == f"placements: {message}"


@pytest.mark.parametrize(
    ("mesh", "placements", "shape", "message"),
    [
        (2, [Replicate()], (3,), "mesh: 2 is neither a DeviceMesh nor the shape of one, such as (2, 2)"),
        (
            (2,),
            Replicate(),
            (3,),
            "placements: Replicate() is not a list of a placement for each dimension of the mesh",
        ),
        ((2,), [Replicate()], 3, "shape: 3 is not a sequence of integers"),
    ],
)
def test_a_mesh_placements_and_a_shape_that_are_none_are_refused_by_their_names(
    mesh: object, placements: object, shape: object, message: str
) -> None:
    with pytest.raises(TypeError) as raised:
        placed(mesh, placements, shape)  # type: ignore[arg-type]
    assert str(raised.value) == message
