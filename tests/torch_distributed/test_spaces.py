"""The space of a DTensor says what torch places on each rank; subjects get it as data."""

from __future__ import annotations

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch.distributed.tensor import Partial, Placement, Replicate, Shard, distribute_tensor

import adjointlab as al
from adjointlab.engine.case_data import from_data, to_data
from adjointlab.worlds.world import RankContext


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=25, deadline=None, derandomize=True)
def test_each_rank_holds_its_window(world: al.SimulatedWorld, data: st.DataObject) -> None:
    ranks = data.draw(st.integers(1, 4))
    mesh = data.draw(al.strategies.meshes(ranks))
    shape = data.draw(al.strategies.shapes(2))
    placements = data.draw(al.strategies.placements(mesh, 2))
    tensor = torch.arange(float(shape[0] * shape[1])).reshape(shape)

    def body(context: RankContext, payload: None) -> torch.Tensor:
        with al.device_mesh(context.comm, mesh) as device_mesh:
            assert al.Space.of_dtensor(device_mesh, placements, shape) == space
            return distribute_tensor(tensor, device_mesh, placements).to_local()

    space = al.Space.of_dtensor(mesh, placements, shape)
    for rank, local in enumerate(world.run(body, None, ranks).values):
        window = space.tensors[0].layout.window(rank)
        assert window is not None
        assert torch.equal(local, tensor[tuple(slice(*sides) for sides in window)])


def test_placements_have_the_local_types_of_their_gradients() -> None:
    space = al.Space.of_dtensor((2, 1, 2), [Replicate(), Partial(), Shard(1)], (3, 4))
    assert [entry.value for entry in space.tensors[0].types] == ["varying", "invariant", "partial"]
    assert [entry.value for entry in space.dual.tensors[0].types] == ["varying", "invariant", "replicated"]


@pytest.mark.parametrize(
    ("mesh", "placements", "message"),
    [
        ((2, 2), [Shard(0)], "1 of them for a mesh of shape"),
        ((2,), [Shard(2)], "cannot hold a tensor of shape"),
        ((2,), [Partial("max")], "has no local type"),
        ((2,), ["S(0)"], "has no local type"),
    ],
)
def test_placements_that_cannot_hold_the_tensor_are_refused(
    mesh: tuple[int, ...], placements: list[Placement], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        al.Space.of_dtensor(mesh, placements, (3, 4))


def test_placements_are_stored_as_data() -> None:
    placements = (Shard(1), Replicate(), Partial("avg"))
    assert from_data(to_data(placements)) == placements
    with pytest.raises(ValueError, match="not data"):
        from_data({"$type": "placement", "kind": "system"})
