"""Files of one JSON object for each line, which processes that may die at any time add to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["append", "lines"]


def lines(path: Path) -> list[Any]:
    """What stands in a file; a line that its writer did not finish is passed over, and a file that is not there is empty."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return []
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def append(path: Path, content: Mapping[str, Any]) -> None:
    """Add a line: in one write, and after whatever half a line somebody who died may have left."""
    with path.open("ab") as file:
        file.write(b"\n" + json.dumps(content).encode() + b"\n")
