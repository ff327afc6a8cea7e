"""Colours of pictures in the light and the dark theme, and the style of their shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["DARK", "LIGHT", "PICTURE_STYLE", "declarations", "variables"]

LIGHT: Final[Mapping[str, str]] = {
    "paper": "#ffffff", "ink": "#1f2328", "dim": "#59636e", "line": "#c9d1d9", "wrong": "#c4182a", "wrong-paper": "#fde7e9",
    "right": "#1a7f37", "source": "#1a7f37", "target": "#0a6c9c",
    "r0": "#3b6fb6", "r1": "#c96f12", "r2": "#4f8f43", "r3": "#8b5fa8", "r4": "#2f8f8a", "r5": "#a8860b", "r6": "#8a6450",
    "r7": "#b8568a",
}  # fmt: skip

DARK: Final[Mapping[str, str]] = {
    "paper": "#0d1117", "ink": "#e6edf3", "dim": "#9198a1", "line": "#3d444d", "wrong": "#ff7b72", "wrong-paper": "#4a1d20",
    "right": "#56d364", "source": "#56d364", "target": "#4cc2ff",
    "r0": "#79a8e8", "r1": "#f0a35e", "r2": "#86c979", "r3": "#c49be0", "r4": "#6cc8c2", "r5": "#e0c04c", "r6": "#c79f89",
    "r7": "#ec93c0",
}  # fmt: skip


def declarations(theme: Mapping[str, str]) -> str:
    """Return the colours as CSS variables."""
    return "".join(f"--al-{name}:{colour};" for name, colour in theme.items())


def variables(selector: str) -> str:
    """Return the style that sets the colours of the reader's theme for the elements that `selector` matches."""
    return (
        f"{selector}{{{declarations(LIGHT)}background:var(--al-paper)}}"
        f"@media (prefers-color-scheme:dark){{{selector}{{{declarations(DARK)}}}}}"
    )


_HUES = "".join(f".al-r{hue}{{fill:var(--al-r{hue});stroke:var(--al-r{hue})}}" for hue in range(8))

PICTURE_STYLE: Final = (
    ".al-picture text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}"
    ".al-ink{fill:var(--al-ink)}.al-dim{fill:var(--al-dim)}"
    ".al-title,.al-rank{fill:var(--al-ink);font-weight:bold}"
    ".al-code{fill:var(--al-dim);font-style:italic}"
    ".al-wrong-ink{fill:var(--al-wrong);font-weight:bold}.al-right-ink{fill:var(--al-right);font-weight:bold}"
    + _HUES
    + ".al-held{fill-opacity:.28;stroke:none}.al-shared{fill-opacity:.62;stroke:none}.al-padding{fill-opacity:.08;stroke:none}"
    ".al-edge{stroke-width:1.5}rect.al-edge:not(.al-held){fill:none}.al-held.al-edge{stroke-opacity:1}"
    + "".join(f".al-r{hue}.al-edge{{stroke:var(--al-r{hue})}}" for hue in range(8))
    + ".al-tensor{fill:none;stroke:var(--al-line);stroke-dasharray:3 3}"
    ".al-cell{stroke:var(--al-line);stroke-width:.7;fill:none}.al-lane{stroke:var(--al-line);fill:none}"
    ".al-mark{stroke:var(--al-paper);stroke-width:1.5}"
    ".al-source{fill:var(--al-source)}.al-target{fill:var(--al-target)}"
    ".al-mark.al-wrong{fill:none;stroke:var(--al-wrong);stroke-width:4}"
    ".al-entry{fill:none;stroke:var(--al-line);stroke-width:.5}"
    ".al-entry-wrong{fill:var(--al-wrong-paper);stroke:var(--al-wrong)}.al-frame{fill:none;stroke:var(--al-dim)}"
    ".al-edge-wrong{fill:none;stroke:var(--al-wrong);stroke-width:2}.al-edge-wrong-head{fill:var(--al-wrong)}"
    ".al-edge-right{fill:none;stroke:var(--al-right);stroke-width:2}.al-edge-right-head{fill:var(--al-right)}"
    ".al-edge-dim{fill:none;stroke:var(--al-dim);stroke-width:1.5}.al-edge-dim-head{fill:var(--al-dim)}"
    ".al-edge-ink{fill:none;stroke:var(--al-r0);stroke-width:1.7}.al-edge-ink-head{fill:var(--al-r0)}"
    ".al-node{fill:var(--al-paper);stroke:var(--al-ink);stroke-width:1.5}"
    ".al-node-wrong{fill:var(--al-wrong-paper);stroke:var(--al-wrong);stroke-width:2}"
    ".al-node-ended{fill:var(--al-paper);stroke:var(--al-line);stroke-dasharray:3 3}"
    ".al-event{fill:var(--al-r0)}.al-event-wrong{fill:var(--al-wrong)}"
)
"""Style of the shapes. The colours are CSS variables, which :func:`variables` or the page sets."""
