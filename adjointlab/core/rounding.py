"""Rounding that is tried out: a computation that torch does not see asks here whether its operations are to be wrong in their last digits."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Protocol

from adjointlab.replacement import set_within

if TYPE_CHECKING:
    import torch

__all__ = ["Perturb", "is_unperturbed", "perturb_of_now", "perturbing", "unperturbed"]


class Perturb(Protocol):
    """Returns a value as an operation may have rounded it: with errors that are equal for equal elements if that is `elementwise`."""

    def __call__(self, value: torch.Tensor, *, elementwise: bool) -> torch.Tensor: ...


_now: Final[ContextVar[Perturb | None]] = ContextVar("perturb", default=None)
_spared: Final[ContextVar[bool]] = ContextVar("spared", default=False)


def perturb_of_now() -> Perturb | None:
    """Return what each operation is to apply to its arguments and results; `None` where nothing is tried out."""
    return _now.get()


def perturbing(perturb: Perturb) -> AbstractContextManager[None]:
    """Context in which :func:`perturb_of_now` returns `perturb`."""
    return set_within(_now, perturb)


def unperturbed() -> AbstractContextManager[None]:
    """Context in which operations that torch sees are as they are, whatever is tried out; :func:`perturb_of_now` returns the same."""
    # The mode of torch's that makes errors is told, and stays where it is: below it there may be others, which make devices.
    return set_within(_spared, True)


def is_unperturbed() -> bool:
    """Return True within :func:`unperturbed`."""
    return _spared.get()
