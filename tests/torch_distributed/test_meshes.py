"""Meshes that ranks make as torch's documentation shows it."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed.device_mesh import DeviceMesh

import adjointlab as al
from adjointlab.worlds.world import RankContext


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(("cpu", [0, 1]), {}), (("cpu",), {"mesh": [0, 1]}), ((), {"device_type": "cpu", "mesh": [0, 1]})],
)
def test_a_mesh_takes_its_arguments_by_name_too(
    world: al.SimulatedWorld, arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    def program(context: RankContext, _: object) -> int:
        with al.process_group(context.comm):
            return DeviceMesh(*arguments, **named).get_local_rank()

    assert world.run(program, None, 2).values == (0, 1)


@pytest.mark.parametrize("comm", [None, 3, object()])
def test_a_group_or_mesh_of_what_is_no_communicator_is_refused(comm: Any) -> None:
    for opened in (al.process_group(comm), al.device_mesh(comm, (1,))):
        with (
            pytest.raises(
                TypeError, match=r"^comm: .* is not a communicator; pass the one that your function"
            ),
            opened,
        ):
            pass


def test_the_shape_of_a_mesh_is_refused_where_it_is_none(world: al.SimulatedWorld) -> None:
    def program(context: RankContext, shape: Any) -> None:
        with al.device_mesh(context.comm, shape):
            pass

    for shape, told in {
        2: "shape: 2 is not a sequence of integers",
        (3,): "a mesh of shape (3,) has 3 entries, and the communicator 2 ranks",
    }.items():
        assert [str(outcome.message) for outcome in world.run(program, shape, 2).outcomes] == [told] * 2  # type: ignore[union-attr]
