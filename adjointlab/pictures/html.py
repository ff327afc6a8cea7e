"""Drawings as HTML: a fragment for a notebook (:func:`as_html`), or for a page that already has the style."""

from __future__ import annotations

from html import escape
from typing import Final

from adjointlab.pictures.model import Drawing, Remark
from adjointlab.pictures.svg import inline_svg
from adjointlab.pictures.theme import PICTURE_STYLE, variables

__all__ = ["as_html", "fragment"]

_STYLE: Final = (
    ".al-drawing{overflow-x:auto;color:var(--al-ink);padding:.4em}.al-drawing svg{display:block;margin:.4em 0}"
    ".al-drawing pre{color:var(--al-ink)}"
)


def as_html(drawing: Drawing, text: str) -> str:
    """Return the drawing with its style, in the colours of the reader's theme, below the preformatted `text`."""
    above = f"<pre>{escape(text)}</pre>" if text else ""
    style = f"<style>{variables('.al-drawing')}{PICTURE_STYLE}{_STYLE}</style>"
    return f'<div class="al-drawing">{style}{above}{fragment(drawing)}</div>'


def fragment(drawing: Drawing) -> str:
    """Return the parts of the drawing, without a style."""
    parts = [f"<p><strong>{escape(drawing.title)}</strong></p>"] if drawing.title else []
    for part in drawing.parts:
        parts.append(f"<p>{escape(part.text)}</p>" if isinstance(part, Remark) else inline_svg(part))
    return "".join(parts)
