"""A subject as it is declared: the error of a wrong one, and whether functions take the arguments that cases have."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from adjointlab.spelling import did_you_mean

__all__ = ["SubjectError", "require_accepts"]

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class SubjectError(TypeError):
    """A subject is incomplete or declared wrongly; the message says what is missing or wrong."""


def require_accepts(
    role: str,
    function: Callable[..., Any],
    positional: Sequence[str],
    arguments: Mapping[str, object],
    declarations: Iterable[str] = (),
) -> None:
    """Raise :class:`SubjectError` unless `function` can be called with so many positional arguments and these by name.

    `role` is the function's in the subject, such as "the adjoint"; `declarations` are further entries that a strategy's dictionary
    may have, which are not passed on. A function that does not tell its parameters is taken to accept all.
    """
    with suppress(TypeError, ValueError):  # of a builtin, say, or one that has no hash
        if _binds(function, len(positional), tuple(arguments)):
            return
    try:
        signature = _signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*positional, **arguments)
    except TypeError as error:
        known = [each.name for each in signature.parameters.values() if each.kind in _NAMED]
        unknown = [name for name in arguments if name not in known]
        free = [name for name in known[len(positional) :] if name not in arguments]
        takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in signature.parameters.values())
        if unknown and not takes_any:
            near = did_you_mean(unknown[0], (*free, *declarations))
            fault = f"takes no `{unknown[0]}`{near}"
        else:
            fault = f"cannot be called so: {error}"
        name = getattr(function, "__name__", type(function).__name__)
        call = ", ".join((*positional, *(f"{name}=…" for name in arguments)))
        raise SubjectError(
            f"{role} is called as {name}({call}), but {name}{_names(signature)} {fault}"
        ) from None


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function, follow_wrapped=False)  # what a decorator takes


@lru_cache(maxsize=64)  # every rank of every case asks
def _binds(function: Callable[..., Any], positional: int, named: tuple[str, ...]) -> bool:
    """Return True if a function can be called so. Raises what `inspect.signature` raises."""
    try:
        _signature(function).bind(*range(positional), **dict.fromkeys(named))
    except TypeError:
        return False
    return True


def _names(signature: inspect.Signature) -> str:
    """The parameters of a function, without annotations and defaults."""
    bare = [
        each.replace(annotation=inspect.Parameter.empty, default=inspect.Parameter.empty)
        for each in signature.parameters.values()
    ]
    # Not as a signature, in which a parameter with a default may not come before one without.
    return f"({', '.join(map(str, bare))})"
