"""The scripts beside reproducers: a stored failure, replayed with an exit code that says if it was seen again."""

from __future__ import annotations

import sys
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from adjointlab.cli.main import exit_code_of
from adjointlab.cli.replay import replayed
from adjointlab.cli.startup import collective_interrupts
from adjointlab.exit_codes import ExitCode

if TYPE_CHECKING:
    from adjointlab.engine.search import SearchResult
    from adjointlab.store.reproducer import Reproducer

__all__ = ["Reproduced", "reproduce"]


class Reproduced(IntEnum):
    """Exit code of a script."""

    NO = 0
    YES = 1
    BROKEN = 2
    """The script could not run, or the case fails in another way."""


def reproduce(script: str, subject: str) -> NoReturn:
    """Replay the JSON file beside `script`, whose subject the reference `subject` names, and exit."""

    def command() -> int:
        with collective_interrupts():
            file = Path(script).with_suffix(".json")
            stored, result = replayed(file, subject, _ranks(file))
            return _outcome(stored, result)

    code = exit_code_of(command)
    sys.exit(Reproduced.BROKEN if code == ExitCode.UNJUDGED else code)


def _ranks(file: Path) -> int | None:
    """The number of simulated ranks, where there is no launcher to decide it."""
    from adjointlab.store.reproducer import BadReproducer, read
    from adjointlab.worlds.launch import is_launched

    try:
        return None if is_launched() else read(file).case.ranks
    except BadReproducer:
        return None  # the replay says what is wrong


def _outcome(stored: Reproducer, result: SearchResult) -> Reproduced:
    from adjointlab.checks.verdict import Status
    from adjointlab.engine.simulate_first import HANGS, is_hang

    kind = result.verdict.kind
    if result.status is Status.COHERENT:
        return Reproduced.NO
    # A hang has other names in the other world, and a case that changes from run to run may fail in any way.
    is_same = (
        kind == stored.kind
        or stored.kind == "nondeterministic"
        or (is_hang(result.verdict) and stored.kind in HANGS)
    )
    return Reproduced.YES if is_same else Reproduced.BROKEN
