"""Tables of the benchmarks are plain text, wherever they are printed."""

from __future__ import annotations

import pytest

from benchmarks.timing import print_table


def test_a_table_has_no_codes_of_a_terminal_where_standard_output_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal

    print_table("title", ["name", "figure"], [["8x1024x1024, kernel 3", "1.00"]])

    printed = capsys.readouterr().out
    assert "8x1024x1024, kernel 3" in printed
    assert "\x1b" not in printed
