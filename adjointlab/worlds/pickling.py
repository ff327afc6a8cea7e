"""Pickles of values and exceptions that are known to load in other processes.

If a pickle failed to load, the leader would lack a report, or a follower the end of its run. So a value that cannot be
pickled and loaded again is replaced by an error that says so, with its text.
"""

from __future__ import annotations

import importlib
import pickle
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tblib import Traceback

from adjointlab.worlds.exception_text import message_of
from adjointlab.worlds.run import Outcome, Raised, Returned

__all__ = ["PackedException", "pack_outcome", "unpack_outcome"]


class PackedException(NamedTuple):
    """An exception as data: its pickle (`None` if it has none), its text, and its traceback."""

    pickled: bytes | None
    text: str
    frames: Mapping[str, Any] | None  # as tblib writes them

    @classmethod
    def of(cls, exception: BaseException) -> PackedException:
        text = f"{type(exception).__name__}: {''.join(traceback.format_exception(exception))}"
        return cls(_pickle_exception(exception), text, _frames_of(exception))

    def unpack(self) -> BaseException:
        """Return the exception, or a RuntimeError with its text."""
        exception = _unpickle_exception(self.pickled, self.text)
        if self.frames is None:
            return exception
        return exception.with_traceback(Traceback.from_dict(self.frames).as_traceback())


def _frames_of(exception: BaseException) -> Mapping[str, Any] | None:
    if exception.__traceback__ is None:
        return None
    try:
        frames: Mapping[str, Any] = Traceback(exception.__traceback__).to_dict()
    except TypeError:
        # A frame that was interrupted between two lines has the line number None, which tblib rejects.
        return None
    return frames


def pack_outcome(outcome: Outcome, rank: int) -> bytes:
    """Return `outcome` as bytes; if its value cannot be pickled, return a failure of the rank instead."""
    if isinstance(outcome, Raised):
        # The exception is pickled separately, so that the outcome survives if it does not load.
        pickled = None if outcome.exception is None else _pickle_exception(outcome.exception)
        return pickle.dumps((replace(outcome, exception=None), pickled), pickle.HIGHEST_PROTOCOL)
    try:
        return pickle.dumps((outcome, None), pickle.HIGHEST_PROTOCOL)
    except Exception as problem:
        kind = type(outcome.value if isinstance(outcome, Returned) else outcome).__name__
        text = f"rank {rank} returned a {kind} that cannot be pickled: {message_of(problem)}"
        return pack_outcome(Raised.of(TypeError(text)), rank)


def unpack_outcome(pickled: bytes, rank: int) -> Outcome:
    """Return the outcome that :func:`pack_outcome` packed on `rank`."""
    outcome: Outcome
    try:
        outcome, exception = pickle.loads(pickled)  # noqa: S301 - from our own processes
    except Exception as problem:
        text = f"rank {rank} returned a value that cannot be unpickled here: {message_of(problem)}"
        return Raised.of(TypeError(text))
    if isinstance(outcome, Raised) and exception is not None:
        return replace(outcome, exception=_unpickle_exception(exception, str(outcome)))
    return outcome


@dataclass(frozen=True)
class _Parts:
    """Parts of an exception that does not pickle by itself: the import path of its class, its arguments and its state."""

    module: str
    qualified_name: str
    arguments: tuple[Any, ...]
    state: Mapping[str, Any]

    @classmethod
    def of(cls, exception: BaseException) -> _Parts:
        kind = type(exception)
        # The exceptions of pytest.skip and pytest.fail claim "builtins" as their module. They can be imported from the module
        # that contains their code.
        module = getattr(kind.__init__, "__globals__", {}).get("__name__", kind.__module__)
        return cls(module, kind.__qualname__, exception.args, exception.__dict__)

    def assemble(self) -> BaseException:
        found: Any = importlib.import_module(self.module)
        for name in self.qualified_name.split("."):
            found = getattr(found, name)
        # Without the constructor, whose arguments are unknown.
        exception: BaseException = found.__new__(found, *self.arguments)
        exception.__dict__.update(self.state)
        return exception


def _pickle_exception(exception: BaseException) -> bytes | None:
    """Return the first form of pickle that loads as an exception of the same class; None if neither does."""
    for picklable in (lambda: exception, lambda: _Parts.of(exception)):
        try:
            pickled = pickle.dumps(picklable(), pickle.HIGHEST_PROTOCOL)
            # Many exceptions pickle but do not unpickle: Exception.__reduce__ calls the class with `args`, which may
            # differ from the parameters of its constructor.
            if type(_unpickle(pickled)) is type(exception):
                return pickled
        except Exception:  # noqa: S112 - the next form, or none
            continue
    return None


def _unpickle(pickled: bytes) -> BaseException:
    found: BaseException | _Parts = pickle.loads(pickled)  # noqa: S301 - from our own processes
    return found.assemble() if isinstance(found, _Parts) else found


def _unpickle_exception(pickled: bytes | None, text: str) -> BaseException:
    try:
        return RuntimeError(text) if pickled is None else _unpickle(pickled)
    except Exception:
        return RuntimeError(text)
