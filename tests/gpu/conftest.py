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
