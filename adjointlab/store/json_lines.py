"""Files with one JSON value per line, to which processes append that may be killed at any time."""

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

    An incomplete or damaged line is skipped, and a file that does not exist has no lines.
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
    """Append a line; make the folder again if user code has removed it.

    The newline before it ends an incomplete line of a process that was killed. Since the file is opened with O_APPEND, the single
    write is not interleaved with those of other processes.
    """
    line = encoded(content)
    descriptor = in_folder(path, lambda: open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT))
    with os.fdopen(descriptor, "ab") as file:
        file.write(b"\n" + line + b"\n")


def note(path: Path, content: object) -> None:
    """Append a line if possible: for records without which the work can go on, for example if the disk is full."""
    with suppress(OSError):
        append(path, content)


def encoded(content: object) -> bytes:
    """Return `content` as JSON, with lone surrogates, which UTF-8 cannot encode, as escapes."""
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
    """Return `figures` with non-finite numbers, which JSON lacks, as the strings "nan", "inf" and "-inf"."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in figures.items()
    }
