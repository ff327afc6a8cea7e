"""A line on the terminal while the subjects are imported, which takes a second or more with torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

from adjointlab.cli.output import Output

__all__ = ["loading_shown"]

_SLOW: Final = frozenset({"torch", "jax", "cupy"})
"""Libraries that are named while they are imported."""

_ERASED: Final = "\r\x1b[K"
"""Control sequence that clears the line of a terminal."""


@contextmanager
def loading_shown(*, is_shown: bool) -> Iterator[None]:
    """Context in which the terminal shows what is being loaded; nothing is shown if standard error is not a terminal."""
    out = Output(to_stderr=True)
    # A dumb terminal would print the control sequence.
    if not is_shown or not out.is_terminal or out.console.is_dumb_terminal:
        yield
        return
    finder = _NoticingFinder(out)
    out.raw("loading the subjects ...")
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        out.raw(_ERASED)


class _NoticingFinder:
    """A finder that finds no module, but prints the name of a slow one that is being imported."""

    def __init__(self, out: Output) -> None:
        self._out = out

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return None, so that the other finders look for the module."""
        if name in _SLOW:
            self._out.raw(f"{_ERASED}loading {name} ...")
        return None
