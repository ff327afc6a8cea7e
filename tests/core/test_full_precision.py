"""In cases on a device, torch computes float32 in float32."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from adjointlab.core.arrays.full_precision import FullPrecision

CUDNN, MATMUL = torch.backends.cudnn, torch.backends.cuda.matmul


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    before = CUDNN.allow_tf32, MATMUL.allow_tf32
    CUDNN.allow_tf32, MATMUL.allow_tf32 = True, True
    yield
    CUDNN.allow_tf32, MATMUL.allow_tf32 = before


def test_factors_are_not_shortened_inside_and_settings_come_back() -> None:
    def fail() -> None:
        with FullPrecision():
            assert (CUDNN.allow_tf32, MATMUL.allow_tf32) == (False, False)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (CUDNN.allow_tf32, MATMUL.allow_tf32) == (True, True)


def test_settings_come_back_when_the_last_rank_leaves() -> None:
    context, has_entered, may_leave = FullPrecision(), threading.Event(), threading.Event()

    def other_rank() -> None:
        with context:
            has_entered.set()
            may_leave.wait()

    with context:
        other = threading.Thread(target=other_rank)
        other.start()
        has_entered.wait()
    assert not CUDNN.allow_tf32
    may_leave.set()
    other.join()
    assert CUDNN.allow_tf32


def test_what_a_program_has_set_for_each_operation_stays() -> None:
    if not hasattr(CUDNN, "conv"):
        pytest.skip("torch has one setting for all operations before 2.9")
    CUDNN.conv.fp32_precision, before = "ieee", CUDNN.conv.fp32_precision
    try:
        with FullPrecision():
            assert (CUDNN.conv.fp32_precision, CUDNN.rnn.fp32_precision) == ("ieee", "tf32")
            assert not MATMUL.allow_tf32
        assert (CUDNN.conv.fp32_precision, CUDNN.rnn.fp32_precision) == ("ieee", "tf32")
        assert MATMUL.allow_tf32
    finally:
        CUDNN.conv.fp32_precision = before
