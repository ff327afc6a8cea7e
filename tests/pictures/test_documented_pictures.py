"""The pictures of the documents are those that the code draws."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
from pathlib import Path

import pytest

from adjointlab.pictures.svg import as_svg
from tests.running import ROOT

pytestmark = pytest.mark.mpi_skip

DOCS = ROOT / "docs"


def test_the_pictures_of_the_documents_are_current() -> None:
    drawings = runpy.run_path(str(DOCS / "pictures" / "draw.py"))["drawings"]
    drawn = {f"{name}.svg": as_svg(drawing) + "\n" for name, drawing in drawings()}
    stored = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "pictures").glob("*.svg")}
    outdated = [name for name in {*drawn, *stored} if drawn.get(name) != stored.get(name)]
    assert not outdated, "run python docs/pictures/draw.py"


def test_every_picture_stands_in_a_document() -> None:
    shown = {
        name
        for page in DOCS.glob("*.md")
        for name in re.findall(r"\(pictures/(.*?\.svg)\)", page.read_text("utf-8"))
    }
    assert shown == {path.name for path in (DOCS / "pictures").glob("*.svg")}


def test_the_example_prints_what_the_page_shows() -> None:
    page = Path(DOCS / "pictures.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL)
    assert found
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    with contextlib.redirect_stdout(stream):
        exec(found.group(1), {})  # noqa: S102 - our own page
    stream.seek(0)
    assert stream.read() == found.group(2)
