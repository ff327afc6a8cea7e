"""Declarations of subjects: the error for a wrong one, and the test that functions take the arguments of the cases."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from adjointlab.spelling import did_you_mean

__all__ = ["SubjectError", "has_parameter", "require_accepts"]

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class SubjectError(TypeError):
    """A subject is incomplete or declared wrongly; the message says what is missing or wrong."""


def require_accepts(
    role: str,
    function: Callable[..., Any],
    positional: Sequence[str],
    arguments: Mapping[str, object],
    declarations: Collection[str] = (),
) -> None:
    """Raise :class:`SubjectError` unless `function` can be called with these `positional` arguments, and `arguments` by name.

    `role` is that of the function in the subject, such as "the adjoint"; `declarations` are further entries that a strategy's
    dictionary may have, which are not passed on. A function without a signature is assumed to accept all arguments.
    """
    with suppress(TypeError, ValueError):  # a builtin without a signature, or a function that is not hashable
        if _binds(function, len(positional), tuple(arguments)):
            return
    try:
        signature = _signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*positional, **arguments)
    except TypeError as error:
        fault = _fault(signature, positional, arguments, declarations) or f"cannot be called so: {error}"
        name = getattr(function, "__name__", type(function).__name__)
        call = ", ".join((*positional, *(f"{name}=…" for name in arguments)))
        raise SubjectError(
            f"{role} is called as {name}({call}), but {name}{_names(signature)} {fault}"
        ) from None


def _fault(
    signature: inspect.Signature,
    positional: Sequence[str],
    arguments: Mapping[str, object],
    declarations: Collection[str],
) -> str:
    """Return the reason why a function cannot be called in this way, with advice; "" if none is known here."""
    parameters = signature.parameters
    lacks_comm = "comm" in positional and "comm" not in parameters
    if lacks_comm and _fits(signature, len(positional) - 1, arguments):
        return (
            "takes no communicator: say process_group=True in the subject if it communicates by torch.distributed; give a "
            "function that leaves it out if it uses MPI.COMM_WORLD, such as lambda comm, x: function(x); else let it take the communicator as its first argument, or after the tensors in an autograd function"
        )
    known = [name for name, each in parameters.items() if each.kind in _NAMED]
    unknown = [name for name in arguments if name not in known]
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    if takes_any or not unknown:
        return ""
    if unknown[0] in declarations:  # such as the `gain` of a pair, if the other function takes it
        return f"takes no `{unknown[0]}`"
    bound = list(parameters)[: len(positional)]
    by_name_only = inspect.Parameter.KEYWORD_ONLY
    free = [
        name
        for name in known
        if name not in arguments and (name not in bound or parameters[name].kind is by_name_only)
    ]
    return f"takes no `{unknown[0]}`{did_you_mean(unknown[0], (*free, *declarations))}"


def has_parameter(function: Callable[..., Any], name: str) -> bool:
    """Return True if `function` has a parameter called `name`.

    ``**`` counts only in a decorator, if the function that it wraps has the parameter.
    """
    try:
        parameters = _signature(function).parameters.values()
    except (TypeError, ValueError):  # such as a builtin without a signature
        return False
    if any(each.name == name and each.kind in _NAMED for each in parameters):
        return True
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    behind = getattr(function, "__wrapped__", None)
    return takes_any and behind is not None and has_parameter(behind, name)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function, follow_wrapped=False)  # of a decorator itself


@lru_cache(maxsize=64)  # called by every rank of every case
def _binds(function: Callable[..., Any], positional: int, named: tuple[str, ...]) -> bool:
    """Return True if a function can be called with these arguments. Raises as `inspect.signature` does."""
    return _fits(_signature(function), positional, named)


def _fits(signature: inspect.Signature, positional: int, named: Iterable[str]) -> bool:
    try:
        signature.bind(*range(positional), **dict.fromkeys(named))
    except TypeError:
        return False
    return True


def _names(signature: inspect.Signature) -> str:
    """The parameters of a function, without annotations and defaults."""
    bare = [
        each.replace(annotation=inspect.Parameter.empty, default=inspect.Parameter.empty)
        for each in signature.parameters.values()
    ]
    # Not as an `inspect.Signature`, in which a parameter with a default may not come before one without.
    return f"({', '.join(map(str, bare))})"
