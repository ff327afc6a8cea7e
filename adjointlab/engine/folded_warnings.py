"""Warnings of a check, each once with a count: otherwise ranks and cases would repeat them.

Python shows a warning once for each place, but forgets this whenever code enters ``warnings.catch_warnings``, as the checks
and torch do, and a different text is a different warning. Warnings that filters ignore or turn into errors are not counted here.
"""

from __future__ import annotations

import builtins
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, TextIO

__all__ = ["FoldedWarning", "FoldedWarnings", "folded"]


@dataclass(frozen=True)
class FoldedWarning:
    """A warning from one place in the code: its first text, and the number of times that it was issued."""

    category: str
    text: str
    filename: str
    line: int
    times: int = 1

    @property
    def place(self) -> tuple[str, str, int]:
        """The key by which warnings are folded into one."""
        return self.category, self.filename, self.line

    @property
    def counted_text(self) -> str:
        """The text, with the number of times if it is above 1."""
        return self.text if self.times == 1 else f"{self.text} ({self.times} times)"

    def show(self) -> None:
        """Show it through `warnings.showwarning`, which pytest, say, may have replaced."""
        kind = getattr(builtins, self.category, None)
        if isinstance(kind, type) and issubclass(kind, Warning):
            warnings.showwarning(kind(self.counted_text), kind, self.filename, self.line)
        else:
            text = UserWarning(f"{self.category}: {self.counted_text}")
            warnings.showwarning(text, UserWarning, self.filename, self.line)

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}: {self.category}: {self.counted_text}"


def folded(given: Iterable[FoldedWarning]) -> tuple[FoldedWarning, ...]:
    """The first warning of each place, with the number of all from that place, in the order in which they first came."""
    found: dict[tuple[str, str, int], FoldedWarning] = {}
    for each in given:
        _fold_into(found, each)
    return tuple(found.values())


def _fold_into(found: dict[tuple[str, str, int], FoldedWarning], new: FoldedWarning) -> None:
    first = found.get(new.place)
    found[new.place] = new if first is None else replace(first, times=first.times + new.times)


class FoldedWarnings:
    """Context in which warnings are collected; if an exception ends it, they are shown.

    On a follower, which reports none, the first from each place is shown at once.
    """

    def __init__(self, *, is_leader: bool = True) -> None:
        self._is_leader, self._is_open, self._is_done = is_leader, False, False
        self._found: dict[tuple[str, str, int], FoldedWarning] = {}
        self._before: Callable[..., Any] = warnings.showwarning

    @property
    def found(self) -> tuple[FoldedWarning, ...]:
        """The warnings so far, in the order in which they first came; none if they have been shown."""
        return tuple(self._found.values()) if self._is_leader else ()

    def ignore_more(self) -> None:
        """Show and count no more: the following runs shrink or repeat a failing case."""
        self._is_done = True

    def __enter__(self) -> FoldedWarnings:
        self._before, self._is_open = warnings.showwarning, True
        warnings.showwarning = self._note
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A rank abandoned within `catch_warnings` may restore this function later; then it passes everything on.
        warnings.showwarning, self._is_open = self._before, False
        if error is not None:
            for each in self.found:
                each.show()
            self._found.clear()

    def _note(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not self._is_open or file is not None:
            self._before(message, category, filename, lineno, file, line)
            return
        if self._is_done:
            return
        new = FoldedWarning(category.__name__, str(message), filename, lineno)
        if new.place not in self._found and not self._is_leader:
            self._before(message, category, filename, lineno, file, line)
        _fold_into(self._found, new)
