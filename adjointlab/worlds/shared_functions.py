"""Detects and undoes replacements, by user code, of library functions that the lab uses too.

After ``numpy.array_equal = lambda *_: True`` every comparison of the lab would succeed. So before and after each run, the functions on
which verdicts depend are compared with those from when this module was imported; a run in which some were replaced is
not judged. Functions that tools replace for good reason, and on which no verdict depends, are left out: ``print``, ``open``, the
clocks, and NumPy's allocation functions (:mod:`adjointlab.checks.fresh_memory`).
"""

from __future__ import annotations

import builtins
import json
import math
import operator
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Final, NamedTuple

import numpy as np

__all__ = ["BEFORE", "DURING", "FunctionsReplaced", "put_back", "refuse_replaced"]

_NOT_COMPARED: Final = {
    builtins: {"__import__", "breakpoint", "copyright", "credits", "exit", "help", "input", "license", "open"}
    | {"print", "quit"},
    np: {"empty", "empty_like"},
}
_COMPARED: Final = {
    json: {"dump", "dumps", "load", "loads"},
    os: {"close", "dup", "dup2", "fspath", "fstat", "getcwd", "getpid", "mkdir", "open", "pwrite", "replace"}
    | {"stat", "unlink", "write"},
    sys: {"_current_frames", "_getframe", "exc_info"},
}
_WHOLE: Final = (builtins, math, np)
"""Modules whose callables are all compared."""

_MOST_NAMED: Final = 3


class FunctionsReplaced(RuntimeError):
    """User code has replaced functions that the lab calls; the message names them."""


class _Module(NamedTuple):
    """The original functions of a module, and `of_now`, which looks up the current ones."""

    name: str
    namespace: dict[str, object]
    functions: dict[str, object]
    values: tuple[object, ...]
    of_now: Callable[[dict[str, object]], tuple[object, ...]]


def _as_it_is(module: ModuleType) -> _Module:
    namespace = vars(module)
    compared, left_out = _COMPARED.get(module, set(namespace)), _NOT_COMPARED.get(module, set())
    functions = {name: namespace[name] for name in sorted(compared - left_out) if callable(namespace[name])}
    values, of_now = tuple(functions.values()), operator.itemgetter(*functions)
    return _Module(module.__name__, namespace, functions, values, of_now)


_MODULES: Final = tuple(map(_as_it_is, (*_WHOLE, *_COMPARED)))

# The code below must work when builtins have been replaced, so it keeps its own references to them.
_any, _map, _is_not = any, map, operator.is_not


def put_back() -> list[str]:
    """Restore the functions that have been replaced or removed; return their names. It takes some 20 microseconds."""
    found: list[str] = []
    for module, namespace, functions, values, of_now in _MODULES:
        try:
            if not _any(_map(_is_not, of_now(namespace), values)):
                continue
        except KeyError:  # removed
            pass
        for name, function in functions.items():
            if name not in namespace or namespace[name] is not function:
                namespace[name] = function
                found.append(f"{module}.{name}")
    return found


def refuse_replaced(when: str) -> None:
    """Restore replaced functions, and raise :class:`FunctionsReplaced` if there were any. `when` completes the message."""
    found = put_back()
    if not found:
        return
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    raise FunctionsReplaced(
        f"{', '.join(found[:_MOST_NAMED])}{more} had been replaced {when}. The lab itself calls these functions, so the run cannot be "
        "judged. Replace such functions temporarily, as unittest.mock.patch does in a `with` block, or only in your own modules"
    )


BEFORE: Final[str] = "before the run, in a strategy, a fixture or an import"
DURING: Final[str] = "in the run, by the code under test"
