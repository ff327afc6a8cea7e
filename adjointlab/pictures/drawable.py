"""Base class of objects with a drawing, which they can print and notebooks display."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adjointlab.pictures.model import Drawing

__all__ = ["Drawable"]


class Drawable:
    """An object with a drawing. The renderers are imported on first use, because applying an operator does not need them."""

    def drawing(self) -> Drawing:
        """Return the drawing as data; ``adjointlab.pictures.svg.as_svg`` turns it into an SVG file."""
        raise NotImplementedError

    def draw(self, width: int = 100) -> None:
        """Print the drawing as text, about `width` columns wide; in ASCII if the encoding of standard output lacks its characters."""
        from adjointlab.pictures.text import as_text, is_encodable

        unicode = is_encodable(getattr(sys.stdout, "encoding", None))
        print(as_text(self.drawing(), unicode=unicode, width=width))

    def _repr_html_(self) -> str:
        from adjointlab.pictures.html import as_html

        return as_html(self.drawing(), self._heading())

    def _heading(self) -> str:
        return ""
