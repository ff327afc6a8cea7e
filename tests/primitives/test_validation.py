"""Arguments that no operator can be made with are refused under the caller's names, on every rank alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.primitives.all_gather import AllGather
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.discard import Discard
from adjointlab.primitives.gather import Gather
from adjointlab.primitives.halo_exchange import HaloExchange
from adjointlab.primitives.halo_exchange_in_place import HaloExchangeInPlace
from adjointlab.primitives.halo_geometry import HaloGeometry
from adjointlab.primitives.memory import Add, Allocate, Clear, Copy, Deallocate, Move
from adjointlab.primitives.redistribute import Redistribute
from adjointlab.primitives.reduce_scatter import ReduceScatter
from adjointlab.primitives.repartition import Repartition
from adjointlab.primitives.scatter import Scatter
from adjointlab.primitives.send_receive import SendReceive
from adjointlab.primitives.sum_reduce import SumReduce
from adjointlab.primitives.validation import arguments_renamed

GRID = Partition((3,))
CUT, WHOLE, ONE = Layout((6,), GRID), Layout((6,), GRID, axes=(None,)), Layout((6,), Partition((1,)))
GAPS = Layout((6,), GRID, [[(0, 2), (2, 4), (5, 6)]])
OTHER = Layout((7,), GRID)

Make = Callable[[Any], object]

REFUSED: list[tuple[Make, type[Exception], str]] = [
    (lambda comm: Scatter(comm, CUT, -1), ValueError, "root: -1 is not a rank of the communicator, which has ranks 0 to 2"),
    (lambda comm: Gather(comm, CUT, 3), ValueError, "root: 3 is not a rank"),
    (lambda comm: Scatter(comm, CUT, 1.5), TypeError, "root: 1.5 is not a whole number"),  # type: ignore[arg-type]
    (lambda comm: SendReceive(comm, ONE, -1), ValueError, "destination: -1 is not a rank"),
    (lambda comm: Scatter(comm, CUT, types=("replicated",)), ValueError, "types: dimension 0 of the partition"),
    (lambda comm: Gather(comm, CUT, types=("partial",)), ValueError, "types: dimension 0 of the partition"),
    (lambda comm: Repartition(comm, CUT, CUT, target_types=("x",)), ValueError, "target_types: 'x' is not one"),  # type: ignore[arg-type]
    (lambda comm: ReduceScatter(comm, WHOLE, 0, 0, cut=(0, 2, 6)), ValueError, r"cut: \(0, 2, 6\) make 2 parts"),
    (lambda comm: Discard(comm, WHOLE, 0, 0, cut=(0, 5, 2, 6)), ValueError, r"cut: \(0, 5, 2, 6\) in .* decrease"),
    (lambda comm: Discard(comm, WHOLE, 0, 0, cut=3), TypeError, "cut: 3 is not a sequence"),  # type: ignore[arg-type]
    (lambda comm: Discard(comm, WHOLE, 0, 0.5), TypeError, "along: 0.5 is not a whole number"),  # type: ignore[arg-type]
    (lambda comm: AllGather(comm, CUT, None), TypeError, "dim: None is not a whole number"),  # type: ignore[arg-type]
    (lambda comm: AllGather(comm, CUT, "0"), TypeError, "dim: '0' is not a whole number"),  # type: ignore[arg-type]
    (lambda comm: AllSumReduce(comm, WHOLE, 0), TypeError, "dims: 0 is not a sequence"),  # type: ignore[arg-type]
    (lambda comm: Broadcast(comm, ONE, 3), TypeError, "partition: 3 is neither a Partition nor"),  # type: ignore[arg-type]
    (lambda comm: Repartition(comm, CUT, None), TypeError, "target: None is not a Layout"),  # type: ignore[arg-type]
    (lambda comm: HaloExchange(comm, GAPS, CUT), ValueError, "layout: the windows 0:2 2:4 5:6 do not cut"),
    (lambda comm: HaloExchange(comm, CUT, OTHER), ValueError, r"windows: of a tensor \[7\]"),
    (lambda comm: HaloExchangeInPlace(comm, CUT, None), TypeError, "windows: None is not a Layout"),  # type: ignore[arg-type]
    (lambda comm: HaloExchange(comm, CUT, CUT, periodic=0), TypeError, "periodic: 0 is not a sequence"),  # type: ignore[arg-type]
    (lambda comm: HaloExchangeInPlace(comm, CUT, CUT, periodic=[[0]]), TypeError, "periodic: .* is not a sequence"),  # type: ignore[list-item]
    (lambda comm: Redistribute(comm, GRID, (6,), None, [[]]), TypeError, "source: None is not"),  # type: ignore[arg-type]
    (lambda _: HaloGeometry.from_kernel(CUT, 3, output_cuts=[(0, 1, 2)]), ValueError, r"output_cuts: \(0, 1, 2\)"),
    (lambda _: HaloGeometry.from_kernel(CUT, 3, periodic=0), TypeError, "periodic: 0 is not"),  # type: ignore[arg-type]
    (lambda _: HaloGeometry.from_kernel(None, 3), TypeError, "bulk: None is not a Layout"),  # type: ignore[arg-type]
    (lambda _: HaloGeometry.from_kernel(CUT, 3, padding=1.0), TypeError, "padding: 1.0 is neither"),  # type: ignore[arg-type]
    (lambda _: HaloGeometry.from_widths(CUT, [[(0, 1, 1)] * 3]), TypeError, r"widths: .* is not a list of \(left, right\)"),  # type: ignore[list-item]
    (lambda _: HaloGeometry.from_widths(CUT, None), TypeError, "widths: None is not a list"),  # type: ignore[arg-type]
]  # fmt: skip

OF_A_LAYOUT: dict[str, Callable[[Any, Any], object]] = {
    "AllGather": lambda comm, layout: AllGather(comm, layout, 0),
    "AllSumReduce": lambda comm, layout: AllSumReduce(comm, layout, []),
    "Broadcast": lambda comm, layout: Broadcast(comm, layout, GRID),
    "Discard": lambda comm, layout: Discard(comm, layout, 0, 0),
    "Gather": Gather,
    "HaloExchange": lambda comm, layout: HaloExchange(comm, layout, CUT),
    "HaloExchangeInPlace": lambda comm, layout: HaloExchangeInPlace(comm, layout, CUT),
    "ReduceScatter": lambda comm, layout: ReduceScatter(comm, layout, 0, 0),
    "Repartition": lambda comm, layout: Repartition(comm, layout, CUT),
    "Scatter": Scatter,
    "SendReceive": lambda comm, layout: SendReceive(comm, layout, 0),
    "SumReduce": lambda comm, layout: SumReduce(comm, layout, GRID),
    **{entry.__name__: entry for entry in (Add, Allocate, Clear, Copy, Deallocate, Move)},
}


def refusals(make: Make, error: type[Exception], spmd: Any) -> tuple[str, ...]:
    def body(comm: Any) -> str:
        with pytest.raises(error) as raised:
            make(comm)
        return str(raised.value)

    texts: tuple[str, ...] = spmd(3, body)
    return texts


@pytest.mark.parametrize(("make", "error", "message"), REFUSED)
def test_a_bad_argument_is_refused_by_the_callers_name_for_it(
    make: Make, error: type[Exception], message: str, spmd: Any
) -> None:
    texts = refusals(make, error, spmd)
    assert len(set(texts)) == 1
    with pytest.raises(error, match=f"^{message}"):
        raise error(texts[0])


@pytest.mark.parametrize("wrong", [None, [1], GRID])
@pytest.mark.parametrize("name", OF_A_LAYOUT)
def test_what_is_no_layout_is_refused_by_every_operator(name: str, wrong: object, spmd: Any) -> None:
    texts = refusals(lambda comm: OF_A_LAYOUT[name](comm, wrong), TypeError, spmd)
    assert set(texts) == {f"layout: {wrong!r} is not a Layout"}


def test_integers_of_numpy_are_integers() -> None:
    three, one = np.int64(3), np.int64(1)
    assert HaloGeometry.from_kernel(CUT, three, stride=one, padding=one) == HaloGeometry.from_kernel(
        CUT, 3, padding=1
    )
    assert HaloGeometry.from_kernel(CUT, 3, padding=[one]) == HaloGeometry.from_kernel(CUT, 3, padding=1)


def test_errors_keep_their_kind_and_those_about_other_things_stay_as_they_are() -> None:
    for error in (ValueError("cuts: decrease"), TypeError("cuts: are none")):
        with pytest.raises(type(error), match=r"^cut: ") as raised, arguments_renamed(cuts="cut"):
            raise error
        assert raised.value.__suppress_context__
    for text in ("shape: cuts: no", "cuts", ""):
        with pytest.raises(ValueError, match=f"^{text}$"), arguments_renamed(cuts="cut"):
            raise ValueError(text)
