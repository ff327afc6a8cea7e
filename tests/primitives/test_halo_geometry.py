"""Halo geometry: appendix B's examples, and every small kernel against a count of the inputs that outputs touch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations_with_replacement, pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.primitives.halo_geometry import HaloGeometry

# Length, workers, kernel arguments; the output length; each worker's widths, and its padding.
APPENDIX_B = {
    "B.2, normal convolution": (
        (11, 3, {"kernel": 5, "padding": 2}),
        11,
        [(0, 2), (2, 2), (2, 0)],
        [(2, 0), (0, 0), (0, 2)],
    ),
    "B.3, unbalanced convolution": ((11, 3, {"kernel": 5}), 7, [(0, 3), (1, 1), (3, 0)], [(0, 0)] * 3),
    "B.4, simple unbalanced pooling": (
        (10, 3, {"kernel": 2, "stride": 2}),
        5,
        [(0, 0), (0, 1), (-1, 0)],
        [(0, 0)] * 3,
    ),
    "B.5, complex unbalanced pooling": (
        (20, 6, {"kernel": 2, "stride": 2}),
        10,
        [(0, 0), (0, 0), (0, 1), (-1, 2), (-2, 1), (-1, 0)],
        [(0, 0)] * 6,
    ),
}


@pytest.mark.parametrize("name", APPENDIX_B)
def test_the_examples_of_the_appendix_have_the_papers_halos(name: str) -> None:
    (length, workers, kernel), output, halos, paddings = APPENDIX_B[name]
    geometry = HaloGeometry.from_kernel(Layout([length], Partition([workers])), **kernel)
    assert geometry.output is not None
    assert geometry.output == Layout([output], Partition([workers]))
    assert [geometry.halo(0, worker) for worker in range(workers)] == halos
    assert [geometry.padding(0, worker) for worker in range(workers)] == paddings


def test_the_tensor_of_appendix_b_6_has_interior_halos_of_its_own_in_each_dimension() -> None:
    """The upper workers need width 2 of the lower ones, which need width 4; the right ones need width 3 of the left."""
    bulk = Layout([11, 12], Partition([2, 2]))
    widths = [[(0, 2), (4, 0)], [(0, 0), (3, 0)]]
    geometry = HaloGeometry.from_widths(bulk, widths)
    assert geometry.window.windows == (((0, 8), (2, 11)), ((0, 6), (3, 12)))
    assert [[geometry.halo(dim, worker) for worker in (0, 1)] for dim in (0, 1)] == widths
    assert geometry.padded == geometry.window


def cuts(length: int, parts: int) -> Iterator[tuple[int, ...]]:
    for inner in combinations_with_replacement(range(length + 1), parts - 1):
        yield 0, *inner, length


def kernels() -> Iterator[tuple[int, int, int, tuple[int, int]]]:
    """Size, stride, dilation and padding of all small kernels."""
    for k, s, d in product((1, 2, 3), (1, 2, 3), (1, 2)):
        if k > 1 or d == 1:  # a single entry has no dilation
            for padding in product(range(d * (k - 1) + 1), repeat=2):
                yield k, s, d, padding


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_windows_span_what_the_outputs_of_a_worker_touch(length: int, k: int) -> None:
    seen = 0  # workers
    for size, s, d, (left, right) in kernels():
        if size != k:
            continue
        touched: dict[int, list[int]] = {}  # by output
        while len(touched) * s + d * (k - 1) < length + left + right:
            touched[len(touched)] = [len(touched) * s - left + d * entry for entry in range(k)]
        for workers in range(1, (4 if length < 5 else 3) if touched else 1):
            for ends, output_ends in product(cuts(length, workers), cuts(len(touched), workers)):
                geometry = HaloGeometry.from_kernel(
                    Layout.cut([length], Partition([workers]), [ends]),
                    k,
                    stride=s,
                    dilation=d,
                    padding=[(left, right)],
                    output_cuts=[output_ends],
                )
                assert geometry.output is not None
                assert geometry.output.ends(0) == output_ends
                for worker in range(workers):
                    outputs = range(output_ends[worker], output_ends[worker + 1])
                    _agrees(geometry, worker, [i for output in outputs for i in touched[output]])
                    seen += 1
    assert seen or length < k


def _agrees(geometry: HaloGeometry, worker: int, touched: list[int]) -> None:
    (start, stop), (first, last) = (layout.windows[0][worker] for layout in (geometry.bulk, geometry.window))
    length = geometry.bulk.shape[0]
    if not touched:
        assert first == last  # all of the bulk is trimmed
        assert sum(geometry.halo(0, worker)) == start - stop
        assert geometry.padded.windows[0][worker] == (start, stop)
        return
    assert (first, last) == (min(touched), max(touched) + 1)
    spanned = range(first, last)
    inside = [i for i in spanned if 0 <= i < length]
    assert inside, "a padding that the kernel allows leaves each window some of the tensor"
    assert geometry.halo(0, worker) == (start - min(inside), max(inside) + 1 - stop)
    assert geometry.padding(0, worker) == (sum(i < 0 for i in spanned), sum(i >= length for i in spanned))
    held = [*spanned, *range(start, stop)]
    assert geometry.padded.windows[0][worker] == (min(held), max(held) + 1)


def test_dimensions_have_kernels_of_their_own() -> None:
    """Channels as they are, rows and columns with different kernels, and a partition with copies."""
    bulk = Layout([3, 8, 9], Partition([2, 3, 2]), axes=[None, 2, 1])
    geometry = HaloGeometry.from_kernel(
        bulk, [1, 3, 2], stride=[1, 1, 2], dilation=[1, 2, 1], padding=[0, (1, 2), 0]
    )
    assert geometry.output is not None
    assert geometry.output.shape == (3, 7, 4)
    assert geometry.output.axes == geometry.window.axes == bulk.axes
    assert geometry.window.windows == (((0, 3),), ((-1, 7), (3, 10)), ((0, 4), (4, 6), (6, 8)))


@given(data=st.data())
def test_transfers_are_each_cell_of_the_window_once_from_the_worker_that_owns_it(data: Any) -> None:
    geometry = data.draw(_geometries())
    (length,), (owned,) = geometry.bulk.shape, geometry.bulk.windows
    outgoing = [transfer for worker in range(len(owned)) for transfer in geometry.outgoing(0, worker)]
    incoming = [transfer for worker in range(len(owned)) for transfer in geometry.incoming(0, worker)]
    assert sorted(outgoing) == sorted(incoming)
    held: Counter[int] = Counter()
    for worker, (first, last) in enumerate(geometry.window.windows[0]):
        cells = [i for i in range(first, last) if geometry.periodic or 0 <= i < length]
        walked = []
        for transfer in geometry.incoming(0, worker):
            start, stop = owned[transfer.sender]
            assert transfer.receiver == worker
            assert start <= transfer.source[0] < transfer.source[1] <= stop
            assert transfer.shift % length == 0
            walked += range(*transfer.window)
            held.update(range(*transfer.source))
            assert transfer.is_own == ({*range(*transfer.window)} <= {*range(*owned[worker])})
        assert walked == cells
    assert geometry.copies == max(held.values(), default=0)


@given(data=st.data())
def test_widths_and_windows_say_the_same(data: Any) -> None:
    geometry = data.draw(_geometries())
    widths = [
        [
            (owned[0] - incoming[0], incoming[1] - owned[1])
            for owned, incoming in zip(geometry.bulk.windows[0], geometry.window.windows[0], strict=True)
        ]
    ]
    same = HaloGeometry.from_widths(geometry.bulk, widths, padding=20, periodic=geometry.periodic)
    assert same == geometry


@st.composite
def _geometries(draw: Any) -> HaloGeometry:
    """Any cut of a vector, in any order, and any windows."""
    workers, length = draw(st.integers(1, 4)), draw(st.integers(1, 7))
    ends = [0, *sorted(draw(st.integers(0, length)) for _ in range(workers - 1)), length]
    bulk = Layout([length], Partition([workers]), [draw(st.permutations([*pairwise(ends)]))])
    windows = [sorted((draw(st.integers(-9, 16)), draw(st.integers(-9, 16)))) for _ in range(workers)]
    window = Layout([length], bulk.partition, [[(start, stop) for start, stop in windows]])
    return HaloGeometry(bulk, window, None, (0,) if draw(st.booleans()) else ())


def test_periodic_padding_is_data() -> None:
    geometry = HaloGeometry.from_kernel(Layout([4], Partition([2])), 3, padding=1, periodic=[0])
    assert [geometry.halo(0, worker) for worker in (0, 1)] == [(1, 1), (1, 1)]
    assert geometry.padding(0, 0) == (0, 0)
    assert [(transfer.sender, transfer.window, transfer.shift) for transfer in geometry.incoming(0, 0)] == [
        (1, (-1, 0), -4),
        (0, (0, 2), 0),
        (1, (2, 3), 0),
    ]


def test_a_worker_without_outputs_needs_nothing() -> None:
    geometry = HaloGeometry.from_kernel(Layout([6], Partition([3])), 5)  # two outputs
    assert geometry.window.windows == (((0, 5), (1, 6), (4, 4)),)
    assert geometry.halo(0, 2) == (0, -2)


LINE = Layout([4, 6], Partition([1, 2]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"kernel": [1, 7]},
            r"kernel: size 7 with dilation 1 spans 7 in dimension 1, but the tensor has length 6",
        ),
        (
            {"kernel": [1, 3], "dilation": 4, "padding": [0, (1, 1)]},
            r"kernel: size 3 with dilation 4 spans 9 in dimension 1, .* length 6, 8 with the padding \(1, 1\)",
        ),
        ({"kernel": [0, 1]}, "kernel: 0 in dimension 0; it must be at least 1"),
        ({"kernel": 1, "stride": [1, 0]}, "stride: 0 in dimension 1; it must be at least 1"),
        ({"kernel": 1, "dilation": [1, -2]}, "dilation: -2 in dimension 1; it must be at least 1"),
        (
            {"kernel": 3, "padding": [0, (2, 3)]},
            r"padding: \(2, 3\) in dimension 1; a kernel of size 3 with dilation 1 allows 0 to 2",
        ),
        ({"kernel": 1, "padding": 1}, r"padding: \(1, 1\) in dimension 0; .* allows 0 to 0"),
        ({"kernel": 3, "padding": [-1, 0]}, "padding: -1 in dimension 0"),
        ({"kernel": 3, "padding": [(0, -1), 0]}, r"padding: \(0, -1\) in dimension 0"),
        ({"kernel": [3]}, r"kernel: \(3,\) for a tensor of order 2"),
        (
            {"kernel": 1, "periodic": [2]},
            r"periodic: \(2,\) are not distinct dimensions of a tensor of order 2",
        ),
        ({"kernel": 1, "periodic": [0, 0]}, r"periodic: \(0, 0\) are not distinct"),
        ({"kernel": 3, "output_cuts": [None, (0, 3, 5)]}, r"cuts: \(0, 3, 5\) do not cover dimension 1"),
    ],
)
def test_kernels_that_do_not_fit_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HaloGeometry.from_kernel(LINE, **arguments)


@pytest.mark.parametrize(
    ("widths", "options", "message"),
    [
        ([[(0, 0)]], {}, "widths: a tensor of order 2 needs 2 lists of widths, not 1"),
        ([[(0, 0)], [(0, 0)]], {}, "widths: dimension 1 lies along 2 workers, but has widths for 1"),
        (
            [[(0, 0)], [(0, 1), (-2, -2)]],
            {},
            r"widths: \(-2, -2\) of worker 1 in dimension 1 trim more than its bulk 3:6 has",
        ),
        (
            [[(0, 0)], [(1, 1), (0, 0)]],
            {},
            r"widths: \(1, 1\) of worker 0, with bulk 0:3, lead \(1, 0\) cells out of dimension 1, of length 6",
        ),
        (
            [[(1, 0)], [(0, 0), (0, 3)]],
            {"padding": [(1, 0), (9, 2)]},
            r"worker 1, .* lead \(0, 3\) cells out",
        ),
    ],
)
def test_widths_that_no_data_can_fill_are_refused(widths: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HaloGeometry.from_widths(LINE, widths, **options)


def test_widths_may_lead_into_declared_padding_and_around_periodic_dimensions() -> None:
    widths = [[(1, 0)], [(0, 9), (0, 2)]]
    geometry = HaloGeometry.from_widths(LINE, widths, padding=[(1, 0), 0], periodic=[1])
    assert geometry.window.windows == (((-1, 4),), ((0, 12), (3, 8)))


@pytest.mark.parametrize(
    ("bulk", "window", "periodic", "message"),
    [
        (
            Layout([4], Partition([2]), [[(0, 2), (1, 4)]]),
            Layout([4], Partition([2])),
            (),
            "bulk: the windows 0:2 1:4 do not cut dimension 0, of length 4",
        ),
        (Layout([4], Partition([1]), [[(0, 3)]]), Layout([4], Partition([1])), (), "do not cut dimension 0"),
        (
            Layout([4], Partition([2])),
            Layout([4, 1], Partition([2, 1])),
            (),
            "window: over the partition 2x1 of order 2, but the bulk lies over 2 of order 1",
        ),
        (
            Layout([4], Partition([2])),
            Layout([5], Partition([2])),
            (),
            r"window: of a tensor \[5\], but the bulk is that of \[4\]",
        ),
        (
            Layout([4], Partition([2])),
            Layout([4], Partition([2]), axes=[None]),
            (),
            r"window: its dimensions lie along \(None,\)",
        ),
        (
            Layout([0], Partition([1])),
            Layout([0], Partition([1]), [[(-1, 1)]]),
            (0,),
            r"window: \(-1, 1\) in dimension 0, which is periodic and has length 0",
        ),
    ],
)
def test_windows_that_do_not_fit_the_bulk_are_refused(
    bulk: Layout, window: Layout, periodic: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        HaloGeometry(bulk, window, None, periodic)


def test_what_is_no_layout_is_refused() -> None:
    with pytest.raises(TypeError, match=r"window: \(0, 4\) is not a Layout"):
        HaloGeometry(LINE, (0, 4))  # type: ignore[arg-type]
