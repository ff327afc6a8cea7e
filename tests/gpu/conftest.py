from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.gpu.stand_in import host_kernels
from tests.gpu.stand_in.module import cupy_stand_in


@pytest.fixture
def cupy() -> Iterator[Any]:
    """CuPy's stand-in, whose kernels are compiled for the host."""
    if host_kernels.compiler() is None:
        pytest.skip(
            "needs a C++ compiler on PATH (c++, g++ or clang++), which compiles the kernels for the host"
        )
    with cupy_stand_in() as module:
        yield module


@pytest.fixture
def both() -> Iterator[Any]:
    """The stand-ins for CuPy and for torch's device; the module in CuPy's place."""
    pytest.importorskip("torch")
    from adjointlab.core import arrays
    from tests.gpu.stand_in.both import both_stand_in

    if arrays.installed("cupy") or arrays.installed("torch-cuda"):
        pytest.skip("there is a device: tests/gpu/test_on_a_gpu.py has both libraries")
    if host_kernels.compiler() is None:
        pytest.skip("needs a C++ compiler on PATH (c++, g++ or clang++)")
    with both_stand_in() as cupy:
        yield cupy
