"""DTensor runs an operation on fake tensors once for all ranks and cases."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator

import adjointlab as al
from adjointlab.worlds.world import RankContext

_DERIVES = "_propagate_tensor_meta_non_cached"


def _on_a_mesh(function: Any) -> Any:
    def program(context: RankContext, _: object) -> Any:
        with al.device_mesh(context.comm, (context.comm.size,)) as mesh:
            return function(mesh)

    return program


def test_what_an_operation_returns_is_derived_once_for_all_ranks_and_cases(
    world: al.SimulatedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    derived: Counter[str] = Counter()
    derive = getattr(ShardingPropagator, _DERIVES)

    def counting(self: Any, schema: Any) -> Any:
        derived[str(schema.op)] += 1
        return derive(self, schema)

    monkeypatch.setattr(ShardingPropagator, _DERIVES, counting)

    def cubes(mesh: Any) -> Any:
        x = distribute_tensor(torch.arange(35.0).reshape(5, 7), mesh, [Shard(0)])
        return (x.pow(3.0) + x.T.T).full_tensor()

    for _ in range(2):
        first, *others = world.run(_on_a_mesh(cubes), None, 3).values
        assert all(torch.equal(first, each) for each in others)
    assert derived["aten.pow.Tensor_Scalar"] == 1


def test_numbers_of_different_types_are_not_taken_for_one_another(world: al.SimulatedWorld) -> None:
    def types(mesh: Any) -> list[torch.dtype]:
        x = distribute_tensor(torch.arange(4), mesh, [Shard(0)])
        return [(x + one).dtype for one in (1, 1.0, True)]

    for run in world.run(_on_a_mesh(types), None, 2).values:
        assert run == [torch.int64, torch.float32, torch.int64]


def test_the_default_type_is_that_of_the_operation(world: al.SimulatedWorld) -> None:
    def halves(mesh: Any) -> torch.dtype:
        return (distribute_tensor(torch.arange(4), mesh, [Shard(0)]) / 2).dtype

    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            assert world.run(_on_a_mesh(halves), None, 2).values == (dtype, dtype)
    finally:
        torch.set_default_dtype(before)


def test_other_layouts_of_memory_have_other_strides(world: al.SimulatedWorld) -> None:
    def strides(mesh: Any) -> list[tuple[int, ...]]:
        x = torch.zeros(2, 4, 3)
        return [
            (distribute_tensor(each, mesh, [Shard(0)]) * 2).stride()
            for each in (x, x.transpose(1, 2).contiguous().transpose(1, 2))
        ]

    assert world.run(_on_a_mesh(strides), None, 2).values[0] == [(12, 3, 1), (12, 1, 4)]
