"""Values and exceptions on their way between processes, as pickles that are known to open."""

from __future__ import annotations

import importlib
import pickle
import traceback
from dataclasses import dataclass, replace
from typing import Any

from tblib import Traceback

from adjointlab.worlds.world import Outcome, Raised, Returned, message_of

__all__ = ["open_exception", "open_outcome", "pack_exception", "pack_outcome"]


def pack_outcome(outcome: Outcome, rank: int) -> bytes:
    """`outcome` as bytes; a value that cannot travel makes it a failure of the rank."""
    if isinstance(outcome, Raised):
        parcel = None if outcome.exception is None else _pickle_exception(outcome.exception)
        return pickle.dumps((replace(outcome, exception=None), parcel), pickle.HIGHEST_PROTOCOL)
    try:
        return pickle.dumps((outcome, None), pickle.HIGHEST_PROTOCOL)
    except Exception as problem:
        kind = type(outcome.value).__name__ if isinstance(outcome, Returned) else type(outcome).__name__
        return pack_outcome(
            _stuck(rank, f"returned a {kind} that cannot be pickled: {message_of(problem)}"), rank
        )


def open_outcome(parcel: bytes, rank: int) -> Outcome:
    """The outcome that :func:`pack_outcome` packed on `rank`."""
    try:
        outcome, exception = pickle.loads(parcel)  # noqa: S301 - from our own processes
    except Exception as problem:
        return _stuck(rank, f"returned a value that cannot be unpickled here: {message_of(problem)}")
    if isinstance(outcome, Raised) and exception is not None:
        return replace(outcome, exception=_unpickle_exception(exception, str(outcome)))
    result: Outcome = outcome
    return result


def _stuck(rank: int, text: str) -> Raised:
    message = f"rank {rank} {text}"
    return Raised.of(TypeError(message))


def pack_exception(exception: BaseException) -> tuple[bytes | None, str, dict[str, Any] | None]:
    """An exception with its traceback, as data."""
    text = "".join(traceback.format_exception(exception))
    frames = None if exception.__traceback__ is None else Traceback(exception.__traceback__).to_dict()
    return _pickle_exception(exception), f"{type(exception).__name__}: {text}", frames


def open_exception(packed: tuple[bytes | None, str, dict[str, Any] | None]) -> BaseException:
    """The exception that :func:`pack_exception` packed, or a RuntimeError that tells of it."""
    parcel, text, frames = packed
    exception = RuntimeError(text) if parcel is None else _unpickle_exception(parcel, text)
    return (
        exception if frames is None else exception.with_traceback(Traceback.from_dict(frames).as_traceback())
    )


@dataclass(frozen=True)
class _Parts:
    """An exception that does not pickle by itself: where its class is found, and what it holds."""

    module: str
    name: str
    arguments: tuple[Any, ...]
    state: dict[str, Any]

    def find(self) -> Any:
        found: Any = importlib.import_module(self.module)
        for name in self.name.split("."):
            found = getattr(found, name)
        return found

    def build(self) -> BaseException:
        kind = self.find()
        exception: BaseException = kind.__new__(kind, *self.arguments)
        exception.__dict__.update(self.state)
        return exception


def _unpickle_exception(parcel: bytes, text: str) -> BaseException:
    try:
        return _unpack(parcel)
    except Exception:
        return RuntimeError(text)


def _unpack(parcel: bytes) -> BaseException:
    found = pickle.loads(parcel)  # noqa: S301 - from our own processes
    exception: BaseException = found.build() if isinstance(found, _Parts) else found
    return exception


def _pickle_exception(exception: BaseException) -> bytes | None:
    for pack in (_whole, _parts):
        try:
            parcel = pickle.dumps(pack(exception), pickle.HIGHEST_PROTOCOL)
            # Many exceptions pickle and do not unpickle: their arguments are not those of their constructor.
            if type(_unpack(parcel)) is type(exception):
                return parcel
        except Exception:  # noqa: S112 - the next way, or none
            continue
    return None


def _whole(exception: BaseException) -> BaseException:
    return exception


def _parts(exception: BaseException) -> _Parts:
    kind = type(exception)
    # pytest's exceptions claim to be built in; where their code stands is where they are found.
    module = getattr(kind.__init__, "__globals__", {}).get("__name__", kind.__module__)
    return _Parts(module, kind.__qualname__, exception.args, exception.__dict__)
