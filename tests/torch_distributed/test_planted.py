"""Bugs planted in code of torch.distributed are found and shrunk to two ranks; the same code without them is coherent.

The code never gets a communicator: it calls ``dist.*`` in the default process group of its case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import adjointlab as al
from adjointlab.checks.verdict import Status
from adjointlab.core.placements import chunks
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject
from tests.planted import parallel_modules, pipelines
from tests.planted.bug import PlantedBug
from tests.small_failures import first_small_failure
from tests.torch_distributed.sums import all_reduced

Function = Callable[..., torch.Tensor]
BUDGET = Budget(60, ranks=4, seed=3)
FEW = Budget(25, ranks=4, seed=3)
OF_MODULES = Budget(12, ranks=4, seed=3)
"""With this seed they fail on two ranks first, but for those that hang."""


# Rows that ranks hold in uneven shares, and what all hold


def rows_and_copies(draw: Any, ranks: int) -> dict[str, Any]:
    shape = draw(al.strategies.shapes(2))
    cut = al.Layout.cut(shape, al.Partition((ranks, 1)), [draw(al.strategies.cuts(shape[0], ranks)), None])
    copies = al.Layout(shape, al.Partition((ranks,)), axes=(None, None))
    return dict(
        domain=al.Space(cut),
        codomain=al.Space(copies, types=("replicated",)),
        rows=[cut.local_shape(rank)[0] for rank in range(ranks)],
    )


def gather_rows(x: torch.Tensor, rows: list[int]) -> torch.Tensor:
    parts = [x.new_empty(count, x.shape[1]) for count in rows]
    dist.all_gather(parts, x)
    return torch.cat(parts)


def reduce_rows(y: torch.Tensor, rows: list[int]) -> torch.Tensor:
    parts = list(y.contiguous().split(list(rows)))
    own = torch.empty_like(parts[dist.get_rank()])
    dist.reduce_scatter(own, parts)
    return own


def reduce_even_shares(y: torch.Tensor, rows: list[int]) -> torch.Tensor:
    return reduce_rows(y, [len(part) for part in y.tensor_split(len(rows))])


def own_rows_alone(y: torch.Tensor, rows: list[int]) -> torch.Tensor:
    return y.split(list(rows))[dist.get_rank()].clone()


def averaged_rows(y: torch.Tensor, rows: list[int]) -> torch.Tensor:
    return reduce_rows(y, rows) / dist.get_world_size()


def rows_without_waiting(y: torch.Tensor, rows: list[int]) -> torch.Tensor:
    parts = list(y.contiguous().split(list(rows)))
    own = torch.zeros_like(parts[dist.get_rank()])
    work = dist.reduce_scatter(own, parts, async_op=True)
    early = own.clone()
    work.wait()
    return early


def rows_that_nobody_waits_for(y: torch.Tensor, rows: list[int]) -> torch.Tensor:
    parts = list(y.contiguous().split(list(rows)))
    own = torch.empty_like(parts[dist.get_rank()])
    dist.reduce_scatter(own, parts, async_op=True)
    return own


def gather_padded(x: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """Pads to the largest share, and cuts the padding off at the end alone."""
    most = max(rows)
    padded = torch.cat([x, x.new_zeros(most - x.shape[0], x.shape[1])])
    parts = [torch.empty_like(padded) for _ in rows]
    dist.all_gather(parts, padded)
    return torch.cat(parts)[: sum(rows)]


def skipped_where_empty(y: torch.Tensor, rows: list[int]) -> torch.Tensor:
    if rows[dist.get_rank()] == 0:
        return y.new_empty(0, y.shape[1])
    return reduce_rows(y, rows)


def groups_in_different_order(x: torch.Tensor, rows: list[int]) -> torch.Tensor:
    pairs = [[0, 1], list(range(dist.get_world_size()))]
    if dist.get_world_size() > 1:
        for ranks in pairs if dist.get_rank() else pairs[::-1]:
            dist.new_group(ranks)
    return gather_rows(x, rows)


# A sum that is carried out


def partial_and_invariant(draw: Any, ranks: int) -> dict[str, Any]:
    mesh, shape = (ranks,), draw(al.strategies.shapes(2))
    return dict(
        domain=al.Space.of_dtensor(mesh, [Partial()], shape),
        codomain=al.Space.of_dtensor(mesh, [Replicate()], shape),
    )


def unchanged(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


# Rows that all ranks exchange


def exchanged(draw: Any, ranks: int) -> dict[str, Any]:
    counts = [[draw(st.integers(0, 2)) for _ in range(ranks)] for _ in range(ranks)]
    sent = [sum(row) for row in counts]
    got = [sum(column) for column in zip(*counts, strict=True)]
    return dict(domain=_rows(sent), codomain=_rows(got), counts=counts)


def _rows(counts: list[int]) -> al.Space:
    ends = [0]
    for count in counts:
        ends.append(ends[-1] + count)
    return al.Space(al.Layout.cut((ends[-1],), al.Partition((len(counts),)), [ends]))


def _exchange(x: torch.Tensor, sent: list[int], got: list[int]) -> torch.Tensor:
    own = x.new_empty(sum(got))
    dist.all_to_all_single(own, x.contiguous(), got, sent)
    return own


def exchange(x: torch.Tensor, counts: list[list[int]]) -> torch.Tensor:
    rank = dist.get_rank()
    return _exchange(x, list(counts[rank]), [row[rank] for row in counts])


def exchange_back(y: torch.Tensor, counts: list[list[int]]) -> torch.Tensor:
    rank = dist.get_rank()
    return _exchange(y, [row[rank] for row in counts], list(counts[rank]))


def exchange_back_with_the_sizes_of_forward(y: torch.Tensor, counts: list[list[int]]) -> torch.Tensor:
    rank = dist.get_rank()
    # With other sizes than the rows that there are, torch would say so.
    sizes = counts[rank] if sum(counts[rank]) == len(y) else [row[rank] for row in counts]
    return _exchange(y, list(sizes), list(counts[rank]))


# A mesh of two dimensions


def over_columns(draw: Any, ranks: int) -> dict[str, Any]:
    mesh, shape = draw(al.strategies.meshes(ranks)), draw(al.strategies.shapes(1))
    mesh = (*mesh, 1)[:2]
    return dict(
        domain=al.Space.of_dtensor(mesh, [Replicate(), Partial()], shape),
        codomain=_replicated_along_columns(mesh, shape),
        mesh=mesh,
    )


def _replicated_along_columns(mesh: tuple[int, ...], shape: tuple[int, ...]) -> al.Space:
    layout = al.Layout(shape, al.Partition(mesh), axes=(None,))
    return al.Space(layout, types=("invariant", "replicated"))


def _mesh(shape: tuple[int, ...]) -> DeviceMesh:
    return init_device_mesh("cpu", tuple(shape), mesh_dim_names=("rows", "columns"))


def summed_over_columns(x: torch.Tensor, mesh: tuple[int, ...]) -> torch.Tensor:
    total = x.clone()
    dist.all_reduce(total, group=_mesh(mesh).get_group("columns"))
    return total


def summed_over_rows(x: torch.Tensor, mesh: tuple[int, ...]) -> torch.Tensor:
    total = x.clone()
    dist.all_reduce(total, group=_mesh(mesh).get_group("rows"))
    return total


# A ring


def blocks(draw: Any, ranks: int) -> dict[str, Any]:
    length = draw(al.strategies.shapes(1))[0] * ranks
    space = al.Space(al.Layout((length,), al.Partition((ranks,))))
    return dict(domain=space, codomain=space)


def _shifted(x: torch.Tensor, step: int) -> torch.Tensor:
    rank, size = dist.get_rank(), dist.get_world_size()
    own = torch.empty_like(x, memory_format=torch.contiguous_format)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, x.contiguous(), (rank + step) % size),
            dist.P2POp(dist.irecv, own, (rank - step) % size),
        ]
    )
    for work in works:
        work.wait()
    return own


def shift(x: torch.Tensor) -> torch.Tensor:
    return _shifted(x, 1)


def shift_back(x: torch.Tensor) -> torch.Tensor:
    return _shifted(x, -1)


# What DTensor holds


def chunked(draw: Any, ranks: int) -> dict[str, Any]:
    shape = draw(al.strategies.shapes(1))
    return dict(
        domain=al.Space.of_dtensor((ranks,), [Shard(0)], shape),
        codomain=al.Space.of_dtensor((ranks,), [Replicate()], shape),
        length=shape[0],
    )


def full(x: torch.Tensor, length: int) -> torch.Tensor:
    counts = [stop - start for start, stop in chunks((0, length), dist.get_world_size())]
    parts = [x.new_empty(count) for count in counts]
    dist.all_gather(parts, x)
    return torch.cat(parts)


def full_dtensor(x: torch.Tensor, length: int) -> torch.Tensor:
    """The same by DTensor, which is returned as it is."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    shards = DTensor.from_local(x, mesh, [Shard(0)], shape=torch.Size((length,)), stride=(1,))
    return shards.redistribute(placements=[Replicate()])


