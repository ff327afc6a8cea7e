"""No primitive touches memory of a device from the host: shown with the additional devices of array-api-strict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("array_api_strict")

import adjointlab as al
from adjointlab.core import arrays
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.subjects import installed
from adjointlab.worlds.launch import is_launched
from tests.gpu.stand_in.strict import StrictArray, operations, strict_stand_in

pytestmark = pytest.mark.skipif(is_launched(), reason="what is tested needs no ranks of its own")

SUBJECTS = {
    name: subject
    for name, subject in vars(installed).items()
    if isinstance(subject, Subject) and name != "transfers"  # copies to the host are what they are for
}


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with strict_stand_in():
        yield


def verdict_of(world: al.SimulatedWorld, subject: Subject, check: str, cases: int) -> Any:
    on_device = replace(subject, arrays=("cupy",))
    return investigate(world, on_device, check, Budget(cases=cases, seed=1, shrinking=0)).verdict


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_primitive_never_reads_the_device_from_the_host(world: al.SimulatedWorld, name: str) -> None:
    for check in ("specification", "adjoint"):
        verdict = verdict_of(world, SUBJECTS[name], check, 2)
        assert verdict.is_coherent, str(verdict)
    assert operations.total() > 10


def _read_as_numpy(x: Any) -> Any:
    return arrays.from_numpy(np.asarray(x), arrays.dtype_name(x), arrays.memory_of(x))


def _added_to_an_array_of_the_host(x: Any) -> Any:
    x = arrays.copy(x)
    x += np.zeros(x.shape, arrays.dtype_name(x))
    return x


def _copied_to_the_host(x: Any) -> Any:
    return arrays.from_numpy(arrays.to_numpy(x), arrays.dtype_name(x), arrays.memory_of(x))


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (_read_as_numpy, "Can't convert array on the 'array_api_strict.Device('device1')' device to a NumPy"),
        (_added_to_an_array_of_the_host, "Expected Array or Python scalar; got <class 'numpy.ndarray'>"),
    ],
)
def test_an_operator_that_does_is_found(
    world: al.SimulatedWorld, wrong: Callable[[Any], Any], error: str
) -> None:
    class Wrong(AllSumReduce):
        def forward(self, x: Any, out: Any = None) -> Any:
            return super().forward(wrong(x) if isinstance(x, StrictArray) else x, out)

    subject = replace(installed.all_sum_reduces, build=Wrong)
    assert error in str(verdict_of(world, subject, "specification", 10))


def test_a_copy_to_the_host_within_a_primitive_is_found(
    world: al.SimulatedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    summable = arrays.summable
    monkeypatch.setattr(arrays, "summable", lambda x: summable(_copied_to_the_host(x)))
    text = str(verdict_of(world, installed.all_sum_reduces, "specification", 10))
    assert "primitives/all_sum_reduce.py copies from the device to the host" in text
