"""Files of one JSON value a line, to which processes append that may be killed at any time."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from adjointlab.checks.verdict import Figures
from adjointlab.store.files import encodable, in_folder, open_file, read_file

__all__ = ["append", "encoded", "json_figures", "lines", "note"]

T = TypeVar("T")


def lines(path: Path, kind: type[T]) -> list[T]:
    """Read a file, each line as a struct of `kind`.

    A line that its writer did not finish, or that was damaged, is passed over, and a file that does not exist has no lines.
    """
    try:
        content = read_file(path)
    except OSError:
        return []
    decoder = msgspec.json.Decoder(kind)
    found: list[T] = []
    for line in content.splitlines():
        try:
            found.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return found


def append(path: Path, content: object) -> None:
    """Append a line; the folder is made anew where user code has removed it.

    The newline before it ends whatever half a line a killed process has left. With O_APPEND the one write is placed as a whole
    behind what other processes write at the same time.
    """
    line = encoded(content)
    descriptor = in_folder(path, lambda: open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT))
    with os.fdopen(descriptor, "ab") as file:
        file.write(b"\n" + line + b"\n")


def note(path: Path, content: object) -> None:
    """Append a line if that can be done. For records that the work goes on without, as on a full disk."""
    with suppress(OSError):
        append(path, content)


def encoded(content: object) -> bytes:
    """JSON of `content`, with the lone surrogates of its texts, which UTF-8 does not have, as escapes."""
    try:
        return msgspec.json.encode(content)
    except UnicodeEncodeError:
        return msgspec.json.encode(_encodable(msgspec.to_builtins(content)))


def _encodable(value: object) -> object:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, list | tuple):
        return [_encodable(entry) for entry in value]
    if isinstance(value, dict):
        return {_encodable(key): _encodable(entry) for key, entry in value.items()}
    return value


def json_figures(figures: Figures) -> Figures:
    """Return `figures` with the numbers that JSON does not have as texts: "nan", "inf", "-inf"."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in figures.items()
    }
