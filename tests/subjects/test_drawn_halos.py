"""Every kind of halo geometry that the strategy of exchanges promises is drawn in a search of 300 cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from adjointlab.engine.case import cases
from adjointlab.primitives.subjects.halos import halo_exchanges
from tests.drawing import first_cases

CASES = cases(halo_exchanges, "adjoint", (1, 8))

Windows = list[tuple[tuple[int, int], tuple[int, int], int]]


def held(case: Any) -> Windows:
    """For each worker and dimension: the bulk, the window that is wanted, and the side of the tensor."""
    layout, wanted = case.parameters["layout"], case.parameters["windows"]
    return [
        (bulk, window, side)
        for own, other, side in zip(layout.windows, wanted.windows, layout.shape, strict=True)
        for bulk, window in zip(own, other, strict=True)
    ]


def some(is_so: Callable[[tuple[int, int], tuple[int, int], int], bool]) -> Callable[[Any], bool]:
    """True for a case in which some worker's bulk, window and side are so in some dimension."""
    return lambda case: any(is_so(*each) for each in held(case))


def owner_of(index: int, case: Any, dim: int) -> int:
    """The worker along a dimension whose bulk has an index."""
    bulks = case.parameters["layout"].windows[dim]
    return next((number for number, (start, stop) in enumerate(bulks) if start <= index < stop), -1)


def reaches_past_the_neighbour(case: Any) -> bool:
    layout, wanted = case.parameters["layout"], case.parameters["windows"]
    return any(
        0 <= index < side and abs(owner_of(index, case, dim) - number) > 1
        for dim, side in enumerate(layout.shape)
        for number, (start, stop) in enumerate(wanted.windows[dim])
        for index in (start, stop - 1)
        if stop > start and owner_of(index, case, dim) >= 0
    )


def is_periodic(case: Any) -> bool:
    return bool(case.parameters["periodic"])


PROMISES: dict[str, Callable[[Any], bool]] = {
    "a halo on the left": some(lambda bulk, window, side: window[0] < bulk[0] < bulk[1]),
    "a halo on the right": some(lambda bulk, window, side: bulk[0] < bulk[1] < window[1]),
    "halos of unequal width": some(lambda bulk, window, side: 0 < bulk[0] - window[0] != window[1] - bulk[1] > 0),
    "no halo": lambda case: all(bulk == window for bulk, window, _ in held(case)),
    "a window that trims its bulk": some(lambda bulk, window, side: bulk[0] < window[0] < window[1] < bulk[1]),
    "a window apart from its bulk": some(lambda bulk, window, side: bulk[0] < bulk[1] <= window[0] < window[1] <= side),
    "an empty window": some(lambda bulk, window, side: window[0] == window[1]),
    "an empty bulk with a window": some(lambda bulk, window, side: bulk[0] == bulk[1] and window[0] < window[1]),
    "padding before the tensor": some(lambda bulk, window, side: window[0] < 0 < window[1]),
    "padding behind the tensor": some(lambda bulk, window, side: window[0] < side < window[1]),
    "a window in the padding alone": some(lambda bulk, window, side: window[0] < window[1] <= 0 or side <= window[0] < window[1]),
    "a halo that reaches past the neighbour": reaches_past_the_neighbour,
    "a periodic dimension": is_periodic,
    "no periodic dimension": lambda case: not is_periodic(case),
    "a periodic dimension and another": lambda case: is_periodic(case) and len(case.parameters["periodic"]) < case.parameters["layout"].order,
    "a tensor of order 2 on a grid of order 2": lambda case: case.parameters["layout"].partition.order == case.parameters["layout"].order == 2,
    "corners": lambda case: min(case.parameters["layout"].partition.shape[:2]) > 1 and len(case.parameters["layout"].partition.shape) > 1,
    "dimensions that are not cut": lambda case: None in case.parameters["layout"].axes,
    "dimensions in another order": lambda case: (axes := [axis for axis in case.parameters["layout"].axes if axis is not None]) != sorted(axes),
    "bulks in another order": lambda case: any(list(windows) != sorted(windows) for windows in case.parameters["layout"].windows),
    "inactive ranks": lambda case: case.parameters["layout"].partition.size < case.ranks,
    "an order above 3": lambda case: case.parameters["layout"].order > 3,
    "integers": lambda case: case.parameters["dtype"].startswith("int"),
    "half precision": lambda case: case.parameters["dtype"] in ("float16", "bfloat16"),
    "complex numbers": lambda case: case.parameters["dtype"].startswith("complex"),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", PROMISES)
def test_what_is_promised_is_drawn(name: str, seed: int) -> None:
    assert any(map(PROMISES[name], first_cases(CASES, 300, seed)))
