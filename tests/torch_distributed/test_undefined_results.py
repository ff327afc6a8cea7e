"""The buffer of `reduce` on other ranks than the root holds nothing that a right program could use."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import adjointlab as al
from adjointlab.torch_distributed.collectives import is_own_part
from adjointlab.worlds.world import RankContext, World


def left_by_reduce(context: RankContext, dtype: torch.dtype) -> list[Any]:
    with al.process_group(context.comm):
        x = torch.ones(2, dtype=dtype)
        dist.reduce(x, 1)
        return x.tolist()


@pytest.mark.parametrize(
    ("dtype", "elsewhere"),
    [(torch.float32, "nan"), (torch.complex64, "(nan+nanj)"), (torch.int16, "32767")],
    ids=["float32", "complex64", "int16"],
)
def test_reduce_leaves_other_ranks_nothing_that_they_could_use(
    adjointlab_world: World, dtype: torch.dtype, elsewhere: str
) -> None:
    run = adjointlab_world.run(left_by_reduce, dtype, 2)
    if adjointlab_world.name == "torch":
        pytest.skip("real libraries leave what they leave")
    other, root = run.values
    assert list(map(str, other)) == [elsewhere] * 2
    assert root == [2, 2]


def test_only_a_contiguous_part_of_the_output_is_gathered_in_place() -> None:
    whole = torch.zeros(2, 4)
    assert is_own_part(whole[1], whole, 1)
    assert not is_own_part(whole[1], whole, 0)
    assert not is_own_part(whole[1].reshape(2, 2).t(), whole, 1)
    assert not is_own_part(whole[1].clone(), whole, 1)
    assert not is_own_part(whole[:, :0], whole[:, :0], 0)
