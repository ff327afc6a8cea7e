"""Broadcasts of several tensors in one message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from adjointlab import Layout, Partition
from adjointlab.checks.program_matrix import program_matrix
from adjointlab.core import arrays
from adjointlab.core.program import Program
from adjointlab.layers.coalesced_broadcast import coalesced
from adjointlab.layers.convolution import Conv2d
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.worlds.simulated.world import SimulatedWorld
from tests.outcomes import values_of as values

ROW, GRID = Partition((1, 3)), Partition((2, 2))


def values_of(ranks: int, body: Callable[[Any], Any]) -> tuple[Any, ...]:
    return values(SimulatedWorld(ranks).run(lambda context, _: body(context.comm)))


def broadcasts(comm: Any, source: Partition, target: Partition, axis: int | None) -> list[Broadcast]:
    """Of a matrix, whose rows are cut along `axis`, and of a vector that is cut alike."""
    layouts = Layout((5, 3), source, axes=(axis, None)), Layout((4,), source, axes=(axis,))
    return [Broadcast(comm, layout, target, preserve_batch=False) for layout in layouts]


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("source", "target", "axis", "ranks"),
    [
        pytest.param(Partition((1, 1)), ROW, None, 3, id="from one"),
        pytest.param(Partition((1, 1), [2]), Partition((1, 2)), None, 3, id="from a worker that gets none"),
        pytest.param(Partition((2, 1)), GRID, 0, 5, id="cut, over the rows of a grid, and an idle rank"),
    ],
)
def test_one_message_does_what_the_broadcasts_do_apart(
    library: str, source: Partition, target: Partition, axis: int | None, ranks: int
) -> None:
    def body(comm: Any) -> list[bool]:
        apart = broadcasts(comm, source, target, axis)
        together = coalesced(*apart)
        assert together is not None
        x, y = (
            [
                arrays.from_numpy(
                    np.arange(space.tensors[0].layout.local_size(comm.Get_rank()), dtype=float).reshape(
                        space.tensors[0].layout.local_shape(comm.Get_rank())
                    )
                    + number,
                    "float64",
                    library,
                )
                for number, space in enumerate(spaces)
            ]
            for spaces in ([each.domain for each in apart], [each.codomain for each in apart])
        )
        pairs = [
            *zip(
                together.forward(*x), [each.forward(a) for each, a in zip(apart, x, strict=True)], strict=True
            ),
            *zip(
                together.adjoint(*y), [each.adjoint(a) for each, a in zip(apart, y, strict=True)], strict=True
            ),
        ]
        return [
            type(one) is type(other) and np.array_equal(arrays.to_numpy(one), arrays.to_numpy(other))
            for one, other in pairs
        ]

    assert values_of(ranks, body) == ([True] * 4,) * ranks


def test_the_program_of_one_message_is_those_of_the_broadcasts_in_turn() -> None:
    def body(comm: Any) -> bool:
        together = coalesced(*broadcasts(comm, Partition((1, 1)), ROW, None))
        assert together is not None
        program = together.specification()
        assert isinstance(program, Program)
        return np.array_equal(program_matrix(program, together.domain, together.codomain), together.matrix())

    assert values_of(3, body) == (True,) * 3


def test_what_moves_nothing_or_much_or_goes_elsewhere_stays_apart() -> None:
    one = Partition((1, 1))

    def body(comm: Any) -> tuple[bool, ...]:
        def is_joined(*broadcasts: Broadcast) -> bool:
            return coalesced(*broadcasts) is not None

        def spread(
            shape: tuple[int, ...], source: Partition, target: Partition, dtype: str = "float64"
        ) -> Broadcast:
            layout = Layout(shape, source, axes=(None,) * len(shape))
            return Broadcast(comm, layout, target, dtype=dtype, preserve_batch=False)

        return (
            is_joined(spread((2,), one, ROW), spread((3,), one, ROW)),
            is_joined(spread((2,), one, ROW), spread((2**13,), one, ROW)),
            is_joined(spread((2,), one, ROW), spread((3,), one, ROW, "float32")),
            is_joined(spread((2,), one, ROW), spread((3,), one, Partition((1, 2)))),
            is_joined(spread((2,), one, one), spread((3,), one, one)),
            is_joined(*broadcasts(comm, GRID, GRID, 0)),
        )

    assert values_of(4, body) == ((True, False, False, False, False, False),) * 4


def test_weight_and_bias_of_a_small_convolution_come_in_one_message() -> None:
    def body(comm: Any) -> tuple[bool, bool]:
        cut_rows, cut_channels = (
            Conv2d(comm, grid, (1, 4, 8, 8), 4, 4, 3) for grid in ((1, 1, 1, 2, 1), (1, 1, 2, 1, 1))
        )
        return cut_rows.spread_both is not None, cut_channels.spread_both is not None

    assert values_of(2, body) == ((True, False),) * 2
