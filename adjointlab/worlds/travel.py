"""Values and exceptions on their way between processes, as pickles that are known to open."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import replace
from types import TracebackType
from typing import Any

from tblib import Traceback

from adjointlab.worlds.world import Outcome, Raised, Returned

__all__ = ["open_exception", "open_outcome", "pack_exception", "pack_outcome", "raised"]


def raised(exception: BaseException, traceback_from: TracebackType | None) -> Raised:
    """The outcome of a rank whose body raised `exception`; its traceback is shown from `traceback_from` on."""
    text = "".join(traceback.format_exception(type(exception), exception, traceback_from))
    return Raised(type(exception).__name__, _text(exception), text, exception)


def pack_outcome(outcome: Outcome, rank: int) -> bytes:
    """`outcome` as bytes; a value that cannot travel makes it a failure of the rank."""
    if isinstance(outcome, Raised):
        parcel = None if outcome.exception is None else _pickle_exception(outcome.exception)
        return pickle.dumps((replace(outcome, exception=None), parcel), pickle.HIGHEST_PROTOCOL)
    try:
        return pickle.dumps((outcome, None), pickle.HIGHEST_PROTOCOL)
    except Exception as problem:
        kind = type(outcome.value).__name__ if isinstance(outcome, Returned) else type(outcome).__name__
        return pack_outcome(_stuck(rank, f"returned a {kind} that cannot be pickled: {_text(problem)}"), rank)


def open_outcome(parcel: bytes, rank: int) -> Outcome:
    """The outcome that :func:`pack_outcome` packed on `rank`."""
    try:
        outcome, exception = pickle.loads(parcel)  # noqa: S301 - from our own processes
    except Exception as problem:
        return _stuck(rank, f"returned a value that cannot be unpickled here: {_text(problem)}")
    if isinstance(outcome, Raised) and exception is not None:
        return replace(outcome, exception=pickle.loads(exception))  # noqa: S301
    result: Outcome = outcome
    return result


def _stuck(rank: int, text: str) -> Raised:
    message = f"rank {rank} {text}"
    return Raised("TypeError", message, f"TypeError: {message}\n", TypeError(message))


def pack_exception(exception: BaseException) -> tuple[bytes | None, str, dict[str, Any] | None]:
    """An exception with its traceback, as data."""
    text = "".join(traceback.format_exception(exception))
    frames = None if exception.__traceback__ is None else Traceback(exception.__traceback__).to_dict()
    return _pickle_exception(exception), f"{type(exception).__name__}: {text}", frames


def open_exception(packed: tuple[bytes | None, str, dict[str, Any] | None]) -> BaseException:
    """The exception that :func:`pack_exception` packed, or a RuntimeError that tells of it."""
    parcel, text, frames = packed
    exception = RuntimeError(text) if parcel is None else _unpickle_exception(parcel, text)
    return exception if frames is None else exception.with_traceback(Traceback.from_dict(frames).as_traceback())


def _unpickle_exception(parcel: bytes, text: str) -> BaseException:
    try:
        exception: BaseException = pickle.loads(parcel)  # noqa: S301
    except Exception:
        return RuntimeError(text)
    return exception


def _pickle_exception(exception: BaseException) -> bytes | None:
    # Many exceptions pickle and do not unpickle: their arguments are not those of their constructor.
    try:
        parcel = pickle.dumps(exception, pickle.HIGHEST_PROTOCOL)
        same = type(pickle.loads(parcel)) is type(exception)  # noqa: S301
    except Exception:
        return None
    return parcel if same else None


def _text(exception: BaseException) -> str:
    try:
        return str(exception)
    except Exception:
        return "(no message: its __str__ raised)"
