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
