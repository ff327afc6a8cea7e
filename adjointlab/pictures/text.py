"""Drawings as text: for a terminal with colours (:func:`as_rich`), and plain, in Unicode or in ASCII."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from adjointlab.pictures.grid_text import grid_block
from adjointlab.pictures.lanes_text import lanes_block
from adjointlab.pictures.lines import ASCII, Block, Line, Span, Style, beside, in_ascii, line, plain, width_of
from adjointlab.pictures.model import (
    Drawing,
    Grid,
    Lanes,
    Matrices,
    Matrix,
    Movement,
    Part,
    Remark,
    Row,
    Waits,
    Weight,
)
from adjointlab.pictures.waits_text import waits_block

__all__ = ["as_rich", "as_text", "block_of", "is_encodable"]


def as_text(drawing: Drawing, *, unicode: bool = True, width: int = 100) -> str:
    """Return the drawing as lines of plain text; empty for a drawing without parts."""
    return "\n".join(plain(spans).rstrip() for spans in block_of(drawing, unicode=unicode, width=width))


def as_rich(drawing: Drawing, *, unicode: bool = True, width: int = 100) -> Text:
    """Return the drawing as a rich text, in colours. Nothing in it is interpreted as markup."""
    block = block_of(drawing, unicode=unicode, width=width)
    return Text("\n").join(Text.assemble(*spans) for spans in block)


def is_encodable(encoding: str | None) -> bool:
    """Return True if an encoding has the symbols of pictures."""
    try:
        "".join(map(chr, ASCII)).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def block_of(drawing: Drawing, *, unicode: bool = True, width: int = 100) -> Block:
    """Return the lines of the drawing."""
    lines: list[Line] = [line(drawing.title, Style.BOLD)] if drawing.title and drawing.parts else []
    for part in drawing.parts:
        lines += _block(part, width)
    block = tuple(tuple((_printable(text), style) for text, style in spans) for spans in lines)
    return block if unicode else in_ascii(block)


def _printable(text: str) -> str:
    """Replace characters that are not printable, because names and lines of code come from user code."""
    return text if text.isprintable() else "".join(each if each.isprintable() else "\ufffd" for each in text)


def _block(part: Part, width: int) -> Block:
    match part:
        case Grid():
            return grid_block(part, width)
        case Movement():
            return tuple(_movement(part, width))
        case Matrices():
            return tuple(_matrices(part, width))
        case Waits():
            return waits_block(part, width)
        case Lanes():
            return lanes_block(part, width)
        case Row():
            return _side_by_side([lanes_block(each, width // len(part.parts)) for each in part.parts], width)
        case Remark():
            return (line(part.text, Style.DIM),)


def _side_by_side(blocks: list[Block], width: int) -> Block:
    joined = beside(blocks)
    return joined if width_of(joined) <= width else tuple(spans for block in blocks for spans in block)


def _movement(movement: Movement, width: int) -> Iterator[Line]:
    yield from _side_by_side([grid_block(grid, width // 2 - 2) for grid in movement.grids], width)
    for weight in movement.weights:
        yield tuple(_arrow(movement, weight, max(len(each.name) for each in movement.weights)))


def _arrow(movement: Movement, weight: Weight, width: int) -> Iterator[Span]:
    style = Style.WRONG if weight.is_wrong else Style.PLAIN
    value = f"─×{weight.value}─" if weight.value else "──"
    yield f"{weight.name:<{width}}  ", Style.PLAIN
    yield f"● {movement.source} ", Style.SOURCE
    yield (f"◀─{value}─" if weight.is_back else f"─{value}─▶"), style
    yield f" ◆ {movement.target}", Style.TARGET
    if weight.remark:
        yield f"   {weight.remark}", style


def _matrices(part: Matrices, width: int) -> Iterator[Line]:
    labels: Block = (
        line(),
        *(line(label.rjust(max(map(len, part.rows), default=0)), Style.DIM) for label in part.rows),
    )
    blocks = [_matrix(matrix) for matrix in part.matrices]
    joined = beside([labels, *blocks])
    if width_of(joined) > width:
        for block in blocks:
            yield from beside([labels, block])
    else:
        yield from joined
    if part.note:
        yield line(part.note, Style.DIM)


def _matrix(matrix: Matrix) -> Block:
    cell = max((len(entry) for row in matrix.entries for entry in row), default=1) + 2
    lines: list[Line] = [line(matrix.title, Style.BOLD)]
    for number, row in enumerate(matrix.entries):
        spans: list[Span] = []
        for column, entry in enumerate(row):
            if (number, column) in matrix.wrong:
                spans.append((f"[{entry}]".rjust(cell), Style.WRONG))
            elif entry == "0":
                spans.append(("· ".rjust(cell), Style.DIM))
            else:
                spans.append((f"{entry} ".rjust(cell), Style.PLAIN))
        lines.append(tuple(spans))
    return tuple(lines)
