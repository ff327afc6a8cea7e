"""A report of a wrong result prints the arguments of its case that the lines of its spaces do not show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import adjointlab as al
from adjointlab.engine.discovery import found_as
from adjointlab.engine.search_result import Budget
from adjointlab.report.failure_text import failure_text
from adjointlab.session import run_check
from adjointlab.worlds.simulated.world import SimulatedWorld


def doubled(comm: Any, x: Any, **parameters: Any) -> Any:
    return 2 * x


def kept(comm: Any, y: Any, **parameters: Any) -> Any:
    return np.array(y)


def cases(draw: Any, ranks: int) -> dict[str, Any]:
    space = al.Space(al.Layout.cut((ranks,), al.Partition((ranks,)), [tuple(range(ranks + 1))]))
    more = {"cut": tuple(range(ranks + 1)), "width": 2, "many": tuple(range(1000))}
    # Parts of what the lines of the spaces say.
    more |= {"side": "l", "kernel": (ranks,), "stride": (1, 2)}
    return dict(domain=space, codomain=space) | more


def test_arguments_that_no_layout_shows_are_printed(tmp_path: Path) -> None:
    found = found_as(al.subject.pair(doubled, kept)(cases))
    result = run_check(SimulatedWorld(ranks=2), found, "adjoint", Budget(3, seed=1), tmp_path)
    lines = failure_text(result).splitlines()
    assert "adjoint is not the transpose" in lines[0]
    shown = dict(line.split(maxsplit=1) for line in lines if line.startswith("  "))
    assert {name: shown[name] for name in ("width", "side", "kernel", "stride")} == {
        "width": "2",
        "side": "l",
        "kernel": "(1,)",
        "stride": "(1, 2)",
    }
    assert "layout" not in shown
    assert not any(line.startswith("  cut") for line in lines)
    assert any(line.startswith("  many") and line.endswith("…") and len(line) < 130 for line in lines)
