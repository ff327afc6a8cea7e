"""Checks that a signal or user code has interrupted: storing their cases, and the sentences about them in reports."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from adjointlab.store.reproducer import keep_interrupted
from adjointlab.store.running_case import Running, at_work

__all__ = ["checks_at_work", "interrupted_at", "keep_running", "note_replay", "note_seed"]

_REPLAY: Final = "replay its case: "
_SEED: Final = "seed "
"""Prefixes of the notes on an exception that has interrupted a check."""


def note_seed(interrupt: BaseException, seed: int) -> None:
    """Add the seed of the check's draws to the exception that has interrupted it, as a note."""
    interrupt.add_note(f"{_SEED}{seed}")


def note_replay(interrupt: BaseException, command: str) -> None:
    """Add the command that replays the interrupted case, as a note."""
    interrupt.add_note(f"{_REPLAY}{command}")


def interrupted_at(label: str, interrupt: BaseException) -> str:
    """Return sentences on the interrupted check with that `label`, from the notes on the exception."""
    notes = [str(note) for note in getattr(interrupt, "__notes__", ())]
    seed, replay = (
        next((note.removeprefix(kind) for note in notes if note.startswith(kind)), "")
        for kind in (_SEED, _REPLAY)
    )
    return _was_at_work(label, seed, replay)


def checks_at_work(
    folder: Path, labels: Mapping[tuple[str, str], str], by: str, *, are_kept: bool = True
) -> str:
    """Return a line on each check that is running, here or in other processes, according to the records in `folder`.

    Their cases are stored if they `are_kept`. `labels` selects and names the checks, by the location of the subject and the name
    of the check; `by` is the cause that ends them.
    """
    sentences = []
    for running in at_work(folder):
        if label := labels.get((running.location, running.check)):
            # The seed is 0 during the replay of stored cases, which draws nothing.
            seed = str(running.seed) if running.seed else ""
            sentences.append(_was_at_work(label, seed, keep_running(running, folder, by) if are_kept else ""))
    return "\n".join(sentences)


def keep_running(running: Running, folder: Path, by: str) -> str:
    """Store the case that runs when `by`, such as a signal, ends the process; return the command that replays it, "" if there is no case."""
    if running.case is not None:
        with suppress(OSError, TypeError):
            path = keep_interrupted(running.case, running.location, running.world, by, folder)
            return running.replay_command(path)
    return ""


def _was_at_work(label: str, seed: str, replay: str) -> str:
    of_seed, of_replay = seed and f" ({_SEED}{seed})", replay and f" To {_REPLAY}{replay}"
    return f"{label} was at work{of_seed}.{of_replay}"
