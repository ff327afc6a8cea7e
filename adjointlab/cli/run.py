"""``adjointlab run``: supervises a test session or a check from another process."""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from adjointlab.cli.output import Output
from adjointlab.cli.parameters import FolderOfSupervision, Shrinking
from adjointlab.cli.startup import UsageError
from adjointlab.options import FOLDER, SHRINKING
from adjointlab.quantities import counted
from adjointlab.store.files import why_unusable
from adjointlab.worlds.launch import is_launched

if TYPE_CHECKING:
    from adjointlab.supervisor.launcher import Launcher

__all__ = ["run"]


def run(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND...", help="pytest ..., or adjointlab check ...", show_default=False
        ),
    ],
    ranks: Annotated[
        int | None,
        typer.Option(
            "-n",
            min=1,
            help="Start this many ranks. Default: one process, without a launcher.",
            show_default=False,
        ),
    ] = None,
    launcher: Annotated[
        str | None,
        typer.Option(
            metavar="'PROGRAM FLAGS'",
            help="What starts ranks: an mpiexec, or torchrun. Default: the mpiexec beside this Python, else on PATH.",
        ),
    ] = None,
    patience: Annotated[
        float,
        typer.Option(
            min=0.1,
            help="Seconds without progress after which a case counts as stuck; outside cases ten times as long.",
        ),
    ] = 60.0,
    shrinking: Shrinking = SHRINKING.default,
    folder: FolderOfSupervision = FOLDER.default,
) -> int:
    """Supervise pytest or adjointlab check. When a rank dies or the job hangs, record the case and go on after it."""
    from adjointlab.supervisor.launcher import find_program
    from adjointlab.supervisor.supervise import SupervisedCommand, supervise

    if is_launched():
        raise UsageError("run starts the launcher itself; run it without")
    if launcher is not None and ranks is None:
        raise UsageError("--launcher: say how many ranks it is to start, with -n")
    program = find_program(command[0])
    if program is None:
        raise UsageError(f"there is no program {command[0]}, beside {sys.executable} or on PATH")
    if problem := why_unusable(folder):
        raise UsageError(f"--folder: {problem}")
    # Standard output belongs to the supervised command, which may print JSON.
    out = Output(to_stderr=True)

    def log(text: str) -> None:
        out.line("adjointlab run: " + text.replace("\n", "\n" + " " * 16))

    chosen = None
    if ranks is not None:
        chosen = _launcher(launcher, ranks)
        log(f"{counted(ranks, 'rank')} by {chosen}")
    return supervise(
        SupervisedCommand(
            command=(program, *command[1:]),
            ranks=ranks or 1,
            launcher=chosen,
            patience=patience,
            shrinking=shrinking,
            seed=secrets.randbits(32),
            folder=folder,
        ),
        log,
    )


def _launcher(given: str | None, ranks: int) -> Launcher:
    """Find the launcher and check that it belongs to the MPI library that mpi4py uses, unless it is torchrun."""
    from adjointlab.supervisor.launcher import (
        NoLauncher,
        Vendor,
        find_launcher,
        fits,
        library_of_mpi4py,
        prepared,
    )

    try:
        chosen = prepared(find_launcher(given), ranks)
        if chosen.vendor is Vendor.TORCH:
            return chosen
        library = library_of_mpi4py()
    except NoLauncher as problem:
        raise UsageError(str(problem)) from None
    if not fits(chosen, library):
        raise UsageError(
            f"{chosen.path} belongs to {chosen.vendor}, but mpi4py of {sys.executable} uses {library}, so every "
            f"rank would think that it is alone; name the launcher of {library} with --launcher"
        )
    return chosen
