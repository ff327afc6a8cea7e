"""The files of this project: what git tracks, or, in an unpacked source distribution, what lies in its folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def tracked(*where: str) -> list[str]:
    """The files below some folders, or all, as paths from the root."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", *where]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    places = [ROOT / name for name in where] if where else [ROOT]
    # A source distribution has what git tracks as primitives/ and layers/ below the package.
    found = [path for place in places for path in (place.rglob("*") if place.is_dir() else [place])]
    return [
        path.relative_to(ROOT).as_posix()
        for path in found
        if path.is_file() and "__pycache__" not in path.parts
    ]
