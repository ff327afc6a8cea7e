"""Repartition, Scatter and Gather: the paper's examples, local types, what travels and from where to where, errors."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from adjointlab.core import arrays
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.space import Space
from adjointlab.core.vectors import Draw, local_values
from adjointlab.primitives.gather import Gather
from adjointlab.primitives.repartition import Repartition
from adjointlab.primitives.scatter import Scatter

TYPES = ("varying", "replicated", "partial", "invariant")
ROWS, COLUMNS = Layout([8, 4], Partition([4, 1])), Layout([8, 4], Partition([1, 4]))


class Watched:
    """A communicator that notes what is sent and received: (peer, buffer)."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.sent: list[tuple[int, Any]] = []
        self.received: list[tuple[int, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def Isend(self, buffer: Any, dest: int, tag: int) -> Any:
        self.sent.append((dest, buffer))
        return self._comm.Isend(buffer, dest=dest, tag=tag)

    def Irecv(self, buffer: Any, source: int, tag: int) -> Any:
        self.received.append((source, buffer))
        return self._comm.Irecv(buffer, source=source, tag=tag)


def local(layout: Layout, rank: int, dtype: str = "float64") -> Any:
    """A rank's part of the tensor that has its flat indices for values; -1 in padding."""
    window = layout.window(rank)
    if window is None:
        return np.zeros(layout.local_shape(rank), dtype)
    shape = layout.local_shape(rank)
    result = np.full(shape, -1.0)
    for place in np.ndindex(*shape):
        index = [i + start for i, (start, _) in zip(place, window, strict=True)]
        if all(0 <= i < side for i, side in zip(index, layout.shape, strict=True)):
            result[place] = np.ravel_multi_index(index, layout.shape) if index else 7.0
    return result.astype(dtype)


def carries(ranks: int, layout: Layout, target: Layout) -> Callable[[Any], None]:
    """Every worker gets its part of the global tensor, and the adjoint brings it back."""

    def body(comm: Any) -> None:
        rank = comm.Get_rank()
        operator = Repartition(comm, layout, target)
        np.testing.assert_array_equal(operator.forward(local(layout, rank)), local(target, rank))
        np.testing.assert_array_equal(operator.adjoint(local(target, rank)), local(layout, rank))

    return body


def test_figure_2a_is_the_classical_all_to_all(spmd: Any) -> None:
    """x on 4 x 1 goes to 1 x 4, and each worker sends one message to each other one."""
    spmd(4, carries(4, ROWS, COLUMNS))

    def body(comm: Any) -> Any:
        watched = Watched(comm)
        Repartition(watched, ROWS, COLUMNS).forward(local(ROWS, comm.Get_rank()))
        return sorted((peer, buffer.size) for peer, buffer in watched.sent)

    for rank, sent in enumerate(spmd(4, body)):
        assert sent == [(peer, 2) for peer in range(4) if peer != rank]


def test_figure_2b_repartitions_a_tensor_of_order_3(spmd: Any) -> None:
    """P_x = 3 x 2 x 2 onto P_y = 1 x 2 x 3, to and from one worker."""
    x, y = Layout([7, 5, 6], Partition([3, 2, 2])), Layout([7, 5, 6], Partition([1, 2, 3]))
    one = Layout([7, 5, 6], Partition([1, 1, 1], [4]))
    for layout, target in ((x, y), (one, x), (y, one)):
        spmd(12, carries(12, layout, target))


def test_between_cuts_the_adjoint_is_the_way_back_and_the_inverse(spmd: Any) -> None:
    x = Layout.cut([5, 3], Partition([2, 2], [3, 1, 0, 2]), [(0, 4, 5), (0, 0, 3)], [1, 0])
    y = Layout.cut([5, 3], Partition([3], [1, 4, 0]), [(0, 1, 1, 5), None], [0, None])

    def body(comm: Any) -> Any:
        rank = comm.Get_rank()
        there, back = Repartition(comm, x, y), Repartition(comm, y, x)
        np.testing.assert_array_equal(there.adjoint(local(y, rank)), back.forward(local(y, rank)))
        return there.matrix(), there.H.matrix()

    for matrix, adjoint in spmd(5, body):
        np.testing.assert_array_equal(adjoint, matrix.T)
        np.testing.assert_array_equal(adjoint @ matrix, np.eye(15))


def test_a_scatter_is_the_adjoint_of_a_gather(spmd: Any) -> None:
    layout = Layout.cut([5, 3], Partition([3, 1], [2, 0, 3]), [(0, 1, 1, 5), None])

    def body(comm: Any) -> Any:
        rank = comm.Get_rank()
        scatter, gather = Scatter(comm, layout, 1), Gather(comm, layout, 1)
        assert scatter.codomain.tensors[0].layout == gather.domain.tensors[0].layout == layout
        whole = Layout([5, 3], Partition([1, 1], [1]))
        np.testing.assert_array_equal(scatter.forward(local(whole, rank)), local(layout, rank))
        np.testing.assert_array_equal(gather.forward(local(layout, rank)), local(whole, rank))
        return scatter.matrix(), gather.matrix()

    for scatter, gather in spmd(4, body):
        np.testing.assert_array_equal(scatter, gather.T)


@pytest.mark.parametrize(("source", "target"), [*product(TYPES[1:], TYPES)])
def test_every_pair_of_local_types_is_what_the_specification_says(
    source: str, target: str, apply_both: Any
) -> None:
    """A tensor cut along one dimension of a grid and copied along the other, to other cuts, copies and workers."""
    x = Layout.cut([5], Partition([2, 3], [5, 0, 3, 1, 4, 2]), [(0, 2, 5)], [0])
    for y in (
        Layout.cut([5], Partition([2, 2], [0, 6, 1, 5]), [(0, 1, 5)], [1]),
        Layout([5], Partition([2], [1, 4]), axes=[None]),
        x,
    ):
        types = [target if copied else "varying" for copied in y.copied]
        apply_both(
            7,
            lambda comm, y=y, types=types: Repartition(
                comm, x, y, types=["varying", source], target_types=types
            ),
        )


@pytest.mark.parametrize("types", [(a, b) for a, b in product(TYPES[1:], TYPES) if a != "partial" or a == b])
def test_onto_the_same_layout_nothing_moves(types: tuple[str, str], spmd: Any) -> None:
    """Unless summands are added up: there each worker needs what the others have."""
    layout = Layout.cut([5], Partition([2, 2], [3, 1, 0, 2]), [(0, 4, 5)], [1])

    def body(comm: Any) -> None:
        watched, rank = Watched(comm), comm.Get_rank()
        source, target = ((entry, "varying") for entry in types)
        operator = Repartition(watched, layout, layout, types=source, target_types=target)
        x = local(layout, rank)
        y = operator.forward(x)
        is_zero = types[0] != "partial" == types[1] and rank in (2, 3)  # one summand is the value
        np.testing.assert_array_equal(y, 0 * x if is_zero else x)
        assert not np.shares_memory(y, x)
        are_summed = types in (("invariant", "varying"), ("invariant", "replicated"))  # the cotangents
        if not are_summed:
            operator.adjoint(x)
        assert watched.sent == watched.received == []

    spmd(4, body)


def test_summands_stay_and_copies_are_summed_onto_the_same_layout(spmd: Any) -> None:
    layout = Layout([2], Partition([3]), axes=[None])

    def body(comm: Any) -> Any:
        x = np.full(2, 10.0 ** comm.Get_rank())
        partial = Repartition(comm, layout, layout, types=["partial"], target_types=["partial"]).forward(x)
        summed = Repartition(comm, layout, layout, types=["partial"], target_types=["replicated"]).forward(x)
        return partial[0], summed[0]

    assert spmd(3, body) == ((1.0, 111.0), (10.0, 111.0), (100.0, 111.0))


def test_the_copies_of_a_sum_are_bitwise_equal(spmd: Any) -> None:
    """Each of them adds in the same order, its own summand too."""
    x = Layout.cut([6], Partition([4, 2]), [(0, 5, 6)], [1])
    y = Layout([6], Partition([8], [7, 2, 5, 0, 6, 4, 1, 3]), axes=[None])

    def body(comm: Any) -> Any:
        operator = Repartition(comm, x, y, types=["partial", "varying"], target_types=["replicated"])
        drawn = local_values(operator.domain, 0, comm.Get_rank(), Draw(1, 0, "primal"))
        return operator.forward(drawn).tobytes()

    assert len(set(spmd(8, body))) == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_summed_in_single_and_rounded_once(dtype: str, spmd: Any) -> None:
    large = {"float16": 2048.0, "bfloat16": 256.0}[dtype]
    copies = Layout([2], Partition([5]), axes=[None])

    def body(comm: Any) -> Any:
        operator = Gather(comm, copies, dtype=dtype, types=["partial"])
        summand = np.full(2, large if comm.Get_rank() == 0 else 1.0, np.float32)
        return arrays.to_numpy(operator.forward(arrays.from_numpy(summand, dtype, "torch")))

    np.testing.assert_array_equal(spmd(5, body)[0], np.full(2, large + 4))


def test_padding_is_zero_in_y_and_ignored_in_its_cotangent(spmd: Any) -> None:
    x = Layout([6], Partition([2], [1, 2]))
    y = Layout([6], Partition([2]), [[(-2, 4), (2, 7)]])  # halos in the middle, padding outside

    def body(comm: Any) -> Any:
        rank = comm.Get_rank()
        operator = Repartition(comm, x, y)
        forward = operator.forward(1.0 + local(x, rank))
        cotangent = 1.0 + local(y, rank)
        cotangent[cotangent == 0] = np.nan
        return forward, operator.adjoint(cotangent)

    (left, nothing), (right, first), (_, last) = spmd(3, body)
    np.testing.assert_array_equal(left, [0, 0, 1, 2, 3, 4])
    np.testing.assert_array_equal(right, [3, 4, 5, 6, 0])
    assert nothing.shape == (0,)
    np.testing.assert_array_equal([*first, *last], [1, 2, 6, 8, 5, 6])  # the middle is held twice


def test_outside_the_tensor_x_is_ignored_and_its_cotangent_zero(spmd: Any) -> None:
    x = Layout([3], Partition([1], [1]), [[(-1, 5)]])
    y = Layout([3], Partition([1]), [[(-1, 5)]])

    def body(comm: Any) -> Any:
        rank = comm.Get_rank()
        operator = Repartition(comm, x, y)
        return operator.forward(np.ones(x.local_shape(rank))), operator.adjoint(np.ones(y.local_shape(rank)))

    (forward, _), (_, adjoint) = spmd(2, body)
    np.testing.assert_array_equal(forward, [0, 1, 1, 1, 0, 0])
    np.testing.assert_array_equal(adjoint, [0, 1, 1, 1, 0, 0])


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128", "int32", "int64"]
)
def test_every_element_type_is_carried_and_summed(dtype: str, library: str, apply_both: Any) -> None:
    if not arrays.supports(library, dtype):
        pytest.skip(f"{library} has no {dtype}")
    x = Layout([4, 3], Partition([2, 1], [2, 1]))
    y = Layout([4, 3], Partition([1, 3]), [[(0, 4)], [(-1, 2), (1, 3), (0, 2)]])
    apply_both(4, lambda comm: Repartition(comm, x, y, dtype=dtype), library, "column-major")


def test_a_tensor_of_order_0_is_carried(apply_both: Any) -> None:
    x, y = Layout([], Partition([2], [2, 0]), axes=[]), Layout([], Partition([2], [1, 2]), axes=[])
    for types in product(TYPES[1:], TYPES):
        source, target = ([entry] for entry in types)
        apply_both(
            3,
            lambda comm, s=source, t=target: Repartition(comm, x, y, dtype="int64", types=s, target_types=t),
        )


def test_bytes_and_messages_are_the_least_that_can_be(spmd: Any) -> None:
    """Both ways: what a worker needs and has not, in one message from each worker that has it."""
    x = Layout.cut([9, 7], Partition([3, 2], [4, 1, 0, 3, 5, 2]), [(0, 2, 7, 9), (0, 3, 7)])
    y = Layout.cut([9, 7], Partition([2, 2], [1, 0, 5, 4]), [(0, 5, 9), (0, 1, 7)], [1, 0])
    owned = [np.full((9, 7), 0, bool) for _ in range(6)], [np.full((9, 7), 0, bool) for _ in range(6)]
    for held, layout in zip(owned, (x, y), strict=True):
        for rank in layout.partition.ranks:
            window = layout.window(rank)
            assert window is not None
            held[rank][tuple(slice(*part) for part in window)] = True

    def body(comm: Any) -> Any:
        rank = comm.Get_rank()
        watched = Watched(comm)
        operator = Repartition(watched, x, y, dtype="float32")
        operator.forward(local(x, rank, "float32"))
        forward = [(peer, buffer.nbytes) for peer, buffer in watched.sent]
        watched.sent.clear()
        operator.adjoint(local(y, rank, "float32"))
        return forward, [(peer, buffer.nbytes) for peer, buffer in watched.sent]

    for rank, directions in enumerate(spmd(6, body)):
        for sent, source, target in zip(directions, owned, owned[::-1], strict=True):
            least = {
                peer: 4 * int((source[rank] & target[peer]).sum())
                for peer in range(6)
                if peer != rank and (source[rank] & target[peer]).any()
            }
            assert len(sent) == len(least)
            assert dict(sent) == least


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_what_is_contiguous_is_sent_and_received_without_a_copy(library: str, spmd: Any) -> None:
    """Rows of x leave from x itself where y takes them whole, and columns arrive in the rows of y itself."""
    x, y = Layout([4, 6], Partition([2, 1])), Layout([4, 6], Partition([1, 2]))

    def body(comm: Any) -> None:
        rank, watched = comm.Get_rank(), Watched(comm)
        operator = Repartition(watched, x, y)
        given, into = (arrays.from_numpy(local(layout, rank), "float64", library) for layout in (x, y))
        out = arrays.empty((4, 3), "float64", library)
        operator.forward(given, out=out)
        ((_, packed),), ((_, received),) = watched.sent, watched.received
        assert np.shares_memory(received, arrays.to_numpy(out))
        assert not np.shares_memory(packed, arrays.to_numpy(given))
        assert not np.shares_memory(packed, arrays.to_numpy(out))
        operator.adjoint(into)
        assert np.shares_memory(watched.sent[1][1], arrays.to_numpy(into))

    spmd(2, body)


def test_buffers_are_reused_and_never_handed_out(spmd: Any) -> None:
    x, y = Layout([4, 6], Partition([2, 1])), Layout([4, 6], Partition([1, 2]))

    def body(comm: Any) -> None:
        rank, watched = comm.Get_rank(), Watched(comm)
        operator = Repartition(watched, x, y)
        results = [operator.adjoint(call + local(y, rank)) for call in range(3)]
        buffers = [buffer for _, buffer in watched.received]
        assert all(np.shares_memory(buffers[0], buffer) for buffer in buffers)
        for call, result in enumerate(results):
            np.testing.assert_array_equal(result, call + local(x, rank))
            assert not any(np.shares_memory(result, buffer) for buffer in buffers)

    spmd(2, body)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_results_go_into_given_memory(library: str, dtype: str, spmd: Any) -> None:
    layout = Layout([4, 3], Partition([2, 1]))
    wide = Layout([4, 3], Partition([3, 1]), [[(-1, 2), (0, 3), (2, 5)], [(0, 3)]])  # sums, and zeros outside

    def body(comm: Any) -> None:
        rank = comm.Get_rank()
        operator = Repartition(comm, layout, wide, dtype=dtype)
        for apply, source, target in (
            (operator.forward, operator.domain, operator.codomain),
            (operator.adjoint, operator.codomain, operator.domain),
        ):
            x = arrays.from_numpy(local(source.tensors[0].layout, rank), dtype, library)
            out = arrays.empty(target.tensors[0].layout.local_shape(rank), dtype, library)
            out[...] = 99
            given = apply(x, out=out)
            assert (given is out) == target.tensors[0].layout.partition.is_active(rank)
            np.testing.assert_array_equal(arrays.to_numpy(given), arrays.to_numpy(apply(x)))

    spmd(4, body)


def test_batches_are_carried_member_by_member(spmd: Any) -> None:
    wide = Layout([8, 4], Partition([2, 2], [4, 1, 0, 2]), [[(-1, 5), (3, 8)], [(0, 2), (2, 4)]])

    def body(comm: Any) -> None:
        rank = comm.Get_rank()
        operator = Repartition(comm, ROWS, wide)
        for apply, layout in ((operator.forward, ROWS), (operator.adjoint, wide)):
            members = [factor * local(layout, rank) for factor in (1.0, -2.0, 5.0)]
            together = apply(np.stack(members, axis=-1))
            assert together.shape[-1] == 3
            for position, member in enumerate(members):
                np.testing.assert_array_equal(together[..., position], apply(member))

    spmd(5, body)


HALOS = [[(0, 5), (3, 8)], [(0, 4)]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda comm: Repartition(comm, ROWS, Layout([8, 5], Partition([1, 2]))),
            r"target: a layout of a tensor of shape \(8, 5\), but `layout` is one of shape \(8, 4\)",
        ),
        (
            lambda comm: Repartition(comm, Layout([8, 4], Partition([2]), axes=[None, None]), ROWS),
            r"layout: up to 2 workers along dimension 0 .*; declare them replicated, invariant or partial",
        ),
        (
            lambda comm: Gather(comm, Layout([8, 4], Partition([2, 1]), HALOS)),
            "layout: up to 2 workers along dimension 0 .*; only in the target may windows overlap",
        ),
        (
            lambda comm: Repartition(
                comm, Layout([8, 4], Partition([2, 1]), [[(0, 3), (5, 7)], [(0, 4)]]), ROWS
            ),
            "layout: nobody holds the indices 3:5, 7:8 of dimension 0, which the target",
        ),
        (
            lambda comm: Repartition(comm, ROWS, COLUMNS, target_types=["varying", "partial"]),
            "target_types: dimension 1 of the partition is partial, but its workers hold different windows",
        ),
        (
            lambda comm: Repartition(comm, ROWS, COLUMNS, types=["replicated"]),
            "types: a partition of order 2 needs 2 local types",
        ),
        (
            lambda comm: Repartition(comm, ROWS, Layout([8, 4], Partition([1, 2], [3, 4]))),
            r"target: the partition .* uses ranks \[4\], but the communicator has ranks 0 to 3",
        ),
        (lambda comm: Scatter(comm, ROWS, 4), "^root: 4 is not a rank of the communicator"),
        (lambda comm: Gather(comm, ROWS, 9), "^root: 9 is not a rank of the communicator"),
    ],
)
def test_what_cannot_be_carried_is_refused_alike_on_all_ranks(make: Any, message: str, spmd: Any) -> None:
    def body(comm: Any) -> Any:
        watched = Watched(comm)
        with pytest.raises(ValueError, match=f"^{message}") as raised:
            make(watched)
        assert watched.sent == []
        return str(raised.value)

    assert len(set(spmd(4, body))) == 1


