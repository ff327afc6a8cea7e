"""HaloExchange and HaloExchangeInPlace: windows of a global tensor, what travels, and whose memory is used."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adjointlab.core import arrays
from adjointlab.core.arrays import DTYPES
from adjointlab.core.layout import Layout, Window
from adjointlab.core.operator import apply_adjoint, apply_forward
from adjointlab.core.partition import Partition
from adjointlab.primitives.halo_exchange import HaloExchange
from adjointlab.primitives.halo_exchange_in_place import HaloExchangeInPlace
from adjointlab.primitives.halo_geometry import HaloGeometry
from adjointlab.primitives.subjects.halos import halo_exchanges

FORMS = [HaloExchange, HaloExchangeInPlace]


@st.composite
def cases(draw: Any) -> tuple[int, dict[str, Any]]:
    """The subject's cases, in double precision."""
    ranks = draw(st.sampled_from((1, 2, 3, 4, 6)))
    return ranks, {**draw(halo_exchanges.parameters(ranks)), "dtype": "float64"}


def window_of(whole: Any, region: tuple[Window, ...], periodic: tuple[int, ...]) -> Any:
    """A window of a tensor, zero beyond it but around its periodic dimensions."""
    for dim, (start, stop) in enumerate(region):
        side, index = whole.shape[dim], np.arange(start, stop)
        inside = np.ones_like(index, bool) if dim in periodic else (index >= 0) & (index < side)
        taken = np.take(whole, index % side if dim in periodic else index[inside], axis=dim)
        padded = np.zeros((*whole.shape[:dim], stop - start, *whole.shape[dim + 1 :]))
        padded[(slice(None),) * dim + (inside,)] = taken
        whole = padded
    return whole


def tensor(layout: Layout, copy: int) -> Any:
    """A tensor whose elements all differ, also from those of other copies."""
    return 1.0 + copy * prod(layout.shape) + np.arange(prod(layout.shape)).reshape(layout.shape)


def copy_of(layout: Layout, rank: int) -> int:
    """A number for the workers that hold the same copy: their place along the dimensions that cut nothing."""
    index = layout.partition.index(rank)
    return sum((1 + i) * 7**dim for dim, i in enumerate(index) if dim not in layout.axes)


@given(case=cases())
def test_every_worker_gets_its_window_of_its_copy_of_the_tensor(case: Any, spmd: Any) -> None:
    ranks, parameters = case
    bulk, windows, periodic = parameters["layout"], parameters["windows"], parameters["periodic"]
    padded = HaloGeometry(bulk, windows, None, periodic).padded

    def body(comm: Any) -> None:
        rank = comm.Get_rank()
        operators = [form(comm, **parameters) for form in FORMS]
        if not bulk.partition.is_active(rank):
            for operator in operators:
                assert operator.forward(np.zeros((0, 2))).shape == (0, 2)
            return
        whole = tensor(bulk, copy_of(bulk, rank))
        x = window_of(whole, bulk.window(rank), ())
        np.testing.assert_array_equal(
            operators[0].forward(x), window_of(whole, windows.window(rank), periodic)
        )
        # What was in the halo does not matter.
        old = np.full(padded.local_shape(rank), np.nan)
        place = tuple(
            slice(max(0, a - start), max(0, b - start))
            for (a, b), (start, _) in zip(bulk.window(rank), padded.window(rank), strict=True)
        )
        if x.size:
            old[(*place, ...)] = x
        np.testing.assert_array_equal(
            operators[1].forward(old), window_of(whole, padded.window(rank), periodic)
        )

    spmd(ranks, body)


@given(case=cases())
def test_the_papers_phases_and_the_definition_in_one_step_are_the_same_operator(case: Any, spmd: Any) -> None:
    """H on padded tensors, phase by phase, after zeros are brought in for the halo; and H onto the same windows."""
    ranks, parameters = case
    bulk, periodic = parameters["layout"], parameters["periodic"]
    padded = HaloGeometry(bulk, parameters["windows"], None, periodic).padded

    def body(comm: Any) -> Any:
        return (
            HaloExchange(comm, bulk, padded, periodic=periodic).specification(),
            HaloExchangeInPlace(comm, bulk, padded, periodic=periodic).specification(),
            HaloExchange(comm, bulk, padded).specification(),
        )

    one_step, phases, embedding = spmd(ranks, body)[0]
    rng = np.random.default_rng(0)
    x = {(b.rank, b.name): rng.integers(-9, 10, b.shape).astype(float) for b in one_step.inputs}
    expected = one_step.execute(x)
    # Any halo will do, such as that of another exchange.
    old = {(rank, "x"): held for (rank, _), held in embedding.execute(x).items()}
    for (rank, _), held in phases.execute(old).items():
        np.testing.assert_array_equal(held, expected[rank, "y"])


