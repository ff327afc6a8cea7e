"""Arrays that are local tensors of a space on a rank, and arrays that are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from adjointlab.core.arguments import (
    batch_shape,
    check_argument,
    check_arguments,
    check_out,
    check_writable,
    mismatch,
)
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.space import Tensor

SHAPES: tuple[tuple[int, ...], ...] = ((), (4,), (3, 4), (2, 3, 4))
ONE, THREE = np.ones(4), np.ones((4, 3))
X, Y = (Tensor(Layout((4,), Partition((1,))), name=name) for name in "xy")


def on_rank_0(shape: tuple[int, ...]) -> Tensor:
    return Tensor(Layout(shape, Partition((1,) * len(shape), [0])))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", [1, 5])
def test_every_rank_tells_a_batch_by_one_dimension_more_than_its_own_local_tensor(
    shape: tuple[int, ...], batch: int
) -> None:
    tensor = on_rank_0(shape)
    for rank in (0, 1):
        local = tensor.layout.local_shape(rank)
        assert check_argument(tensor, np.zeros((*local, batch)), rank) == (batch,)
        assert check_argument(tensor, np.zeros(local), rank) == ()


@pytest.mark.parametrize(
    ("shape", "given"),
    [
        ((4,), (5, 0)),
        ((4,), (0, 0)),
        ((4,), (0, 0, 3)),
        ((3, 4), (0,)),
        ((3, 4), (0, 4)),
        ((3, 4), (3, 0)),
        ((3, 4), (3, 0, 5)),
        ((3, 4), (0, 4, 5)),
        ((3, 4), (3, 4, 0)),
    ],
)
def test_any_other_tensor_without_elements_tells_no_batch_on_an_inactive_rank(
    shape: tuple[int, ...], given: tuple[int, ...]
) -> None:
    tensor = on_rank_0(shape)
    assert check_argument(tensor, np.zeros(given), 1) == ()
    assert batch_shape(tensor, np.zeros(given), 1) == ()


def test_all_arguments_come_in_one_batch_and_from_one_library() -> None:
    one, three = np.ones(4), np.ones((4, 3))
    assert check_arguments((X, Y), (one, one), 0) == ()
    assert check_arguments((X, Y), (three, three), 0) == (3,)
    for given in ((one, three), (three, one)):
        with pytest.raises(ValueError, match=r"^y: shape .* on rank 0, but x has .* one batch, or none does"):
            check_arguments((X, Y), given, 0)
    with pytest.raises(ValueError, match=r"^y: a torch array on rank 0, but x is a numpy array"):
        check_arguments((X, Y), (one, torch.ones(4, dtype=torch.float64)), 0)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_arguments_is_refused_with_their_names(count: int) -> None:
    with pytest.raises(ValueError, match=f"^arguments: {count} on rank 0, but the operator takes 2: x, y"):
        check_arguments((X, Y), [np.ones(4)] * count, 0)


def _made(library: str) -> Any:
    return np.ones(12) if library == "numpy" else torch.ones(12, dtype=torch.float64)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_memory_for_a_result_shares_none_with_the_arguments(library: str) -> None:
    memory = _made(library)
    check_out(Y, memory[4:8], (memory[:4], memory[8:]), 0, ())
    check_out(Y, memory[4:8], (memory[5:5],), 0, ())  # of nothing, nothing is shared
    for argument in (memory[4:8], memory[1:5], memory[7:11], memory[::3]):
        for arguments in ((argument,), (memory[:1], argument)):
            with pytest.raises(ValueError, match=r"^out: shares memory with the argument on rank 0"):
                check_out(Y, memory[4:8], arguments, 0, ())


def test_memory_for_a_result_is_of_the_arguments_library_and_in_its_batch() -> None:
    with pytest.raises(ValueError, match=r"^out: a torch array on rank 0, but the argument is a numpy array"):
        check_out(Y, torch.ones(4, dtype=torch.float64), (np.ones(4),), 0, ())
    with pytest.raises(ValueError, match=r"^out: shape \(4,\) on rank 0, .* in a batch of 2"):
        check_out(Y, np.ones(4), (np.ones((4, 2)),), 0, (2,))


def test_memory_for_a_result_can_be_written() -> None:
    fixed, parameter = np.ones(4), torch.ones(4, dtype=torch.float64, requires_grad=True)
    fixed.setflags(write=False)
    for out in (fixed, parameter, np.float64(1)):
        with pytest.raises(ValueError, match=r"^out: an array on rank 0 that must not be written into"):
            check_writable("out", out, 0)
    with torch.no_grad():
        check_writable("out", parameter, 0)


GRID = Partition((2,), (0, 2))
CUT = Tensor(Layout((5,), GRID), "float32", name="z")
CUT_TEXT = "the layout [5] cut at 0|3|5 over 2 over ranks 0, 2"


@pytest.mark.parametrize(
    ("given", "rank", "batch", "found"),
    [
        (np.zeros(3, "f4"), 0, None, ""),
        (np.zeros(3, "f4"), 0, (), ""),
        (torch.zeros(2), 2, None, ""),
        (np.zeros((3, 4), "f4"), 0, None, ""),
        (np.zeros((3, 4), "f4"), 0, (4,), ""),
        (np.zeros(0), 1, None, ""),
        (np.zeros((0, 7)), 1, None, ""),
        ([0.0], 0, None, "a list on rank 0, not a NumPy, torch or CuPy array (numpy.asarray makes one)"),
        (np.zeros(3), 0, None, "float64 on rank 0, but the operator was made for float32"),
        (np.zeros((2, 4)), 2, None, "float64 on rank 2, but the operator was made for float32"),
        (np.zeros(2, "f4"), 0, None, f"shape (2,) on rank 0, but {CUT_TEXT} gives it (3,)"),
        (np.zeros((), "f4"), 2, None, f"shape () on rank 2, but {CUT_TEXT} gives it (2,)"),
        (np.zeros((3, 0), "f4"), 0, None, f"shape (3, 0) on rank 0, but {CUT_TEXT} gives it (3,)"),
        (np.zeros((2, 4), "f4"), 0, None, f"shape (2, 4) on rank 0, but {CUT_TEXT} gives it (3,)"),
        (np.zeros((3, 4), "f4"), 0, (), f"shape (3, 4) on rank 0, but {CUT_TEXT} gives it (3,)"),
        (
            np.zeros((3, 4), "f4"),
            0,
            (5,),
            f"shape (3, 4) on rank 0, but {CUT_TEXT} gives it (3,) in a batch of 5",
        ),
        (np.zeros(3, "f4"), 0, (1,), f"shape (3,) on rank 0, but {CUT_TEXT} gives it (3,) in a batch of 1"),
        (
            np.zeros(3, "f4"),
            1,
            None,
            "shape (3,) on rank 1, which is inactive in the partition 2 over ranks 0, 2; it holds a zero-volume tensor, such as "
            "one of shape (0,)",
        ),
    ],
)
def test_an_array_that_is_no_local_tensor_is_described(
    given: Any, rank: int, batch: tuple[int, ...] | None, found: str
) -> None:
    assert mismatch(CUT, given, rank, batch) == found
    if batch is not None:
        return
    for name, told in (("", "z"), ("weights", "weights")):
        if not found:
            assert check_argument(CUT, given, rank, name) == batch_shape(CUT, given, rank)
            continue
        with pytest.raises((TypeError, ValueError)) as raised:
            check_argument(CUT, given, rank, name)
        end = "" if hasattr(given, "shape") else "; pass its local tensor"
        assert (type(raised.value), str(raised.value)) == (
            TypeError if end else ValueError,
            f"{told}: {found}{end}",
        )


@pytest.mark.parametrize(
    ("shape", "rank", "batch"),
    [
        ((3,), 0, ()),
        ((3, 1), 0, (1,)),
        ((3, 300), 0, (300,)),
        ((3, 0), 0, ()),
        ((2, 4), 0, ()),
        ((4,), 0, ()),
        ((3, 4, 1), 0, ()),
        ((0, 4), 1, (4,)),
        ((0,), 1, ()),
        ((), 0, ()),
    ],
)
def test_a_batch_is_one_dimension_more_with_something_in_it(
    shape: tuple[int, ...], rank: int, batch: tuple[int, ...]
) -> None:
    assert batch_shape(CUT, np.zeros(shape, "f4"), rank) == batch


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (
            lambda: check_arguments((X, Y), (THREE, ONE), 0),
            r"y: shape \(4,\) on rank 0, but x has \(4, 3\); all arguments come in one batch, or none does",
        ),
        (
            lambda: check_out(Y, THREE, (ONE,), 0, ()),
            r"out: shape \(4, 3\) on rank 0, but the argument comes in no batch",
        ),
        (
            lambda: check_out(Y, ONE, (THREE,), 0, (3,), "result"),
            r"result: shape \(4,\) on rank 0, but the argument comes in a batch of 3",
        ),
        (
            lambda: check_out(Y, ONE, (ONE,), 3, (), "result"),
            r"result: shape \(4,\) on rank 3, which is inactive in the partition 1; it holds a zero-volume tensor, .*",
        ),
    ],
)
def test_tensors_that_do_not_go_together_are_refused_with_their_shapes(
    check: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError, match=rf"^{message}$"):
        check()


def test_subclasses_of_one_library_go_together() -> None:
    class Own(np.ndarray[Any, Any]):
        """Of a user."""

    assert check_arguments((X, Y), (np.ones(4), np.ones(4).view(Own)), 0) == ()
    check_out(Y, np.ones(4).view(Own), (np.ones(4),), 0, ())
