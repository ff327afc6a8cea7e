"""Looks of the comparison of an operator with its reference; those at layers stand in test_layers.py."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.context import InputSetting
from adjointlab.checks.layers.sequential import SEQUENTIAL
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from tests.checks.looks.harness import Look, assert_seen, each_of
from tests.checks.looks.operators import (
    Copies,
    TwoRings,
    filled_with,
    larger_than,
    last_lost,
    lies,
    on,
    ring,
    where,
)

WRONG = "the distributed result is not the sequential one"


def rolled(x: Any) -> Any:
    return np.roll(x, 2)


def rolled_twice(*x: Any) -> Any:
    return tuple(map(rolled, x))


def copied(x: Any) -> Any:
    return np.array(x)


def beside(fault: Any, **given: Any) -> Any:
    return ring(forward=fault, **given)


LOOKS = [
    Look("rank 0", beside(on(0)), WRONG, 3, reference=rolled),
    Look("the last rank", beside(on(-1)), WRONG, 3, reference=rolled),
    Look("the last element", beside(on(1, last_lost)), WRONG, reference=rolled),
    Look("the sign", beside(lambda operator, x, result: -result), WRONG, reference=rolled),
    Look("exactly", beside(lambda operator, x, result: result * (1 + 2.0**-50)), WRONG, reference=rolled),
    Look("large integers", beside(where(larger_than(2.0**18))), WRONG, reference=rolled),
    Look("the imaginary part", beside(lambda o, x, r: r.conj(), dtype="complex128"), WRONG, reference=rolled),
    Look("NaN", beside(on(-1, filled_with(np.nan))), WRONG, 3, reference=rolled),
    Look("the second tensor", ring(TwoRings, forward=lambda o, x, r: (r[0], -r[1])), WRONG, reference=rolled_twice),
    Look("other values for each tensor", ring(TwoRings, forward=lambda o, x, r: r[::-1]), WRONG, reference=rolled_twice),
    Look("other summands on each rank", ring(Copies, domain="partial", codomain="replicated", forward=lambda o, x, r: o.size * x), WRONG, reference=copied),
    Look("the sum of summands", ring(Copies, domain="partial", codomain="replicated", sums=("forward",)), "", 3, reference=copied),
    Look("summands of the result after their sum", ring(Copies, domain="partial", codomain="partial", forward=lambda o, x, r: o.comm.allgather(x)[o.rank - 1]), "", 3, reference=copied),
    Look("a right operator", ring(), "", 3, reference=rolled),
    *(
        Look(f"a {order} argument", ring(shape=(2, 3), forward=where(lies(order))), WRONG, 2, InputSetting(0, "numpy", order), lambda x: np.roll(x, 2, 0))
        for order in ("column-major", "strided", "offset", "reversed")
    ),
]  # fmt: skip


@each_of(LOOKS)
def test_a_look_of_the_comparison_with_a_reference(look: Look) -> None:
    assert_seen(SEQUENTIAL, look)


@pytest.mark.parametrize(("bulk", "is_told"), [(1, True), (2, False)])
def test_values_beyond_the_ends_of_a_tensor_are_said_to_be_none_of_a_reference(
    bulk: int, is_told: bool
) -> None:
    """A periodic halo, right but for the factor of its `bulk`; a reference has zeros in the place of what comes from the other end."""

    def halo(comm: Any, x: Any) -> Any:
        whole = np.concatenate(comm.allgather(x))
        start = sum(comm.allgather(x.size)[: comm.Get_rank()])
        window = whole.take(range(start - 1, start + x.size + 1), mode="wrap")
        window[1:-1] *= bulk
        return window

    def never(comm: Any, y: Any) -> Any:
        raise NotImplementedError

    @al.subject.pair(halo, never, reference=copied)
    def drawn(draw: Any, ranks: int) -> dict[str, Any]:
        cut = draw(al.strategies.cuts(2 * ranks, ranks))
        windows = [[(start - 1, stop + 1) for start, stop in pairwise(cut)]]
        workers = al.Partition((ranks,))
        cells = al.Layout.cut((cut[-1],), workers, [cut])
        return {
            "domain": al.Space(cells),
            "codomain": al.Space(al.Layout((cut[-1],), workers, windows), name="y"),
        }

    found = investigate(al.SimulatedWorld(3), drawn, "sequential", Budget(10, seed=1)).verdict
    assert found.headline == WRONG
    said = [text for label, text in found.lines if label == "perhaps"]
    assert [text.startswith("all that differs lies beyond the ends") for text in said] == [True] * is_told
