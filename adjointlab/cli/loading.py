"""A line on the terminal while the subjects are imported, which with torch takes a second or more."""

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
"""Libraries whose import is named."""

_ERASED: Final = "\r\x1b[K"
"""The order to a terminal to empty the line."""


@contextmanager
def loading_shown(*, is_shown: bool) -> Iterator[None]:
    """While the block runs, say on the terminal what is being loaded; nothing where nobody reads along."""
    out = Output(to_stderr=True)
    # A dumb terminal would show the order to empty the line.
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
    """Finds nothing, but sees what is being looked for."""

    def __init__(self, out: Output) -> None:
        self._out = out

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find no module."""
        if name in _SLOW:
            self._out.raw(f"{_ERASED}loading {name} ...")
        return None
