"""Functions of DTensors are compared with the same functions of plain tensors, and what they claim against what ranks have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

import adjointlab as al
from adjointlab.checks.check import checks_of
from adjointlab.checks.verdict import Status
from adjointlab.engine.case_data import from_data, to_data
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject, SubjectError
from adjointlab.worlds.world import RankContext


def of_one(draw: Any, ranks: int) -> dict[str, Any]:
    mesh, shape = draw(al.strategies.meshes(ranks)), draw(al.strategies.shapes(2))
    placements = draw(al.strategies.placements(mesh, 2, partial=True, strided=shape))
    return dict(mesh=mesh, inputs=shape, placements=placements)


def of_two(draw: Any, ranks: int) -> dict[str, Any]:
    rows, inner, columns = (draw(st.integers(1, 4)) for _ in range(3))
    placements = [draw(al.strategies.placements((ranks,), 2, partial=True)) for _ in range(2)]
    return dict(inputs=[(rows, inner), (inner, columns)], placements=placements)


def to_other_placements(draw: Any, ranks: int) -> dict[str, Any]:
    drawn = of_one(draw, ranks)
    return drawn | dict(to=draw(al.strategies.placements(drawn["mesh"], 2)))


def redistributed(x: Any, to: Any) -> Any:
    return x.redistribute(placements=to)


def unchanged(x: Any, to: Any) -> Any:
    return x


def rows_summed(x: Any) -> Any:
    return x.sum(0)


def softmax(x: Any) -> Any:
    return F.softmax(x, 1)


def columns_largest(x: Any) -> Any:
    return x.abs().amax(1)


RIGHT = [
    al.subject.dtensor(redistributed, reference=unchanged, linear=True)(to_other_placements),
    al.subject.dtensor(rows_summed, linear=True)(of_one),
    al.subject.dtensor(torch.mm)(of_two),
    al.subject.dtensor(softmax)(of_one),
]


@pytest.mark.parametrize("subject", RIGHT, ids=lambda subject: subject.name)
def test_torchs_functions_are_coherent(world: al.SimulatedWorld, subject: Subject) -> None:
    for check in checks_of(subject):
        result = investigate(world, subject, check, Budget(5, ranks=4, seed=1))
        assert result.status is Status.COHERENT, f"{check}: {result.verdict}"


def test_a_linear_function_has_the_checks_of_operators_and_another_those_of_layers() -> None:
    assert {"adjoint", "matrix", "declared", "sequential"} <= set(checks_of(RIGHT[0]))
    assert {"sequential", "gradients", "jacobian"} <= set(checks_of(RIGHT[2]))


def relabelled(x: Any, placement: Any, shape: Any = None) -> Any:
    """The local tensor of a DTensor under another placement; a plain tensor as it is."""
    if not isinstance(x, DTensor):
        return x
    shape, stride = (None, None) if shape is None else (torch.Size(shape), (1,) * len(shape))
    local, mesh = x.to_local(), x.device_mesh
    return DTensor.from_local(local, mesh, [placement], run_check=False, shape=shape, stride=stride)


def of_shards(draw: Any, ranks: int) -> dict[str, Any]:
    return dict(inputs=(2 * ranks, 1), placements=[Shard(0)])


def of_summands(draw: Any, ranks: int) -> dict[str, Any]:
    return dict(inputs=(2, 1), placements=[Partial()])


CLAIM = "a tensor is not what it claims to be"


@pytest.mark.parametrize(
    ("function", "cases", "check", "headline"),
    [
        # Shards that say that they are copies are of another shape; summands that do are of the right one.
        (lambda x: relabelled(x, Replicate()), of_shards, "adjoint", CLAIM),
        (lambda x: relabelled(x, Shard(0), (3, 1)), of_shards, "adjoint", CLAIM),
        (lambda x: relabelled(x, Replicate()), of_summands, "declared", "different copies"),
        (lambda x: relabelled(x, Replicate()), of_summands, "sequential", "is not the sequential one"),
        (lambda x: x.to_local() if isinstance(x, DTensor) else x, of_shards, "adjoint", CLAIM),
    ],
)
def test_a_wrong_claim_is_found(
    world: al.SimulatedWorld, function: Callable[..., Any], cases: Any, check: str, headline: str
) -> None:
    subject = al.subject.dtensor(function, linear=True, name="relabelled")(cases)
    result = investigate(world, subject, check, Budget(6, ranks=4, seed=1))
    assert headline in result.verdict.headline, result.verdict
    assert result.case is not None
    assert result.case.ranks <= 2


class BackwardClaims(torch.autograd.Function):
    """Twice the argument, with a gradient that claims to be a sum that has not been carried out."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return relabelled(gradient * 2, Partial())


def test_a_gradient_with_wrong_placements_is_found(world: al.SimulatedWorld) -> None:
    def copies(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(2,), placements=[Replicate()])

    subject = al.subject.dtensor(BackwardClaims.apply, linear=True, name="doubled")(copies)
    result = investigate(world, subject, "adjoint", Budget(6, ranks=4, seed=1))
    assert result.status is Status.INCOHERENT
    assert result.case is not None
    assert result.case.ranks == 2


def test_a_reduction_without_a_local_type_is_carried_out(world: al.SimulatedWorld) -> None:
    subject = al.subject.dtensor(columns_largest)(of_one)
    result = investigate(world, subject, "sequential", Budget(5, ranks=4, seed=1))
    assert result.status is Status.COHERENT, result.verdict


def test_a_strategy_without_placements_says_so(world: al.SimulatedWorld) -> None:
    subject = al.subject.dtensor(softmax)(lambda draw, ranks: dict(inputs=(2, 2)))
    with pytest.raises(SubjectError, match="needs `placements`"):
        investigate(world, subject, "sequential", Budget(1))


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=25, deadline=None, derandomize=True)
def test_strided_shards_are_where_torch_puts_them(world: al.SimulatedWorld, data: st.DataObject) -> None:
    rows = data.draw(st.sampled_from((4, 8)))
    placements = data.draw(al.strategies.placements((2, 2), 1, strided=(rows,)))
    assert from_data(to_data(placements)) == placements
    tensor = torch.arange(float(rows))

    def body(context: RankContext, payload: None) -> torch.Tensor:
        with al.device_mesh(context.comm, (2, 2)) as mesh:
            return distribute_tensor(tensor, mesh, placements, src_data_rank=None).to_local()

    space = al.Space.of_dtensor((2, 2), placements, (rows,))
    for rank, local in enumerate(world.run(body, None, 4).values):
        ((start, stop),) = space.tensors[0].layout.window(rank) or ((0, 0),)
        assert torch.equal(local, tensor[start:stop])


def test_a_stride_that_the_mesh_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="comes after 3 shards"):
        al.Space.of_dtensor((2, 2), [_StridedShard(0, split_factor=3), Shard(0)], (12,))
