"""Lists of boxes become launches: boxes with fewer dimensions and wider words, blocks of the grid, and lists that are cut where targets meet."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adjointlab.core import arrays
from adjointlab.core.arrays import kernels
from adjointlab.core.arrays.kernels import Strided, boxes_argument
from adjointlab.worlds.launch import is_launched
from tests.gpu.stand_in.arrays import counts

pytestmark = pytest.mark.skipif(is_launched(), reason="what is tested needs no ranks")

# Boxes as data: shape, strides of the target, strides of the source
Views = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@pytest.mark.parametrize(
    ("given", "merged"),
    [
        (((), (), ()), ((1,), (0,), (0,))),
        (((1, 1), (8, 8), (8, 8)), ((1,), (0,), (0,))),
        (((3,), (8,), (16,)), ((3,), (8,), (16,))),
        (((0,), (8,), (8,)), ((0,), (8,), (8,))),
        (((2, 3), (24, 8), (24, 8)), ((6,), (8,), (8,))),
        (((2, 3), (24, 8), (32, 8)), ((2, 3), (24, 8), (32, 8))),
        (((2, 3), (32, 8), (24, 8)), ((2, 3), (32, 8), (24, 8))),
        (((2, 3), (24, 8), (0, 8)), ((2, 3), (24, 8), (0, 8))),
        (((2, 3), (-24, 8), (24, 8)), ((2, 3), (-24, 8), (24, 8))),
        (((2, 3), (24, 8), (-24, 8)), ((2, 3), (24, 8), (-24, 8))),
        (((2, 1, 3), (24, 99, 8), (24, 77, 8)), ((6,), (8,), (8,))),
        (((2, 3, 4), (96, 32, 8), (96, 32, 8)), ((24,), (8,), (8,))),
        (((2, 3, 4), (200, 32, 8), (96, 32, 8)), ((2, 12), (200, 8), (96, 8))),
        (((2, 3, 4), (120, 40, 8), (240, 80, 8)), ((6, 4), (40, 8), (80, 8))),
        (((4, 4), (-32, -8), (0, 0)), ((16,), (-8,), (0,))),
    ],
)
def test_dimensions_that_are_contiguous_in_both_views_become_one(given: Views, merged: Views) -> None:
    def box(views: Views) -> Strided:
        return Strided(0x1000, 0x2000, views[0], views[1], views[2], 8)

    assert box(given).merged() == box(merged)
    assert box(given).size == box(merged).size == int(np.prod(given[0]))


# target, source, shape, target strides, source strides, width; as widened: the last side, the last strides, the width
WIDENED = [
    ((0x1000, 0x2000, (8,), (4,), (4,), 4), (2, 16)),
    ((0x1008, 0x2000, (8,), (4,), (4,), 4), (4, 8)),
    ((0x1000, 0x2008, (8,), (4,), (4,), 4), (4, 8)),
    ((0x1004, 0x2000, (8,), (4,), (4,), 4), (8, 4)),
    ((0x1000, 0x2000, (6,), (4,), (4,), 4), (3, 8)),
    ((0x1000, 0x2000, (5,), (4,), (4,), 4), (5, 4)),
    ((0x1000, 0x2000, (2, 8), (48, 4), (64, 4), 4), (2, 16)),
    ((0x1000, 0x2000, (2, 8), (40, 4), (64, 4), 4), (4, 8)),
    ((0x1000, 0x2000, (2, 8), (64, 4), (40, 4), 4), (4, 8)),
    ((0x1000, 0x2000, (2, 8), (36, 4), (64, 4), 4), (8, 4)),
    ((0x1001, 0x2000, (32,), (1,), (1,), 1), (32, 1)),
    ((0x1002, 0x2000, (32,), (1,), (1,), 1), (16, 2)),
    ((0x1000, 0x2000, (48,), (1,), (1,), 1), (3, 16)),
    ((0x1000, 0x2000, (2,), (16,), (16,), 16), (2, 16)),
    ((0x1008, 0x2008, (2,), (16,), (16,), 16), (2, 16)),
    ((0x1000, 0x2000, (4,), (8,), (16,), 8), (4, 8)),
    ((0x1000, 0x2000, (4,), (16,), (8,), 8), (4, 8)),
    ((0x1000, 0x2000, (4,), (4,), (4,), 8), (4, 8)),
]


@pytest.mark.parametrize(("given", "widened"), WIDENED)
def test_words_are_as_wide_as_addresses_strides_and_sides_allow(given: Any, widened: tuple[int, int]) -> None:
    (target, source, shape, target_strides, source_strides, width), (side, wide) = given, widened
    as_given = Strided(*given)
    expected = Strided(
        target, source, (*shape[:-1], side), (*target_strides[:-1], wide), (*source_strides[:-1], wide), wide
    )
    assert as_given.widened() == (as_given if wide == width else expected)


def test_each_box_of_an_argument_has_its_own_blocks_of_1024_elements() -> None:
    boxes = [
        Strided(11, 12, (2, 512), (13, 14), (15, 16), 8),
        Strided(21, 22, (1025,), (23,), (24,), 4),
        Strided(31, 32, (1, 1, 1, 1, 1, 1), (1, 2, 3, 4, 5, 6), (6, 5, 4, 3, 2, 1), 2),
    ]
    (argument,), blocks = boxes_argument(boxes)
    assert (argument["count"], blocks) == (3, 4)
    zeros = [0, 0, 0, 0]
    assert [
        [
            value.tolist() if name.endswith(("shape", "strides")) else int(value)
            for name, value in zip(entry.dtype.names, entry, strict=True)
        ]
        for entry in argument["box"][:4]
    ] == [
        [12, 11, [2, 512, *zeros], [15, 16, *zeros], [13, 14, *zeros], 1024, 0, 2, 8, 0],
        [22, 21, [1025, 0, *zeros], [24, 0, *zeros], [23, 0, *zeros], 1025, 1, 1, 4, 0],
        [32, 31, [1] * 6, [6, 5, 4, 3, 2, 1], [1, 2, 3, 4, 5, 6], 1, 3, 6, 2, 0],
        [0, 0, [0] * 6, [0] * 6, [0] * 6, 0, 0, 0, 0, 0],
    ]


def on_device(values: Any, memory: str = "cupy") -> Any:
    host = np.asarray(values)
    return arrays.from_numpy(host, host.dtype.name, memory)


def by_slices(function: Callable[..., None], array: Any, pairs: list[tuple[Any, Any]]) -> Any:
    """The result of NumPy's slices."""
    for target, source in pairs:
        if function is kernels.copy_all:
            array[target] = source
        else:
            array[target] += source
    return array