def test_a_wrong_argument_is_named_before_the_first_message(spmd: Any) -> None:
    def body(comm: Any) -> Any:
        watched = Watched(comm)
        operator = Repartition(watched, ROWS, COLUMNS)
        with pytest.raises(ValueError, match=r"x: shape \(4, 2\) on rank"):
            operator.forward(np.zeros((4, 2)))
        with pytest.raises(ValueError, match=r"y: float32 on rank"):
            operator.adjoint(np.zeros((8, 1), np.float32))
        with pytest.raises(ValueError, match=r"out: shape \(2, 4\) on rank"):
            operator.forward(np.zeros((2, 4)), out=np.zeros((2, 4)))
        assert watched.sent == watched.received == []

    spmd(4, body)


def test_copies_outside_the_tensor_and_of_nothing_are_no_copies(spmd: Any) -> None:
    """Windows that overlap in padding alone, and workers that all hold nothing, are one global tensor."""
    padded = Layout([4], Partition([2]), [[(-2, 4), (-1, 0)]])
    empty = Layout([0, 3], Partition([2]), axes=[0, None])

    def body(comm: Any) -> None:
        rank = comm.Get_rank()
        whole = Gather(comm, padded).forward(local(padded, rank))
        np.testing.assert_array_equal(whole, np.arange(4.0) if rank == 0 else [])
        assert Repartition(comm, empty, Layout([0, 3], Partition([1, 1], [1]))).gain == 1

    spmd(2, body)


def test_the_spaces_are_those_of_the_layouts_and_types(spmd: Any) -> None:
    copies = Layout([8, 4], Partition([2, 2]), axes=[0, None])

    def body(comm: Any) -> None:
        operator = Repartition(comm, copies, ROWS, dtype="int32", types=["varying", "replicated"])
        assert operator.domain == Space(copies, dtype="int32", types=["varying", "replicated"])
        assert operator.codomain == Space(ROWS, dtype="int32")
        assert (operator.gain, operator.fan_in) == (1, 1)
        assert Repartition(comm, ROWS, copies).gain == 2
        assert Repartition(comm, copies, ROWS, types=["varying", "partial"]).gain == 2

    spmd(4, body)
