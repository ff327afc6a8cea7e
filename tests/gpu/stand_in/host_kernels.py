"""The lab's kernels, compiled for the host: the same source, run thread after thread of a grid.

CUDA's words get a meaning by a few lines before the source; a driver after it calls a kernel for each thread of each block.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from adjointlab.core.arrays.kernels import SOURCE

__all__ = ["RawModule", "compiler"]

_BEFORE = """
struct Index { unsigned x, y, z; };
static Index blockIdx, threadIdx, blockDim, gridDim;
#define __global__
#define __device__
"""

_DRIVER = """
extern "C" void run_{name}(const Boxes* boxes, unsigned grid, unsigned block) {{
    gridDim = {{grid, 1, 1}};
    blockDim = {{block, 1, 1}};
    for (unsigned b = 0; b < grid; ++b) for (unsigned t = 0; t < block; ++t) {{
        blockIdx = {{b, 0, 0}};
        threadIdx = {{t, 0, 0}};
        {name}(*boxes);
    }}
}}
"""


def compiler() -> str | None:
    """The host's C++ compiler, if there is one."""
    return shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


class RawModule:
    """CuPy's ``RawModule``, as far as the lab uses it; `source` may be an altered one."""

    def __init__(self, code: str = SOURCE, options: tuple[str, ...] = (), backend: str = "nvrtc") -> None:
        self._library = _compiled(code)

    def get_function(self, name: str) -> Any:
        function = getattr(self._library, f"run_{name}")

        def launch(grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...]) -> None:
            (boxes,) = args
            assert isinstance(boxes, np.ndarray)
            assert boxes.size == 1, "CuPy passes arrays of NumPy by value where they have one element"
            function(boxes.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint(grid[0]), ctypes.c_uint(block[0]))

        return launch


@cache
def _compiled(code: str) -> ctypes.CDLL:
    found = compiler()
    assert found is not None, "no C++ compiler"
    names = re.findall(r"^KERNEL\((\w+),", code, re.MULTILINE)
    text = _BEFORE + code + "".join(_DRIVER.format(name=name) for name in names)
    folder = (
        Path(tempfile.gettempdir()) / f"adjointlab-kernels-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    )
    library = folder / "kernels.so"
    if not library.exists():
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as own:  # processes may compile at once
            source, made = Path(own) / "kernels.cpp", Path(own) / "kernels.so"
            source.write_text(text)
            subprocess.run(
                [found, "-std=c++17", "-O1", "-shared", "-fPIC", "-o", str(made), str(source)],
                check=True,
                timeout=100,
            )
            made.rename(library)
    return ctypes.CDLL(str(library))
