"""CUDA's compiler at run time, by which CuPy compiles the kernels: the library itself, which needs no device."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from ctypes.util import find_library
from pathlib import Path

__all__ = ["Compiler", "found"]


def found() -> str | None:
    """The library of CUDA's toolkit, of NVIDIA's wheels (nvidia-cuda-nvrtc, also in cupy-cuda13x[ctk]), or of the system."""
    places = [
        *(Path(folder) / "nvidia" for folder in sys.path if folder),
        *Path("/usr/local").glob("cuda*/lib64"),
    ]
    names = (
        str(each)
        for place in places
        for pattern in ("libnvrtc.so*", "*/lib/libnvrtc.so*")
        for each in sorted(place.glob(pattern))
        if "alt" not in each.name
    )
    return next(names, None) or find_library("nvrtc")


class Compiler:
    """The functions of NVRTC; each raises `AssertionError` with the compiler's log where it fails."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)

    def architectures(self) -> list[int]:
        """The architectures that it compiles for, the oldest first: 75 is compute capability 7.5."""
        count = ctypes.c_int()
        assert self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count)) == 0
        numbers = (ctypes.c_int * count.value)()
        assert self._library.nvrtcGetSupportedArchs(numbers) == 0
        return sorted(numbers)

    def compiled(self, source: str, options: Sequence[str]) -> bytes:
        """The machine code."""
        program = ctypes.c_void_p()
        begun = self._library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), b"boxes.cu", 0, None, None
        )
        assert begun == 0
        given = [option.encode() for option in options]
        code = self._library.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given))
        log = self._contents(program, "ProgramLog").decode(errors="replace")
        assert (code, log.strip("\0\n ")) == (0, ""), log
        cubin = self._contents(program, "CUBIN")
        self._library.nvrtcDestroyProgram(ctypes.byref(program))
        return cubin

    def _contents(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        assert getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
        contents = ctypes.create_string_buffer(size.value)
        assert getattr(self._library, f"nvrtcGet{what}")(program, contents) == 0
        return contents.raw
