"""The site builds without a warning, asks no other host for anything, and documents every public name."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import adjointlab as al
from adjointlab.engine.subject import Subject
from tests.running import ROOT

pytestmark = [
    pytest.mark.mpi_skip,
    pytest.mark.skipif(find_spec("mkdocstrings") is None, reason="needs the extra `docs`"),
]

LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed|object|use)\b[^>]*?\b(?:src|srcset|data|href)=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|icon|preload|preconnect|modulepreload|manifest|dns-prefetch))[^>]*?\bhref=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|@import\s+(?:url\()?["']?((?:https?:)?//[^"')\s]+)"""
    r"""|\burl\(["']?((?:https?:)?//[^"')\s]+)""",
    re.IGNORECASE,
)
"""An address on another host that a browser loads by itself; links that somebody may click on are none."""

ON_REQUEST = ('class="mermaid"', 'class="md-source"')
"""Diagrams and a repository's figures: what makes the theme's script ask other hosts."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert built.returncode == 0, built.stdout
    return folder


def loaded(text: str) -> Iterator[str]:
    for found in LOADED.finditer(text):
        yield next(address for address in found.groups() if address)


def test_no_page_asks_another_host_for_anything(site: Path) -> None:
    files = [path for suffix in ("html", "css") for path in site.rglob(f"*.{suffix}")]
    assert len(files) > 30
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    asked = {str(path): list(loaded(text)) for path, text in texts.items()}
    assert {path: addresses for path, addresses in asked.items() if addresses} == {}
    assert [str(path) for path, text in texts.items() if any(mark in text for mark in ON_REQUEST)] == []


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://unpkg.com/x.js">',
        "<script defer src=//cdn.example/x.js>",
        '<link rel="stylesheet" href="https://fonts.example/css?family=Roboto">',
        '<link href="https://fonts.example" rel="preconnect" crossorigin>',
        '<img alt="a" src="https://img.example/badge.svg">',
        "@import url('https://fonts.example/css');",
        "@font-face { src: url(https://fonts.example/a.woff2) }",
    ],
)
def test_a_request_to_another_host_is_seen(text: str) -> None:
    assert list(loaded(text))


def test_a_link_and_a_drawing_in_a_style_are_no_requests() -> None:
    assert not list(loaded('<a href="https://example.org">x</a>'))
    assert not list(loaded("url(\"data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg'/>\")"))


VARIANTS = {"CrossEntropyLossOfProbabilities", "RepartitionLayer"}
"""Subjects that are named by more than their class."""


def public_names() -> Iterator[str]:
    """The names in the reference, by the code: `__all__`, and "PACKAGE CLASS" for what the built-in subjects check."""
    yield from (f"adjointlab.{name}" for name in al.__all__ if name != "strategies")
    yield from (f"adjointlab.core.strategies.{name}" for name in al.strategies.__all__)
    for plugin in ("primitives", "layers"):
        package = f"adjointlab.{plugin}"
        yield from (f"{package} {name}" for name in getattr(import_module(package), "__all__", ()))
        installed = vars(import_module(f"{package}.subjects.installed")).values()
        names = {each.name for each in installed if isinstance(each, Subject)}
        yield from (f"{package} {name}" for name in names - VARIANTS)


def test_what_is_for_readers_of_the_files_alone_is_not_on_the_pages(site: Path) -> None:
    pages = list((site / "reference").glob("*.html"))
    assert len(pages) > 4
    assert [page.name for page in pages if "mkdocs serve" in page.read_text(encoding="utf-8")] == []


def test_every_public_name_has_an_entry(site: Path) -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html"))
    anchors = set(re.findall(r'id="([\w.]+)"', pages))
    # A class of a plug-in stands under its module, or under the package where that exports it.
    classes = {re.sub(r"^(adjointlab\.(?:primitives|layers))\..*?(\w+)$", r"\1 \2", name) for name in anchors}
    names = set(public_names())
    assert len(names) > 90
    assert names - anchors - classes == set()


def test_every_command_has_an_entry(site: Path) -> None:
    page = (site / "reference" / "command-line.html").read_text(encoding="utf-8")
    for command in ("check", "demo", "exhaust", "explain", "list", "replay", "run"):
        assert f'id="adjointlab-{command}"' in page
    assert "--junit" in page
