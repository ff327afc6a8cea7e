"""The code blocks of a page, each with what the page says of its running.

A comment on the line before a block says what readers need not see: ``<!-- not run: why -->``, ``<!-- needs MODULE -->``. A comment
that begins with the word ``python`` alone is a block that readers do not see; ``<!-- not run on this page: why -->`` holds for all
blocks of a shell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

MARK = re.compile(r"<!-- (not run: .+|needs [\w.]+) -->")
HIDDEN = re.compile(r"<!-- python\n(.*?)-->", re.DOTALL)
WHOLE_PAGE = re.compile(r"<!-- not run on this page: .+ -->")
TITLE = re.compile(r'title="([^"]+)"')
SHELLS = ("console", "sh")


@dataclass(frozen=True)
class Block:
    """A block of code, from one line of its page on."""

    language: str  # empty where it is indented
    title: str  # the file that it is, or empty
    text: str
    line: int
    mark: str  # "not run: why", "needs MODULE", or empty

    @property
    def is_run(self) -> bool:
        return (self.language in ("python", "console") or bool(self.title)) and not self.mark.startswith(
            "not run"
        )

    @property
    def commands(self) -> Iterator[tuple[str, str]]:
        """The commands of a console, and what the page shows of their output."""
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def blocks(page: Path) -> list[Block]:
    """All blocks of a page, in its order."""
    text = page.read_text(encoding="utf-8")
    whole = "not run: see the head of the page" if WHOLE_PAGE.search(text) else ""
    found, mark = [], ""
    for token in MarkdownIt("commonmark").parse(text):
        line = token.map[0] + 1 if token.map else 0
        if token.type == "html_block":
            marked, hidden = MARK.search(token.content), HIDDEN.search(token.content)
            mark = marked[1] if marked else mark
            if hidden:
                found.append(Block("python", "", hidden[1], line + 1, mark))
        elif token.type in ("fence", "code_block"):
            language, _, rest = token.info.partition(" ")
            title = TITLE.search(rest)
            own = mark or (whole if language in SHELLS else "")
            found.append(Block(language, title[1] if title else "", token.content, line + 1, own))
        if token.type != "html_block":
            mark = ""
    return found
