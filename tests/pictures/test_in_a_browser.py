"""The page of results in a headless browser: both themes, the width of a phone, search, and no errors on the console."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import adjointlab as al
from adjointlab.report.html_report import environment, html_report
from tests import samples
from tests.pictures.drawings import failure
from tests.pictures.test_html_report import hostile_result

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.mpi_skip,
    pytest.mark.skipif(
        BROWSER is None, reason="needs Debian's package chromium, which no job of CI installs"
    ),
]

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr", "--v=0",
)  # fmt: skip

LOOK = """
<script>
addEventListener("load", () => {
  const seen = { background: getComputedStyle(document.body).backgroundColor };
  seen.overflow = document.documentElement.scrollWidth - innerWidth;
  seen.pictures = [...document.querySelectorAll("svg")].filter(each => each.getBoundingClientRect().height > 20).length;
  seen.entries = entries.length;
  seen.cut = [...document.querySelectorAll(".scroll, pre")].filter(each => getComputedStyle(each).overflowX !== "auto").length;
  search.value = "hanging"; search.dispatchEvent(new Event("input"));
  seen.found = entries.filter(each => !each.hidden).map(each => each.querySelector(".name").textContent);
  search.value = "no such thing"; search.dispatchEvent(new Event("input"));
  seen.nothing = !none.hidden;
  search.value = ""; kinds[0].click();
  seen.filtered = entries.filter(each => !each.hidden).map(each => each.dataset.kind);
  theme.click();
  seen.turned = getComputedStyle(document.body).backgroundColor;
  document.body.dataset.seen = JSON.stringify(seen);
});
</script>
"""
"""Uses the page as a reader does, and leaves in an attribute what came of it."""

Look = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def report(world: al.SimulatedWorld, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("failures")
    subjects = (samples.wrong, samples.hanging, samples.right)
    results = [failure(subject, "adjoint", folder, world) for subject in subjects]
    return html_report([*results, hostile_result()], environment())


@pytest.fixture
def browse(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(page: str, *flags: str, width: int = 1100) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "page.html"
        file.write_text(page, encoding="utf-8")
        command = [
            BROWSER or "",
            *FLAGS,
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={width},900",
        ]
        keep = {key: value for key, value in os.environ.items() if key in ("PATH", "LANG")}
        result = subprocess.run(
            [*command, *flags, file.as_uri()],
            capture_output=True, text=True, timeout=60, check=True, env=keep | {"HOME": str(tmp_path)},
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert "CONSOLE" not in result.stderr
        return result

    return run


@pytest.fixture
def look(browse: Callable[..., subprocess.CompletedProcess[str]]) -> Look:
    def run(page: str, *flags: str, width: int = 1100) -> dict[str, Any]:
        dom = browse(page.replace("</body>", LOOK + "</body>"), "--dump-dom", *flags, width=width).stdout
        found = re.search(r'data-seen="([^"]*)"', dom)
        assert found, dom[-500:]
        seen: dict[str, Any] = json.loads(unescape(found.group(1)))
        return seen

    return run


@pytest.mark.parametrize(
    ("theme", "flags"), [("light", ()), ("dark", ("--blink-settings=preferredColorScheme=0",))]
)
def test_a_reader_searches_and_filters_in_either_theme(
    report: str, look: Look, theme: str, flags: tuple[str, ...]
) -> None:
    seen = look(report, *flags)
    light, dark = "rgb(255, 255, 255)", "rgb(13, 17, 23)"
    assert (seen["background"], seen["turned"]) == ((light, dark) if theme == "light" else (dark, light))
    assert seen["entries"] == 4
    assert seen["found"] == ["Hanging"]
    assert seen["nothing"] is True
    assert set(seen["filtered"]) == {"incoherent"}
    assert seen["pictures"] >= 4


def test_a_phone_scrolls_pictures_and_not_the_page(report: str, look: Look) -> None:
    seen = look(report, width=390)
    assert seen["overflow"] <= 0
    assert seen["cut"] == 0


def test_a_screenshot_has_the_size_of_the_window(
    report: str, browse: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    file = tmp_path / "page.png"
    browse(report, f"--screenshot={file}", width=390)
    content = file.read_bytes()
    assert struct.unpack(">II", content[16:24]) == (390, 900)
    assert len(content) > 10_000  # it is not empty: an empty one of this size has about 2,000 bytes


def test_an_error_on_the_console_is_seen(browse: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    with pytest.raises(AssertionError):
        browse("<script>throw new Error('seen')</script>", "--dump-dom")