class Counting:
    """A communicator that notes (destination, bytes) of every message sent from this rank."""

    def __init__(self, comm: Any) -> None:
        self.comm, self.sent = comm, []

    def __getattr__(self, name: str) -> Any:
        assert name in ("Get_rank", "Get_size", "Irecv", "Barrier"), f"{name} is not counted"
        return getattr(self.comm, name)

    def Isend(self, buffer: Any, dest: int, tag: int) -> Any:
        self.sent.append((dest, buffer.nbytes))
        return self.comm.Isend(buffer, dest, tag)


def _traffic(spmd: Any, form: Any, ranks: int, parameters: Any) -> tuple[Counter[Any], Counter[Any], Any]:
    """Messages and elements by (source, destination) of a forward pass, and the operator on the last rank.

    The adjoint pass sends the same back.
    """

    def body(comm: Any) -> Any:
        counting, rank = Counting(comm), comm.Get_rank()
        operator = form(counting, **parameters)
        operator.forward(np.ones(operator.domain.tensors[0].layout.local_shape(rank)))
        there = [(rank, dest, size // 8) for dest, size in counting.sent]
        counting.sent.clear()
        operator.adjoint(np.ones(operator.codomain.tensors[0].layout.local_shape(rank)))
        back = [(dest, rank, size // 8) for dest, size in counting.sent]
        return there, back, operator

    there, back, operators = zip(*spmd(ranks, body), strict=True)
    sent = sorted(message for messages in there for message in messages)
    assert sorted(message for messages in back for message in messages) == sent
    elements: Counter[Any] = Counter()
    for source, target, size in sent:
        elements[source, target] += size
    return Counter((source, target) for source, target, _ in sent), elements, operators[-1]


def _missing(operator: Any, rank: int) -> int:
    """The cells of a worker's window that another worker must send.

    A cell comes in the phase of the last dimension in which it lies outside the bulk; around a periodic dimension it may
    be an image of what the worker has by then.
    """
    bulk, periodic = operator.geometry.bulk, operator.geometry.periodic
    cells = 0
    for cell in product(*(range(*window) for window in operator.geometry.window.window(rank))):
        sent = False
        for dim, (i, side, own) in enumerate(zip(cell, bulk.shape, bulk.window(rank), strict=True)):
            if dim not in periodic and not 0 <= i < side:
                sent = False  # padding
                break
            if i not in range(*own):
                sent = i % side not in range(*own)
        cells += sent
    return cells


@given(case=cases())
def test_a_pair_of_workers_exchanges_one_message_at_most_and_each_missing_cell_arrives_once(
    case: Any, spmd: Any
) -> None:
    """Windows that hold their bulk, which padded tensors do; and others, where corners may be passed on besides."""
    ranks, parameters = case
    for form in FORMS:
        messages, elements, operator = _traffic(spmd, form, ranks, parameters)
        bulk = operator.geometry.bulk
        assert all(count == 1 for count in messages.values())
        assert all(elements.values()), "an empty message"
        for source, target in messages:
            places = zip(bulk.partition.index(source), bulk.partition.index(target), strict=True)
            assert sum(i != j for i, j in places) == 1, "neighbours differ along one dimension"
        received: Counter[int] = Counter()
        for (_, target), count in elements.items():
            received[target] += count
        trims = any(
            min(operator.geometry.halo(dim, worker)) < 0
            for dim, windows in enumerate(bulk.windows)
            for worker in range(len(windows))
        )
        for rank in bulk.partition.ranks:
            missing = _missing(operator, rank)
            assert received[rank] >= missing if trims else received[rank] == missing


def _kernel_case(shape: Any, grid: Any, kernel: Any, **options: Any) -> dict[str, Any]:
    geometry = HaloGeometry.from_kernel(Layout(shape, Partition(grid)), kernel, **options)
    return {"layout": geometry.bulk, "windows": geometry.window, "periodic": geometry.periodic}


def test_corners_come_by_way_of_a_neighbour(spmd: Any) -> None:
    """Four workers around a point exchange with two neighbours each, and get the fourth's corner with the second phase."""
    messages, elements, _ = _traffic(spmd, HaloExchange, 4, _kernel_case([6, 8], [2, 2], 3, padding=1))
    assert set(messages) == {(0, 2), (2, 0), (1, 3), (3, 1), (0, 1), (1, 0), (2, 3), (3, 2)}
    assert elements[2, 0] == 4  # first the rows, as wide as the bulk
    assert elements[1, 0] == 4  # then the columns, with the corner


def test_no_message_goes_where_nothing_is_needed(spmd: Any) -> None:
    """Appendix B.4: of three workers the second alone needs anything, from the third."""
    messages, elements, _ = _traffic(spmd, HaloExchange, 3, _kernel_case([10], [3], 2, stride=2))
    assert dict(messages) == {(2, 1): 1}
    assert dict(elements) == {(2, 1): 1}


def test_halos_reach_several_workers_on(spmd: Any) -> None:
    layout = Layout([5], Partition([5]))
    windows = Layout([5], layout.partition, [[(0, 4), (1, 2), (0, 5), (3, 4), (0, 0)]])
    messages, _, _ = _traffic(spmd, HaloExchange, 5, {"layout": layout, "windows": windows})
    assert set(messages) == {(1, 0), (2, 0), (3, 0), (0, 2), (1, 2), (3, 2), (4, 2)}


def test_two_workers_around_a_ring_exchange_both_faces_in_one_message(spmd: Any) -> None:
    case = _kernel_case([4, 3], [2, 1], [3, 1], padding=[1, 0], periodic=[0])
    messages, elements, _ = _traffic(spmd, HaloExchangeInPlace, 2, case)
    assert dict(messages) == {(0, 1): 1, (1, 0): 1}
    assert dict(elements) == {(0, 1): 6, (1, 0): 6}


def test_one_worker_around_a_ring_sends_nothing(spmd: Any) -> None:
    case = _kernel_case([4], [1], 3, padding=1, periodic=[0])
    messages, _, operator = _traffic(spmd, HaloExchange, 1, case)
    assert not messages
    np.testing.assert_array_equal(operator.forward(np.arange(4.0)), [3, 0, 1, 2, 3, 0])
    np.testing.assert_array_equal(operator.adjoint(np.array([1.0, 2, 4, 8, 16, 32])), [34, 4, 8, 17])


def test_what_is_trimmed_feeds_a_neighbour_and_gets_its_cotangent(spmd: Any) -> None:
    """Appendix B.4: the last worker trims its first input, which the second one needs."""
    case = _kernel_case([10], [3], 2, stride=2)

    def body(comm: Any) -> Any:
        operator = HaloExchange(comm, **case)
        bulk, windows = case["layout"], case["windows"]
        start, stop = bulk.window(comm.Get_rank())[0]
        y = operator.forward(np.arange(start, stop, dtype=float))
        g = np.arange(*windows.window(comm.Get_rank())[0], dtype=float) + 1
        return y, operator.adjoint(g)

    forward, adjoint = zip(*spmd(3, body), strict=True)
    for y, expected in zip(forward, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]], strict=True):
        np.testing.assert_array_equal(y, expected)
    for x, expected in zip(adjoint, [[1, 2, 3, 4], [5, 6, 7], [8, 9, 10]], strict=True):
        np.testing.assert_array_equal(x, expected)


def test_what_nobody_needs_has_no_cotangent(spmd: Any) -> None:
    case = _kernel_case([5], [2], 1, stride=3)

    def body(comm: Any) -> Any:
        operator = HaloExchange(comm, **case)
        return operator.adjoint(
            np.full(operator.codomain.tensors[0].layout.local_shape(comm.Get_rank()), 7.0)
        )

    for x, expected in zip(spmd(2, body), [[7, 0, 0], [7, 0]], strict=True):
        np.testing.assert_array_equal(x, expected)


def test_the_adjoint_counts_the_windows_that_an_element_is_in(spmd: Any) -> None:
    case = _kernel_case([6, 4], [3, 2], 3, padding=1, periodic=[1])

    def body(comm: Any) -> Any:
        operator = HaloExchange(comm, **case)
        shape = operator.codomain.tensors[0].layout.local_shape(comm.Get_rank())
        return operator.adjoint(np.ones(shape)), operator.gain

    rows, columns = np.array([1, 2, 2, 2, 2, 1]), np.array([2, 2, 2, 2])
    for rank, (x, gain) in enumerate(spmd(6, body)):
        i, j = divmod(rank, 2)
        np.testing.assert_array_equal(x, np.outer(rows[2 * i : 2 * i + 2], columns[2 * j : 2 * j + 2]))
        assert gain == 4


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
def test_every_element_type_is_exchanged(form: Any, dtype: str, library: str, apply_both: Any) -> None:
    if not arrays.supports(library, dtype):
        pytest.skip(f"{library} has no {dtype}")
    bulk = Layout.cut([3, 4], Partition([2, 2], [4, 1, 2, 0]), [None, (0, 3, 4)])
    windows = Layout(bulk.shape, bulk.partition, [[(-1, 3), (1, 3)], [(0, 5), (2, 6)]])
    apply_both(5, lambda comm: form(comm, bulk, windows, periodic=[1], dtype=dtype), library)


@pytest.mark.parametrize("form", FORMS)
def test_a_tensor_of_order_0_is_copied(form: Any, apply_both: Any) -> None:
    layout = Layout([], Partition([2], [2, 0]), axes=[])
    apply_both(3, lambda comm: form(comm, layout, layout))


# Faces that are one piece of memory, faces that are not, and corners.
FACES = {"rows": ((2, 1), (3, 1)), "columns": ((1, 2), (1, 3)), "both": ((2, 2), (3, 3))}


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("name", FACES)
def test_in_place_works_in_the_memory_it_is_given_in_any_order(name: str, library: str, spmd: Any) -> None:
    grid, kernel = FACES[name]
    case = _kernel_case([6, 4], grid, kernel, padding=[side // 2 for side in kernel])

    def body(comm: Any) -> None:
        operator = HaloExchangeInPlace(comm, **case)
        shape = operator.domain.tensors[0].layout.local_shape(comm.Get_rank())
        values = np.arange(prod(shape), dtype=float).reshape(shape) + 100 * comm.Get_rank()
        for fresh, in_place in (
            (operator.forward, operator.forward_),
            (operator.adjoint, operator.adjoint_),
            (operator.forward, lambda p: operator.forward(p, out=p)),
            (operator.adjoint, lambda p: operator.adjoint(p, out=p)),
        ):
            given = arrays.from_numpy(values, "float64", library)
            expected = arrays.to_numpy(fresh(given))
            np.testing.assert_array_equal(arrays.to_numpy(given), values)
            for padded in (given, arrays.from_numpy(values.T.copy(), "float64", library).T):
                assert in_place(padded) is padded
                np.testing.assert_array_equal(arrays.to_numpy(padded), expected)

    spmd(prod(grid), body)


def test_the_adjoint_in_place_adds_into_the_bulk_and_clears_the_halo(spmd: Any) -> None:
    case = _kernel_case([4], [2], 3, padding=1)

    def body(comm: Any) -> Any:
        y = np.array([[1.0, 2, 3, 4], [5.0, 6, 7, 8]][comm.Get_rank()])
        return HaloExchangeInPlace(comm, **case).adjoint_(y)

    for padded, expected in zip(spmd(2, body), [[0, 2, 8, 0], [0, 10, 7, 0]], strict=True):
        np.testing.assert_array_equal(padded, expected)


@pytest.mark.parametrize("direction", ["forward", "adjoint"])
@pytest.mark.parametrize("form", FORMS)
def test_results_go_into_given_memory(form: Any, direction: str, spmd: Any) -> None:
    case = _kernel_case([6, 4], [2, 1], [4, 3], padding=[(1, 0), 1])

    def body(comm: Any) -> None:
        operator = form(comm, **case)
        source, target = (
            (operator.domain, operator.codomain)
            if direction == "forward"
            else (operator.codomain, operator.domain)
        )
        rank, apply = comm.Get_rank(), getattr(operator, direction)
        x = np.random.default_rng(rank).integers(0, 9, source.tensors[0].layout.local_shape(rank)) * 1.0
        shape = target.tensors[0].layout.local_shape(rank)
        out = np.full(shape, np.nan)
        assert apply(x, out=out) is out
        np.testing.assert_array_equal(out, apply(x))
        with pytest.raises(ValueError, match=r"out: an array on rank \d is not in row-major order"):
            apply(x, out=np.empty(shape[::-1]).T)
        with pytest.raises(ValueError, match=r"out: shape \(1, 1\) on rank \d"):
            apply(x, out=np.empty((1, 1)))

    spmd(2, body)


def test_in_place_needs_the_faces_alone_and_out_of_place_its_result(spmd: Any) -> None:
    case = _kernel_case([2, 256, 256], [1, 2, 1], [1, 3, 1], padding=[0, 1, 0])
    size = 8 * 2 * 130 * 256  # of a padded local tensor, in bytes
    peaks = {}

    def body(comm: Any) -> None:
        in_place, out_of_place = HaloExchangeInPlace(comm, **case), HaloExchange(comm, **case)
        y = np.ones(in_place.domain.tensors[0].layout.local_shape(comm.Get_rank()))
        x = np.ones(out_of_place.domain.tensors[0].layout.local_shape(comm.Get_rank()))
        for name, apply, argument in (
            ("forward_", in_place.forward_, y),
            ("adjoint_", in_place.adjoint_, y),
            ("forward", out_of_place.forward, x),
            ("adjoint", out_of_place.adjoint, y),
        ):
            comm.Barrier()
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            comm.Barrier()
            apply(argument)
            comm.Barrier()
            peaks[name] = tracemalloc.get_traced_memory()[1] - before  # of both ranks
            comm.Barrier()

    tracemalloc.start()
    try:
        spmd(2, body)
    finally:
        tracemalloc.stop()
    assert peaks["forward_"] < 0.1 * size
    assert peaks["adjoint_"] < 0.1 * size
    assert 1.9 * size < peaks["forward"] < 2.1 * size
    assert 1.9 * size < peaks["adjoint"] < 2.1 * size


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_buffers_are_made_once_and_never_handed_out(
    library: str, spmd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = _kernel_case([6, 4], [1, 2], [3, 3], padding=1, periodic=[0])
    allocated = []
    for name in ("empty", "empty_with_views"):
        make = getattr(arrays, name)
        monkeypatch.setattr(arrays, name, lambda *args, make=make: allocated.append(args) or make(*args))

    def body(comm: Any) -> tuple[int, int]:
        operator, counts, results = HaloExchange(comm, **case), [], []
        for number in (1.0, 5.0):
            comm.Barrier()
            allocated.clear()
            comm.Barrier()
            x = arrays.from_numpy(np.full((6, 2), number), "float64", library)
            results.append(operator.forward(x))
            results.append(operator.adjoint(results[-1]))
            comm.Barrier()
            counts.append(len(allocated))
        for one, five in zip(results[:2], results[2:], strict=True):
            np.testing.assert_array_equal(5 * arrays.to_numpy(one), arrays.to_numpy(five))
        return counts[0], counts[1]

    for first, second in spmd(2, body):
        assert second == 4  # two results on two ranks
        assert first > second


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (Layout([4], Partition([2])), Layout([6], Partition([2]))),
            r"^windows: of a tensor \[6\], but the bulk is that of \[4\]",
        ),
        (
            (Layout([4], Partition([2])), Layout([4, 1], Partition([2, 1]))),
            "^windows: over the partition 2x1 of order 2",
        ),
        (
            (Layout([4], Partition([2]), [[(0, 4), (0, 4)]]), Layout([4], Partition([2]))),
            "^layout: the windows 0:4 0:4 do not cut dimension 0",
        ),
        (
            (Layout([4], Partition([2], [0, 3])), Layout([4], Partition([2], [0, 3]))),
            r"layout: .* uses ranks \[3\], but the communicator has ranks 0 to 1",
        ),
    ],
)
def test_what_cannot_be_exchanged_is_refused_on_every_rank_alike(
    arguments: Any, message: str, form: Any, spmd: Any
) -> None:
    def body(comm: Any) -> Any:
        with pytest.raises(ValueError, match=message) as raised:
            form(comm, *arguments)
        return str(raised.value)

    assert len(set(spmd(2, body))) == 1


@pytest.mark.parametrize("form", FORMS)
def test_a_wrong_argument_is_named_before_the_first_message(form: Any, spmd: Any) -> None:
    case = _kernel_case([4], [2], 3, padding=1)

    def body(comm: Any) -> None:
        operator = form(comm, **case)
        with pytest.raises(ValueError, match=r"x: shape \(9,\) on rank \d, but the layout"):
            apply_forward(operator, [np.zeros(9)])
        with pytest.raises(ValueError, match=r"float32 on rank \d, but the operator was made for float64"):
            apply_adjoint(operator, [np.zeros(4, np.float32)])

    spmd(2, body)
