"""Checks that a signal or user code has ended: their cases, which are stored, and the sentences that reports say of them."""

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
"""Beginnings of notes on an exception that has interrupted a check."""


def note_seed(interrupt: BaseException, seed: int) -> None:
    """Note the seed of the check's draws on the exception that has interrupted it."""
    interrupt.add_note(f"{_SEED}{seed}")


def note_replay(interrupt: BaseException, command: str) -> None:
    """Note how to run the case again that was interrupted."""
    interrupt.add_note(f"{_REPLAY}{command}")


def interrupted_at(label: str, interrupt: BaseException) -> str:
    """Sentences on the check of that `label`, from the notes on the exception that has interrupted it."""
    notes = [str(note) for note in getattr(interrupt, "__notes__", ())]
    seed, replay = (
        next((note.removeprefix(kind) for note in notes if note.startswith(kind)), "")
        for kind in (_SEED, _REPLAY)
    )
    return _was_at_work(label, seed, replay)


def checks_at_work(
    folder: Path, labels: Mapping[tuple[str, str], str], by: str, *, are_kept: bool = True
) -> str:
    """Sentences on the checks that run now, here or in other processes, by the records in `folder`: a line for each.

    Their cases are stored if they `are_kept`. `labels` has the checks that are meant, by the location of the subject and the name
    of the check; `by` is what ends them.
    """
    told = []
    for running in at_work(folder):
        if label := labels.get((running.location, running.check)):
            # While stored cases are replayed, nothing is drawn.
            seed = str(running.seed) if running.seed else ""
            told.append(_was_at_work(label, seed, keep_running(running, folder, by) if are_kept else ""))
    return "\n".join(told)


def keep_running(running: Running, folder: Path, by: str) -> str:
    """Store the case that runs when `by`, such as a signal, ends the process; the command that replays it, or "" where there is none."""
    if running.case is not None:
        with suppress(OSError, TypeError):
            path = keep_interrupted(running.case, running.location, running.world, by, folder)
            return running.replay_command(path)
    return ""


def _was_at_work(label: str, seed: str, replay: str) -> str:
    of_seed, of_replay = seed and f" ({_SEED}{seed})", replay and f" To {_REPLAY}{replay}"
    return f"{label} was at work{of_seed}.{of_replay}"
