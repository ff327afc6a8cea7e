"""A job of GitHub Actions: errors of a whole run, and the summary of the job. Needs no array library, so that any command can use it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["add_to_summary", "error_command", "is_github", "run_error"]


def is_github(environment: Mapping[str, str]) -> bool:
    """Return True in a job of GitHub Actions."""
    return environment.get("GITHUB_ACTIONS") == "true"


def error_command(message: str, **properties: str) -> str:
    """The workflow command, a line, that has GitHub show an error: its title, and perhaps a file and a line."""
    shown = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::error {shown}::{_data(message)}"


def run_error(message: str) -> str:
    """The command of an error that concerns no operator."""
    return error_command(message, title="adjointlab")


def add_to_summary(markdown: str, environment: Mapping[str, str] = os.environ) -> None:
    """Add to the summary of the job, where it has one. Raises `OSError` where that cannot be written."""
    if path := environment.get("GITHUB_STEP_SUMMARY"):
        with Path(path).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"### adjointlab\n\n{markdown}\n")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
