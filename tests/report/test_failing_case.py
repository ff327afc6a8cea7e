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


def test_a_failure_that_nothing_is_stored_of_tells_the_seed_that_draws_it_again(tmp_path: Path) -> None:
    def failing(draw: Any, ranks: int) -> dict[str, Any]:
        raise ValueError("not this time")

    found = found_as(al.subject.pair(doubled, kept)(failing))
    result = run_check(SimulatedWorld(ranks=2), found, "adjoint", Budget(3, seed=5), tmp_path)
    assert failure_text(result).splitlines()[-1].split(maxsplit=1) == [
        "seed",
        "adjointlab check --seed 5 draws these cases again",
    ]
    stored = run_check(
        SimulatedWorld(ranks=2),
        found_as(al.subject.pair(doubled, kept)(cases)),
        "adjoint",
        Budget(3, seed=5),
        tmp_path,
    )
    assert not any(line.startswith("  seed") for line in failure_text(stored).splitlines())
