"""The page of ``adjointlab explain --html``."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from adjointlab.pictures.html import fragment
from adjointlab.pictures.model import Drawing
from adjointlab.report.html_page import page
from adjointlab.store.files import printable

__all__ = ["html_explanation"]


def html_explanation(explanations: Sequence[tuple[str, str, Drawing]]) -> str:
    """Return a page of operators, each with its name, its text in the notation of the literature, and its drawing."""
    sections = (
        f"<h2>{escape(printable(name))}</h2>"
        f'<div class="scroll" tabindex="0" role="group" aria-label="picture">{fragment(drawing)}</div>'
        f'<pre tabindex="0">{escape(printable(text, keep=chr(10)))}</pre>'
        for name, text, drawing in explanations
    )
    return page("adjointlab: operators explained", "\n".join(sections))
