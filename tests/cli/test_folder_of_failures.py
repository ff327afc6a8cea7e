"""The folder of failures is refused before any check runs where something else has its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from adjointlab.cli.result_files import folder_of_failures
from adjointlab.cli.startup import UsageError


def test_a_file_in_the_place_of_the_folder_is_a_usage_error(tmp_path: Path) -> None:
    file = tmp_path / "failures"
    file.write_text("")
    with pytest.raises(UsageError, match=r"--folder: .*failures is no folder"):
        folder_of_failures(file)


def test_a_folder_need_not_be_there(tmp_path: Path) -> None:
    assert folder_of_failures(tmp_path / "new") == tmp_path / "new"
