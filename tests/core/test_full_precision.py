"""In cases on a device, torch computes float32 in float32."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from adjointlab.core.arrays import full_precision
from adjointlab.core.arrays.full_precision import FullPrecision

BACKENDS: Any = torch.backends
HAS_OPERATIONS = hasattr(BACKENDS.cudnn, "conv")


def settings() -> list[object]:
    """Everything that a program may ask for; the error of what cannot be read."""

    def read(ask: Callable[[], object]) -> object:
        try:
            return ask()
        except RuntimeError:
            return RuntimeError

    operations = full_precision._operations(BACKENDS)
    return [
        read(lambda: BACKENDS.cudnn.allow_tf32),
        read(lambda: BACKENDS.cuda.matmul.allow_tf32),
        read(torch.get_float32_matmul_precision),
        *(each.fp32_precision for each in operations),
    ]


def set_all(name: str) -> None:
    BACKENDS.fp32_precision = name


def set_cudnn(name: str) -> None:
    BACKENDS.cudnn.fp32_precision = name


def set_convolutions(name: str) -> None:
    BACKENDS.cudnn.conv.fp32_precision = name


def allow(name: str) -> None:
    BACKENDS.cudnn.allow_tf32 = BACKENDS.cuda.matmul.allow_tf32 = name == "tf32"


OF_PROGRAMS = [
    (allow, "tf32"),
    (allow, "ieee"),
    (torch.set_float32_matmul_precision, "high"),
    (torch.set_float32_matmul_precision, "medium"),
    *([(set_all, "tf32"), (set_cudnn, "tf32"), (set_convolutions, "ieee")] if HAS_OPERATIONS else []),
]


@pytest.fixture(autouse=True)
def own() -> Iterator[None]:
    precisions = [(each, each.fp32_precision) for each in full_precision._operations(BACKENDS)]
    if HAS_OPERATIONS:
        precisions += [(BACKENDS, BACKENDS.fp32_precision), (BACKENDS.cudnn, BACKENDS.cudnn.fp32_precision)]
    yield
    torch.set_float32_matmul_precision("highest")
    BACKENDS.cudnn.allow_tf32 = True
    for each, precision in reversed(precisions):
        each.fp32_precision = precision


def test_by_default_factors_are_not_shortened_inside_and_settings_come_back() -> None:
    before = settings()

    def fail() -> None:
        with FullPrecision():
            assert settings() == [False, False, "highest", *["ieee"] * len(before[3:])]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert settings() == before


@pytest.mark.parametrize(("choose", "precision"), OF_PROGRAMS)
def test_what_a_program_has_chosen_is_left_out_inside_and_comes_back(
    choose: Callable[[str], None], precision: str
) -> None:
    choose(precision)
    before = settings()
    with FullPrecision():
        assert set(settings()[3:]) <= {"ieee"}
        assert True not in settings()
        can_be_read = [value for value in before if value is not RuntimeError]
        assert len([value for value in settings() if value is not RuntimeError]) >= len(can_be_read)
    assert settings() == before


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
    assert not BACKENDS.cudnn.allow_tf32
    may_leave.set()
    other.join()
    assert BACKENDS.cudnn.allow_tf32


def test_a_context_that_could_not_be_entered_can_be_entered_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> list[object]:
        raise DeprecationWarning

    context, before = FullPrecision(), settings()
    with monkeypatch.context() as patch:
        patch.setattr(full_precision, "_operations", fail)
        with pytest.raises(DeprecationWarning):
            context.__enter__()
    with context:
        assert not BACKENDS.cudnn.allow_tf32
    assert settings() == before
