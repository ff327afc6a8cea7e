"""Keys of sources, as in [Hewett21, eq. 16], are defined in docs/references.md and used; files that the pages name are there."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.tracked import tracked

ROOT = Path(__file__).resolve().parent.parent
REFERENCES = ROOT / "docs" / "references.md"
FOLDERS = ("adjointlab", "primitives", "layers", "tests", "benchmarks", "docs", "examples")

KEY = r"[A-Z][A-Za-z]+\d{2}|DistDL|[a-z][a-z0-9]*(?:-[a-z]+)*-(?:\d{2,}|[0-9a-f]{7,10})"
"""Papers by author and year, threads by project and number, commits by project and hash."""
USED = re.compile(rf"\[({KEY})(?:, [^\]]+)?\](?!\()")
BEGUN = re.compile(rf"\[(?:{KEY})")
"""Stands in the source of every file that uses a key, in prose or elsewhere; there are few of these."""
DEFINED = re.compile(rf"^- \*\*\[({KEY})\]\*\*", re.MULTILINE)


def files() -> Iterator[Path]:
    for folder in FOLDERS:
        for suffix in ("py", "md"):
            # Not through the links by which the package finds its plug-ins.
            yield from (path for path in (ROOT / folder).rglob(f"*.{suffix}") if path.resolve() == path)
    yield ROOT / "README.md"


def text(path: Path) -> str:
    """The prose of a file: of Python its comments and strings, where brackets are no indices."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return re.sub(r"\s+", " ", source)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    prose = (token.string for token in tokens if token.type in (tokenize.STRING, tokenize.COMMENT))
    return re.sub(r"\s+(?:# )?", " ", " ".join(prose))


def quoted(path: Path) -> set[str]:
    """The keys of recreated faults, which stand there as data."""
    return set(re.findall(rf'"({KEY})"', path.read_text(encoding="utf-8")))


def test_each_key_is_defined_and_each_definition_is_used() -> None:
    page = REFERENCES.read_text(encoding="utf-8")
    defined = DEFINED.findall(page)
    assert len(set(defined)) == len(defined)
    here = Path(__file__).resolve()
    used = {
        key: path
        for path in files()
        if path not in (REFERENCES, here) and BEGUN.search(path.read_text(encoding="utf-8"))
        for key in USED.findall(text(path))
    }
    used |= {key: path for path in (ROOT / "tests/planted/recreated").glob("*.py") for key in quoted(path)}
    assert {key: str(path) for key, path in used.items() if key not in defined} == {}
    related_work = page.split("## Related work")[1].split("\n## ")[0]
    assert set(defined) - set(used) - set(DEFINED.findall(related_work)) == set()


PATH = re.compile(r"`((?!\.adjointlab/)[\w./-]+(?:\.py|\.md|\.toml|/))`")
"""A file or a folder (with a slash at its end), by its path or the last part of it; not what the lab writes."""
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)")
ELSEWHERE = {
    "torch/distributed/tensor/_api.py",
    "primitives/my_primitive.py",
    "my_package/",
    "test_reduce.py",
    "test_ring_shift.py",
}
"""Files of other projects, and of the reader's own."""


def test_each_file_that_a_page_names_is_there() -> None:
    files = [f"/{name}" for name in tracked()]
    missing = []
    for page in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        prose = page.read_text(encoding="utf-8")
        missing += [
            f"{page.name}: {name}" for name in LINK.findall(prose) if not (page.parent / name).exists()
        ]
        for name in set(PATH.findall(prose)) - ELSEWHERE:
            found = any(
                f"/{name}" in file if name.endswith("/") else file.endswith(f"/{name}") for file in files
            )
            missing += [] if found else [f"{page.name}: {name}"]
    assert missing == []
