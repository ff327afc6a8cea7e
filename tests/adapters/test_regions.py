"""Megatron's regions are spaces: a function that belongs to another kind of region than it says is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import adjointlab as al
from adjointlab.adapters.regions import REGIONS, region
from adjointlab.checks.verdict import Status
from adjointlab.engine.discovery import find_subject
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget

EXAMPLE = Path(__file__).parents[2] / "examples" / "megatron_regions.py"
BUDGET = Budget(10, ranks=3, seed=1)


@pytest.mark.parametrize(
    ("name", "kind", "other"), [("copies", "copy", "scatter"), ("sums", "reduce", "copy")]
)
def test_a_function_is_coherent_between_its_own_regions(
    world: al.SimulatedWorld, name: str, kind: str, other: str
) -> None:
    function = find_subject(f"{EXAMPLE}:{name}").target

    def verdict(kind: str) -> Status:
        @al.subject.autograd(function, process_group=True)
        def cases(draw: Any, ranks: int) -> dict[str, Any]:
            return region(kind, (2 * ranks, 2 * ranks), ranks)

        return investigate(world, cases, "adjoint", BUDGET).status

    assert verdict(kind) is Status.COHERENT
    assert verdict(other) is Status.INCOHERENT


@pytest.mark.parametrize("kind", REGIONS)
def test_tensors_that_are_cut_are_cut_evenly_or_as_said(kind: str) -> None:
    spaces = region(kind, (4, 6), 2)
    for space in spaces.values():
        layout = space.tensors[0].layout
        assert layout.local_shape(0) == layout.local_shape(1)
    if "sequence" in kind and "hidden" not in kind:
        uneven = region(kind, (4, 6), 2, sizes=[1, 3])
        assert (1, 6) in {space.tensors[0].layout.local_shape(0) for space in uneven.values()}


@pytest.mark.parametrize(
    ("kind", "shape", "message"),
    [
        ("move", (2, 2), "is not one of copy, reduce"),
        ("gather", (2, 3), "give sizes"),
        ("scatter", (), r"shape: \(\) has no dimension"),
    ],
)
def test_other_kinds_and_uneven_cuts_are_refused(kind: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        region(kind, shape, 2)


@pytest.mark.parametrize(
    ("shape", "ranks", "sizes", "kind", "message"),
    [
        (4, 2, None, TypeError, "shape: 4 is not a sequence of integers"),
        ((4, 2), "2", None, TypeError, "ranks: '2' is not a whole number"),
        ((4, 2), 0, None, ValueError, "ranks: at least 1, not 0"),
        ((4, 2), 2, 3, TypeError, "sizes: 3 is not a sequence of integers"),
        (
            (4, 2),
            2,
            (1, 2),
            ValueError,
            "sizes: (1, 2) are not those of 2 parts of dimension 1, which has 2 elements",
        ),
        (
            (4, 2),
            2,
            (3, -1),
            ValueError,
            "sizes: (3, -1) are not those of 2 parts of dimension 1, which has 2 elements",
        ),
    ],
)
def test_a_shape_ranks_and_sizes_that_are_none_are_refused_by_their_names(
    shape: Any, ranks: Any, sizes: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as raised:
        region("scatter", shape, ranks, sizes=sizes)
    assert str(raised.value) == message