def slices(*ends: tuple[int, ...]) -> list[slice]:
    return [slice(*end) for end in ends]


# slices of a target of 40 elements, and the launches of copies and of sums
LISTS: list[tuple[list[slice], int, int]] = [
    (slices((0, 4)), 0, 0),
    (slices((0, 4), (4, 8)), 1, 1),
    (slices((0, 4), (8, 8), (4, 8)), 1, 1),
    (slices((3, 3), (8, 8)), 0, 0),
    (slices((0, 8, 2), (1, 8, 2)), 1, 1),
    (slices(*((k, k + 1) for k in range(16))), 1, 1),
    (slices(*((k, k + 1) for k in range(17))), 2, 2),
    (slices(*((k, k + 1) for k in range(33))), 3, 3),
]


@pytest.mark.parametrize(("targets", "copies", "sums"), LISTS)
@pytest.mark.parametrize("memory", ["cupy", "torch-cuda"])
def test_a_list_of_boxes_is_one_launch_for_every_16_of_them(
    both: Any, targets: list[slice], copies: int, sums: int, memory: str
) -> None:
    for function, launches in ((kernels.copy_all, copies), (kernels.add_all, sums)):
        target = on_device(np.arange(40.0), memory)
        sources = [np.arange(100.0, 140)[place][::-1].copy() for place in targets]
        pairs = [
            (target[place], on_device(source, memory)) for place, source in zip(targets, sources, strict=True)
        ]
        counts.clear()
        function(pairs)
        assert counts["launches"] == launches
        expected = by_slices(function, np.arange(40.0), list(zip(targets, sources, strict=True)))
        assert arrays.to_numpy(target).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("targets", "launches"),
    [
        (slices((0, 4), (3, 7)), 2),
        (slices((0, 4), (3, 7), (6, 9), (20, 24)), 3),
        (slices((0, 4), (8, 12), (2, 9), (20, 24)), 2),
        (slices((0, 4), (8, 12), (20, 24), (0, 4), (8, 12)), 2),
        (slices((0, 4), (0, 4), (0, 4)), 3),
        (slices((0, 4), (8, 8), (0, 4)), 2),
    ],
)
@pytest.mark.parametrize("memory", ["cupy", "torch-cuda"])
def test_sums_into_targets_that_meet_come_one_launch_after_the_other(
    both: Any, targets: list[slice], launches: int, memory: str
) -> None:
    target = on_device(np.zeros(40), memory)
    sources = [np.arange(1.0, 1 + len(range(40)[place])) for place in targets]
    counts.clear()
    kernels.add_all(
        [(target[place], on_device(source, memory)) for place, source in zip(targets, sources, strict=True)]
    )
    assert counts["launches"] == launches
    expected = by_slices(kernels.add_all, np.zeros(40), list(zip(targets, sources, strict=True)))
    assert arrays.to_numpy(target).tolist() == expected.tolist()


