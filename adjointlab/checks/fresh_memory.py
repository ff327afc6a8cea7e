"""Control over the contents of fresh memory, so that reads of uninitialised memory show.

The memory that `numpy.empty` returns often holds zeros, and then code that forgets to clear it gives right results. Within
:func:`controlled`, uninitialised allocations through NumPy's, torch's and CuPy's `empty` functions are filled with the value of
:func:`filled` in the calling thread. Allocations that bypass these names, as inside C code, are out of reach.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import numpy as np

from adjointlab.checks.seed_digits import COURSE
from adjointlab.replacement import replaced, set_within

__all__ = ["FILLS", "controlled", "fill_by", "filled"]

P = ParamSpec("P")
ArrayT = TypeVar("ArrayT")

FILLS = (np.nan, 77.0)
"""NaN, which arithmetic propagates, and a number, which comparisons and conversions to integers propagate too.

Types without NaN have two other values in their place: integers 113 and 77, truth values True and False.
"""

# A context variable is local to its thread: simulated ranks outside a check's call allocate as usual.
_fill: ContextVar[float | None] = ContextVar("fill", default=None)


def fill_by(seed: int) -> float:
    """Return the fill for a layer's case; each order of passes, and each choice of what requires a gradient, gets both fills."""
    return FILLS[COURSE.of(seed) % len(FILLS)]


def filled(value: float | None) -> AbstractContextManager[None]:
    """Fill fresh memory of this thread with `value`, in both parts of a complex number; `None` leaves it as it is."""
    return set_within(_fill, value)


@contextmanager
def controlled() -> Iterator[None]:
    """Make the allocation functions of the libraries that are loaded obey :func:`filled`, in the whole process.

    Entered once around all cases, because patching is not safe while other threads run.
    """
    with ExitStack() as stack:
        for owner, name in _allocators():
            stack.enter_context(replaced(owner, name, _filling(getattr(owner, name))))
        yield


def _allocators() -> Iterator[tuple[object, str]]:
    for name in ("empty", "empty_like"):
        yield np, name
    if "cupy" in sys.modules:
        yield sys.modules["cupy"], "empty"
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        for name in ("empty", "empty_like", "empty_strided"):
            yield torch, name
        yield torch.Tensor, "new_empty"


def _filling(allocate: Callable[P, ArrayT]) -> Callable[P, ArrayT]:
    def fill(*args: P.args, **kwargs: P.kwargs) -> ArrayT:
        array = allocate(*args, **kwargs)
        value = _fill.get()
        if value is not None:
            _overwrite(array, value)
        return array

    return fill


def _overwrite(array: Any, value: float) -> None:
    if "torch" in sys.modules and isinstance(array, sys.modules["torch"].Tensor):
        if array.is_meta or hasattr(array, "fake_mode"):
            return  # a placeholder without memory; DTensor makes several for each operation
        with sys.modules["torch"].no_grad():
            array.fill_(_element(value, _kind_in_torch(array)))
    elif array.dtype.kind in "fciub":
        array[...] = _element(value, array.dtype.kind)


def _kind_in_torch(tensor: Any) -> str:
    if tensor.is_complex():
        return "c"
    if tensor.is_floating_point():
        return "f"
    return "b" if tensor.dtype is sys.modules["torch"].bool else "i"


def _element(value: float, kind: str) -> complex:
    """The fill for memory of a kind in NumPy's sense (`dtype.kind`)."""
    if kind == "f":
        return value
    if kind == "c":
        return complex(value, value)
    if kind == "b":
        return bool(np.isnan(value))
    return 113 if np.isnan(value) else int(value)
