"""Rounding that is tried out: a computation that torch does not see asks here whether its operations are to be wrong in their last digits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import torch

__all__ = ["Perturb", "perturb_of_now", "perturbing", "unperturbed"]


class Perturb(Protocol):
    """Returns a value as an operation may have rounded it: with errors that are equal for equal elements if that is `elementwise`."""

    def __call__(self, value: torch.Tensor, *, elementwise: bool) -> torch.Tensor: ...


_now: Final[ContextVar[Perturb | None]] = ContextVar("perturb", default=None)


def perturb_of_now() -> Perturb | None:
    """Return what each operation is to apply to its arguments and results; `None` where nothing is tried out."""
    return _now.get()


@contextmanager
def perturbing(perturb: Perturb) -> Iterator[None]:
    """Context in which :func:`perturb_of_now` returns `perturb`."""
    token = _now.set(perturb)
    try:
        yield
    finally:
        _now.reset(token)


@contextmanager
def unperturbed() -> Iterator[None]:
    """Context in which operations that torch sees are as they are, whatever is tried out; :func:`perturb_of_now` returns the same."""
    if _now.get() is None:
        yield
        return
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        yield