def own_chunk(y: torch.Tensor, length: int) -> torch.Tensor:
    start, stop = chunks((0, length), dist.get_world_size())[dist.get_rank()]
    return y[start:stop].clone()


def own_chunk_of_sum(y: torch.Tensor, length: int) -> torch.Tensor:
    return own_chunk(all_reduced(y), length)


class Code(NamedTuple):
    cases: Callable[[Any, int], dict[str, Any]]
    forward: Function
    adjoint: Function
    least_ranks: int = 2  # on which the bug first shows


RIGHT = {
    "rows gathered": Code(rows_and_copies, gather_rows, reduce_rows),
    "sum carried out": Code(partial_and_invariant, all_reduced, unchanged),
    "rows exchanged": Code(exchanged, exchange, exchange_back),
    "sum over columns of a mesh": Code(over_columns, summed_over_columns, summed_over_columns),
    "ring": Code(blocks, shift, shift_back),
    "chunks gathered": Code(chunked, full, own_chunk),
    "chunks gathered by DTensor": Code(chunked, full_dtensor, own_chunk),
}

WRONG = {
    "all-reduce missing in backward": Code(rows_and_copies, gather_rows, own_rows_alone),
    "gradient averaged": Code(rows_and_copies, gather_rows, averaged_rows),
    "result read before wait": Code(rows_and_copies, gather_rows, rows_without_waiting, 1),
    "work never waited for": Code(rows_and_copies, gather_rows, rows_that_nobody_waits_for, 1),
    "uneven shard padded and not unpadded": Code(rows_and_copies, gather_padded, reduce_rows),
    "backward skipped by a rank that holds nothing": Code(rows_and_copies, gather_rows, skipped_where_empty),
    "groups made in different order": Code(rows_and_copies, groups_in_different_order, reduce_rows, 3),
    "all-reduce too many in backward": Code(partial_and_invariant, all_reduced, all_reduced),
    "split sizes of forward in backward": Code(
        exchanged, exchange, exchange_back_with_the_sizes_of_forward, 3
    ),
    "even split sizes for uneven rows": Code(rows_and_copies, gather_rows, reduce_even_shares),
    "wrong group in backward": Code(over_columns, summed_over_columns, summed_over_rows),
    "ring in the same direction": Code(blocks, shift, shift, 3),
    "sum of an invariant gradient": Code(chunked, full, own_chunk_of_sum),
}


