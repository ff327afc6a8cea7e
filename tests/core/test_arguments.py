"""Arrays that are local tensors of a space on a rank, and arrays that are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.space import (
    Tensor,
    batch_shape,
    check_argument,
    check_arguments,
    check_out,
    check_writable,
)

SHAPES: tuple[tuple[int, ...], ...] = ((), (4,), (3, 4), (2, 3, 4))
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
