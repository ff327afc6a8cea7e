"""Tables show every name as it is, and cut nothing off."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

import adjointlab as al
from adjointlab.cli.output import Output
from adjointlab.demonstration import RightShift
from adjointlab.engine.discovery import found_as
from adjointlab.report.tables import subject_table


def declared(name: str) -> Any:
    @al.subject.operator(RightShift, name=name)
    def shifts(draw: Any, ranks: int) -> dict[str, int]:
        return {"cells": 1}

    return shifts


padded, periodic = declared("shift"), declared("shift")
marked = declared("[/] of a name")


class Terminal(io.StringIO):
    """It is one for whoever asks."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.mpi_skip
@pytest.mark.parametrize("columns", [30, 80, 300])
def test_a_list_of_subjects_has_the_names_of_reports_and_whole_references_on_any_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setattr(sys, "stdout", stream := Terminal())
    monkeypatch.setenv("COLUMNS", str(columns))
    entries = [found_as(each) for each in (padded, periodic, marked)]
    Output().table(subject_table(entries), wraps=False)
    shown = stream.getvalue()
    for name in ("shift[padded]", "shift[periodic]", "[/] of a name", *(each.reference for each in entries)):
        assert name in shown
    assert "reentrancy" in shown
    assert "…" not in shown
