"""Lines of styled characters, and blocks of them side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import zip_longest
from typing import Final, TypeAlias

from rich.cells import cell_len

__all__ = ["ASCII", "Block", "Line", "Span", "Style", "beside", "in_ascii", "line", "plain", "width_of"]


class Style(StrEnum):
    """Styles of characters, as rich names them."""

    PLAIN = ""
    DIM = "dim"
    BOLD = "bold"
    HELD = "blue"
    SHARED = "magenta"
    SOURCE = "bold green"
    TARGET = "bold cyan"
    WRONG = "bold red"


Span: TypeAlias = tuple[str, Style]
Line: TypeAlias = tuple[Span, ...]
Block: TypeAlias = tuple[Line, ...]

ASCII: Final = str.maketrans(
    {
        "■": "#", "▒": "+", "□": "o", "·": ".", "●": "S", "◆": "T", "✖": "X", "─": "-", "│": "|", "▶": ">", "◀": "<",
        "▲": "^", "└": "+", "┘": "+", "├": "|", "┤": "|", "×": "x", "→": ">", "…": ".", "−": "-",
    }
)  # fmt: skip
"""Our own symbols, each as one ASCII character, so that columns stay aligned."""


def line(text: str = "", style: Style = Style.PLAIN) -> Line:
    """Return a line of one style."""
    return ((text, style),) if text else ()


def plain(spans: Line) -> str:
    """Return the characters of a line."""
    return "".join(text for text, _ in spans)


def in_ascii(block: Block) -> Block:
    """Return the block with our own symbols in ASCII; other characters are unchanged."""
    return tuple(tuple((text.translate(ASCII), style) for text, style in spans) for spans in block)


def width_of(block: Iterable[Line]) -> int:
    """Return the width of a block on a terminal, in columns."""
    return max((cell_len(plain(spans)) for spans in block), default=0)


def beside(blocks: Sequence[Block], gap: int = 3) -> Block:
    """Return the blocks side by side, `gap` columns apart."""
    if not blocks:
        return ()
    widths = [width_of(block) for block in blocks]
    joined: list[Line] = []
    for row in zip_longest(*blocks, fillvalue=()):
        spans: list[Span] = []
        for column, part in enumerate(row):
            spans += part
            if column < len(row) - 1:
                spans.append((" " * (widths[column] - cell_len(plain(part)) + gap), Style.PLAIN))
        joined.append(tuple(spans))
    return tuple(joined)
