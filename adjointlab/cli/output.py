"""Printing to standard output or standard error, normally on rank 0 only; the progress line; and writing results as JSON."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rich.console import Console

from adjointlab.cli.held_streams import HeldStreams
from adjointlab.store.files import printable
from adjointlab.store.outputs import write_results
from adjointlab.worlds.launch import is_launched, launched_rank

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress

    from adjointlab.pictures.model import Drawing
    from adjointlab.worlds.world import World

__all__ = [
    "CLOSED",
    "STDOUT",
    "Output",
    "ProgressLine",
    "describe_ranks",
    "is_standard_output",
    "is_standard_output_closed",
    "progress_line",
    "write_json",
    "write_text",
]

STDOUT = "-"
"""The file name that stands for standard output."""

CLOSED = "standard output is closed; name a file"
"""Why results cannot be written to standard output."""


_NO_LIMIT = 100_000
"""Width of a file, in columns."""

_PICTURE = 110
"""Largest width of a picture, in columns."""

_ASCII = {"→": "->", "←": "<-", "⟨": "<", "⟩": ">", "×": "x", "∞": "inf", "·": ".", "−": "-", "…": "..."}
"""ASCII forms of the lab's own symbols, for encodings that lack them."""


@dataclass(frozen=True)
class Output:
    """Prints on rank 0; on other ranks only if `from_any_rank`. Printing never raises, because a verdict must not depend on the reader."""

    to_stderr: bool = False
    from_any_rank: bool = False

    @property
    def stream(self) -> TextIO:
        """The stream, looked up at each use because it may be replaced."""
        return HeldStreams.of(to_stderr=self.to_stderr)

    @property
    def is_terminal(self) -> bool:
        """Return True if the stream is a terminal. (rich's own property is also True if colours are forced.)"""
        try:
            return self.stream.isatty() and not _is_made_up(self.stream)
        except ValueError:  # closed
            return False

    @property
    def console(self) -> Console:
        """A rich console for the stream."""
        # Without a terminal rich assumes 80 columns, and would wrap the lines of tables in files and pipes.
        width = None if self.is_terminal else 160
        has_no_colours = _is_made_up(self.stream) and "FORCE_COLOR" not in os.environ
        return Console(
            file=self.stream,
            width=width,
            force_terminal=False if has_no_colours else None,
            quiet=launched_rank() != 0,
        )

    def line(self, text: str = "") -> None:
        """Print `text` without markup, colours, wrapping or control sequences."""
        self._write(printable(text, keep="\n\t") + "\n")

    def table(self, table: RenderableType, *, wraps: bool = True) -> None:
        """Print a rich table. Its cells are wrapped on a terminal, and elsewhere only if it `wraps`.

        Nothing is truncated: if the columns do not fit, the lines are longer, and the terminal wraps them.
        """
        from rich.measure import Measurement

        console = self.console
        least = Measurement.get(console, console.options.update(max_width=_NO_LIMIT), table).minimum
        if least > console.width or not (wraps or self.is_terminal):
            console.width = _NO_LIMIT
        # Not printed by rich, which exits with 1 if the reader is gone.
        with console, console.capture() as captured:
            console.print(table)
        # rich pads all cells to the width of their column, including those of the last column.
        self._write("\n".join(line.rstrip() for line in captured.get().split("\n")))

    def drawing(self, drawing: Drawing, indent: int = 2) -> None:
        """Print a drawing, in colours on a terminal, and in ASCII if the stream's encoding lacks its characters."""
        from rich.padding import Padding

        from adjointlab.pictures.text import as_rich, is_encodable

        width = min(self.console.width, _PICTURE) - indent
        picture = as_rich(drawing, unicode=is_encodable(self.stream.encoding), width=width)
        self.table(Padding(picture, (0, 0, 0, indent)))

    def raw(self, text: str) -> bool:
        """Print `text`, which is meant for programs, unchanged; return False if writing fails although the reader is still there."""
        return self._write(text)

    def _write(self, text: str) -> bool:
        if launched_rank() != 0 and not self.from_any_rank:
            return True
        stream = self.stream
        try:
            stream.write(_encodable(text, stream))
            stream.flush()
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            present = sys.stderr if self.to_stderr else sys.stdout
            # Also the stream of `sys`, which would fail again at exit, unless user code has redirected it to another file.
            for each in [stream, *([present] if _lead_alike(present, stream) else [])]:
                _silence(each)
            HeldStreams.renew()
            if not isinstance(error, BrokenPipeError | ValueError):
                if not self.to_stderr:
                    HeldStreams.note_lost_output()
                    Output(to_stderr=True).line(f"adjointlab: standard output: {error.strerror or error}")
                return False
        return True


def _is_made_up(stream: TextIO) -> bool:
    """Return True for the pseudo-terminal without columns that Open MPI gives a rank, wherever the output of its launcher goes.

    `adjointlab run` passes its number of columns in COLUMNS, and sets TERM=dumb if its own output is not a terminal.
    """
    has_columns = "COLUMNS" in os.environ and os.environ.get("TERM") != "dumb"
    if has_columns or not is_launched():
        return False
    try:
        return os.get_terminal_size(stream.fileno()).columns == 0
    except (OSError, ValueError):  # no terminal
        return False