def subject_of(code: Code) -> Subject:
    made: Subject = al.subject.pair(code.forward, code.adjoint, process_group=True)(code.cases)
    return made


@pytest.mark.parametrize("name", RIGHT)
def test_right_code_is_coherent(world: al.SimulatedWorld, name: str) -> None:
    result = investigate(world, subject_of(RIGHT[name]), "adjoint", FEW)
    assert result.verdict.status is Status.COHERENT, result.verdict


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_bug_is_found_and_shrunk(world: al.SimulatedWorld, name: str) -> None:
    least = WRONG[name].least_ranks
    result = first_small_failure(world, subject_of(WRONG[name]), "adjoint", BUDGET, least)
    assert result.verdict.status is not Status.COHERENT
    assert result.case is not None
    assert result.case.ranks == least, str(result.verdict)


RIGHT_MODULES = {**parallel_modules.RIGHT, **pipelines.RIGHT}


@pytest.mark.parametrize("name", RIGHT_MODULES)
def test_right_parallel_modules_are_coherent(world: al.SimulatedWorld, name: str) -> None:
    subject, check = RIGHT_MODULES[name]
    result = investigate(world, subject, check, OF_MODULES)
    assert result.verdict.status is Status.COHERENT, result.verdict


WRONG_MODULES = [
    *((planted, OF_MODULES) for planted in (*parallel_modules.WRONG, *pipelines.WRONG)),
    *((planted, BUDGET) for planted in parallel_modules.SELDOM),
]


@pytest.mark.parametrize(
    ("planted", "budget"), WRONG_MODULES, ids=[planted.bug for planted, _ in WRONG_MODULES]
)
def test_a_bug_planted_in_a_parallel_module_is_found(
    world: al.SimulatedWorld, planted: PlantedBug, budget: Budget
) -> None:
    most = max(3, planted.least_ranks)
    result = first_small_failure(world, planted.subject, planted.check, budget, most)
    assert result.verdict.status is not Status.COHERENT
    assert result.case is not None
    assert result.case.ranks <= most, str(result.verdict)


def test_an_output_without_a_graph_is_said_to_be_so(world: al.SimulatedWorld) -> None:
    def detached(x: torch.Tensor) -> torch.Tensor:
        return all_reduced(x.detach())

    subject: Subject = al.subject.autograd(detached, process_group=True)(partial_and_invariant)
    verdict = investigate(world, subject, "adjoint", Budget(4, ranks=2, seed=3, shrinking=0.5)).verdict
    assert "the output x does not require a gradient (rank 0" in str(verdict)