@pytest.mark.parametrize(("order", "launches"), [(6, 1), (7, 0)])
def test_boxes_of_too_many_dimensions_go_by_slices(cupy: Any, order: int, launches: int) -> None:
    values = np.arange(3.0**order).reshape((3,) * order)
    apart = (slice(None, None, 2),) * order
    for function in (kernels.copy_all, kernels.add_all):
        target, source = on_device(values), on_device(-2 * values)
        counts.clear()
        function([(target[apart][:1], source[apart][:1]), (target[apart][1:], source[apart][1:])])
        assert counts["launches"] == (1 if order == 7 else launches)
        expected = by_slices(function, values.copy(), [(apart, -2 * values[apart])])
        assert np.array_equal(arrays.to_numpy(target), expected)


@pytest.mark.parametrize("function", [kernels.copy_all, kernels.add_all])
def test_sources_of_another_element_type_go_by_slices(cupy: Any, function: Callable[..., None]) -> None:
    target = on_device(np.arange(8.0))
    pairs = [(target[:3], on_device(np.arange(3, dtype="f4"))), (target[3:], on_device(np.arange(5.0)))]
    counts.clear()
    function(pairs)
    assert counts["launches"] == 1
    expected = by_slices(function, np.arange(8.0), [(slice(3), np.arange(3)), (slice(3, 8), np.arange(5))])
    assert arrays.to_numpy(target).tolist() == expected.tolist()


@pytest.mark.parametrize("function", [kernels.copy_all, kernels.add_all])
@pytest.mark.parametrize("has_kernels", [False, True])
def test_nothing_is_launched_for_the_host_or_without_cupy(
    both: Any, function: Callable[..., None], has_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_has_kernels", lambda: has_kernels)
    targets = np.zeros(8), on_device(np.zeros(8), "torch-cuda")
    counts.clear()
    for target in targets:
        ones = target[:4] + 1
        function([(target[:4], ones), (target[4:], 2 * ones)])
        assert arrays.to_numpy(target).tolist() == [1] * 4 + [2] * 4
        function([])
    assert counts["launches"] == has_kernels


@pytest.mark.parametrize("has_protocol", [False, True])
def test_launches_go_to_the_stream_of_another_library(
    has_protocol: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By CUDA's protocol for streams; before CuPy 14 by its address."""

    class Stream:
        if has_protocol:

            @staticmethod
            def from_external(foreign: Any) -> object:
                return "by protocol", foreign.__cuda_stream__()

    cuda = SimpleNamespace(Stream=Stream, ExternalStream=lambda *given: ("by address", given))
    monkeypatch.setitem(kernels.sys.modules, "cupy", SimpleNamespace(cuda=cuda))  # type: ignore[attr-defined]
    expected = ("by protocol", (0, 0x77)) if has_protocol else ("by address", (0x77, 3))
    assert kernels._external(0x77, 3) == expected