def _encodable(text: str, stream: TextIO) -> str:
    """Return `text` in the characters of the stream's encoding: replace the lab's symbols by ASCII forms, and escape all others."""
    encoding = stream.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        for sign, ascii_form in _ASCII.items():
            text = text.replace(sign, ascii_form)
        return text.encode(encoding, "backslashreplace").decode(encoding)
    return text


def _lead_alike(one: TextIO | None, other: TextIO) -> bool:
    try:
        return one is not None and os.path.samestat(os.fstat(one.fileno()), os.fstat(other.fileno()))
    except (OSError, ValueError):
        return False


def _silence(stream: TextIO) -> None:
    """Redirect a stream that cannot be written to the null device; otherwise Python would try again at exit, and exit with 120."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def describe_ranks(world: World, ranks: int | None = None) -> str:
    """Return e.g. "4 simulated ranks", "4 ranks under MPI" or "4 ranks of torchrun": all ranks of `world`, or `ranks` of them."""
    number = world.ranks if ranks is None else ranks
    noun = "rank" if number == 1 else "ranks"
    where = {"mpi": f"{noun} under MPI", "torch": f"{noun} of torchrun"}
    return f"{number} {where.get(world.name, f'simulated {noun}')}"


def is_standard_output(target: str) -> bool:
    """Return True if a file name refers to the pipe or file that is standard output."""
    try:
        behind = os.fstat(1)
        return not stat.S_ISCHR(behind.st_mode) and os.path.samestat(behind, Path(target).stat())
    except OSError:
        return False


def is_standard_output_closed() -> bool:
    """Return True if the process was started without a standard output."""
    return sys.stdout is None


def write_json(target: str, data: Mapping[str, object]) -> str:
    """Write `data` to the file `target`, or to standard output for ``-``. A regular file is replaced atomically.

    Return the reason if writing fails, else "". It does not raise, because the verdicts are valid without the file.
    """
    text = json.dumps(data, indent=2, ensure_ascii=False)
    try:
        text.encode(Output().stream.encoding or "utf-8" if target == STDOUT else "utf-8")
    except UnicodeEncodeError:  # a lone surrogate, or a terminal with another encoding
        text = json.dumps(data, indent=2)
    return write_text(target, text + "\n")


def write_text(target: str, text: str) -> str:
    """Write `text` as :func:`write_json` does."""
    if target == STDOUT:
        if is_standard_output_closed():
            return CLOSED
        return "" if Output().raw(text) else "the results cannot be written to standard output"
    return write_results(target, text)


_INTERVAL = 0.1
"""Seconds between two refreshes, because drawing the line takes longer than many cases do."""


class ProgressLine:
    """One line that shows the progress of the current piece of work; shows nothing without a bar."""

    def __init__(self, bar: Progress | None) -> None:
        self._bar = bar

    def track(self, label: str, total: int | None = None, note: str = "") -> Callable[..., None]:
        """Begin a piece of work; return ``tick(done, total, note)``, where `total` and `note` default to the values given here.

        The `note` is printed at the end of the line.
        """
        bar = self._bar
        if bar is None:
            return lambda done, total=None, note="": None
        # A separate task for each piece of work, so that the remaining time is estimated from its cases alone.
        for task in bar.task_ids:
            bar.remove_task(task)
        task, shown = bar.add_task(label, total=total, note=note), 0.0
        bar.refresh()

        def tick(done: int, total: int | None = None, note: str | None = None) -> None:
            nonlocal shown
            bar.update(task, completed=done, total=total)
            if note is not None:
                bar.update(task, note=note)
            if time.monotonic() - shown > _INTERVAL:
                shown = time.monotonic()
                bar.refresh()

        return tick

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Context in which the line is removed from the screen, so that something else can be printed."""
        if self._bar is None:
            yield
            return
        self._bar.stop()
        yield
        self._bar.start()


@contextmanager
def progress_line(*, is_shown: bool, time_left: bool = False) -> Iterator[ProgressLine]:
    """Context with a progress line that shows the elapsed time, or the `time_left` if totals are known for certain."""
    out = Output(to_stderr=True)
    if not is_shown or not out.is_terminal:
        yield ProgressLine(None)
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = [TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()]
    columns += [TextColumn("left"), TimeRemainingColumn()] if time_left else [TimeElapsedColumn()]
    columns.append(TextColumn("{task.fields[note]}", markup=False))
    # In the simulated world exactly one thread runs at a time, and rich's refresh thread would take the interpreter's lock from
    # that rank. A proof runs in other processes; there the refresh thread updates the remaining time between two ticks.
    with Progress(*columns, console=out.console, transient=True, auto_refresh=time_left) as bar:
        yield ProgressLine(bar)
