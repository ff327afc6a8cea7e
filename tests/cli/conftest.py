"""The command line in the process of the test, which is faster than one of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from adjointlab.cli.main import main


@dataclass(frozen=True)
class Ended:
    returncode: object
    stdout: str
    stderr: str


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """In this process, which is faster."""
    monkeypatch.chdir(tmp_path)

    def ended(*arguments: str) -> Ended:
        with pytest.raises(SystemExit) as end:
            main(list(arguments))
        return Ended(end.value.code, *capsys.readouterr())

    return ended
