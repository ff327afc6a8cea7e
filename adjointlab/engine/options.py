"""The options of all kinds of subject, and their legal values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from numbers import Integral
from typing import Final, TypeAlias, TypedDict

from adjointlab.checks.memory_orders import LEGAL_ORDERS
from adjointlab.core import arrays
from adjointlab.core.declaration import SubjectError
from adjointlab.engine.adapters import Parameters, UserFunction
from adjointlab.spelling import described_type, did_you_mean

__all__ = ["ListParameters", "Options", "require_legal", "require_one_place"]

ListParameters: TypeAlias = Callable[..., Iterable[tuple[int, Parameters]]]
"""An enumeration: called with its bounds, it lists all cases within them, each with its number of ranks."""


class Options(TypedDict, total=False):
    """The options of all kinds of subject, each with a default."""

    reference: UserFunction | None
    """The sequential twin of an operator: it takes the global tensors and the arguments of a case."""
    arrays: Sequence[str] | None
    """The array libraries to draw inputs from. Default: torch for what torch differentiates, else NumPy."""
    orders: Sequence[str]
    """The memory orders of inputs and cotangents. Default: all; in some cases only even ranks have them in NumPy's memory. torch
    tensors have the same order on all ranks, unless one is named such as "column-major on even ranks"."""
    ranks: Sequence[int]
    """The numbers of ranks to draw. Default: all up to 8, powers of two above, and the largest requested number."""
    name: str | None
    """The name in reports. Default: that of the operator, function or layer."""
    every: ListParameters | None
    """For ``adjointlab exhaust``: a function with the bounds as keyword arguments and their defaults, such as
    ``every(ranks=3, side=2)``, that yields all cases as pairs of a number of ranks and the arguments."""
    rank_local: Sequence[str]
    """Packages of whose module-level variables each simulated rank gets its own copy, such as packages that keep process groups there.
    Default: none."""
    process_group: bool
    """The code calls torch.distributed: its default process group has the ranks of the case, and functions, autograd functions
    and layers get no `comm`. Default: `False`."""


_LEGAL_NAMES: Final = {"orders": LEGAL_ORDERS, "arrays": (*arrays.MEMORIES, *arrays.MIXTURES)}


def require_legal(options: Options, own: Sequence[str]) -> None:
    """Raise :class:`SubjectError` for an option that is neither in a kind's `own` nor common to all kinds, and for an illegal value."""
    known = [*own, *Options.__annotations__]
    if unknown := [name for name in options if name not in known]:
        raise SubjectError(
            f"@subject has no option `{unknown[0]}`{did_you_mean(unknown[0], known)}; its options are "
            f"{', '.join(known)}. What belongs to a case, such as placements, is returned by the decorated function"
        )
    if not isinstance(name := options.get("name"), str | None):
        raise SubjectError(f"name: {described_type(name)} is not a string")
    if not isinstance(has_group := options.get("process_group", False), bool):
        raise SubjectError(f"process_group: {has_group!r} is not True or False")
    for name, legal in _LEGAL_NAMES.items():
        _require_names(name, options.get(name), legal)
    if not options.get("orders", LEGAL_ORDERS):
        raise SubjectError("orders: there is none to draw from; name one, or leave the option out for all")
    _require_names("rank_local", options.get("rank_local"))
    ranks: object = options.get("ranks", ())
    if not isinstance(ranks, Collection) or not all(isinstance(n, Integral) and n >= 1 for n in ranks):  # type: ignore[operator]
        raise SubjectError(
            f"ranks: {ranks!r} is not a list of numbers of ranks, each at least 1, such as (1, 2, 4)"
        )


def require_one_place(options: Options) -> None:
    """Raise :class:`SubjectError` for memories that a parallel module cannot use: its mesh has a single kind of device."""
    for memory in options.get("arrays") or ():
        if memory not in ("torch", "torch-cuda"):
            raise SubjectError(
                f"arrays: {memory!r}, and tensors of a device mesh lie on one kind of device: say torch, torch-cuda, or both in turn"
            )


def _require_names(option: str, given: object, legal: Sequence[str] | None = None) -> None:
    if given is None:
        return
    if isinstance(given, str) or not isinstance(given, Collection):
        raise SubjectError(f"{option}: {given!r} is not a list of names, such as [{str(given)!r}]")
    for name in given:
        if not isinstance(name, str):
            raise SubjectError(f"{option}: {name!r} in the list is not a string; give names, such as 'numpy'")
        if legal is not None and name not in legal:
            raise SubjectError(
                f"{option}: {name!r} is not among {', '.join(legal)}{did_you_mean(str(name), legal)}"
            )
