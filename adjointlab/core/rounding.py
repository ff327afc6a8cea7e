"""The current perturbation, for computations that torch does not dispatch: they apply it to their arguments and results."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Protocol

from adjointlab.replacement import set_within

if TYPE_CHECKING:
    import torch

__all__ = ["Perturb", "current_perturbation", "is_unperturbed", "perturbing", "unperturbed"]


class Perturb(Protocol):
    """Returns a value with rounding errors of an operation; if that is `elementwise`, equal elements have equal errors."""

    def __call__(self, value: torch.Tensor, *, elementwise: bool) -> torch.Tensor: ...


_now: Final[ContextVar[Perturb | None]] = ContextVar("perturb", default=None)
_spared: Final[ContextVar[bool]] = ContextVar("spared", default=False)


def current_perturbation() -> Perturb | None:
    """Return the function that each operation applies to its arguments and results; `None` outside :func:`perturbing`."""
    return _now.get()


def perturbing(perturb: Perturb) -> AbstractContextManager[None]:
    """Context in which :func:`current_perturbation` returns `perturb`."""
    return set_within(_now, perturb)


def unperturbed() -> AbstractContextManager[None]:
    """Context in which operations that torch dispatches are not perturbed; :func:`current_perturbation` does not change."""
    # Torch's dispatch mode that makes the errors reads this flag. It cannot be removed: other modes may be below it, such as those
    # that set devices.
    return set_within(_spared, True)


def is_unperturbed() -> bool:
    """Return True within :func:`unperturbed`."""
    return _spared.get()
