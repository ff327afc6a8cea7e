"""The command line: ``adjointlab demo | check | run | exhaust | list | explain | replay | info``, alone or under mpiexec.

Each command stands in a file of its own. Those files import the engine inside their functions, so that
``adjointlab --help`` needs neither Hypothesis nor an array library. How commands end: :mod:`adjointlab.exit_codes`; under
mpiexec all ranks end with the same code, and rank 0 alone prints.
"""

from __future__ import annotations

import faulthandler
import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import NoReturn

import typer

from adjointlab.cli.check import check
from adjointlab.cli.commands import Command, CommandGroup
from adjointlab.cli.configure import configure
from adjointlab.cli.demo import demo
from adjointlab.cli.exhaust import exhaust
from adjointlab.cli.explain import explain
from adjointlab.cli.held_streams import HeldStreams
from adjointlab.cli.info import info
from adjointlab.cli.list import list_subjects
from adjointlab.cli.output import Output
from adjointlab.cli.replay import replay
from adjointlab.cli.result_files import ResultFiles
from adjointlab.cli.run import run
from adjointlab.cli.startup import (
    SECONDS_FOR_OUTPUT,
    AgreedError,
    NotLoaded,
    UsageError,
    abort_all_ranks,
    agreed,
    collective_interrupts,
)
from adjointlab.exit_codes import ExitCode
from adjointlab.report.github_job import is_github, tell_github
from adjointlab.variables import SUPERVISED
from adjointlab.worlds.deadline import Deadline
from adjointlab.worlds.exit_guard import earn, install_exit_guard
from adjointlab.worlds.exit_of_c import guard_exit_of_c
from adjointlab.worlds.interrupts import ENDING, Interrupts, RepeatedInterrupt
from adjointlab.worlds.launch import is_launched, launched_rank
from adjointlab.worlds.process_end import end_despite_leftovers, ignore_late_signals, ignore_signals_at_exit

__all__ = ["app", "exit_code_of", "main"]

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Verifies that distributed forward and backward passes are adjoint. `mpiexec -n 4 adjointlab ...` does so on "
    "real ranks.",
)
app.callback()(configure)
app.command(cls=Command)(check)
# Options that follow the name of a program are that program's, also where we have one of the same name.
app.command(cls=Command, context_settings={"allow_interspersed_args": False})(run)
app.command(cls=Command)(exhaust)
app.command(cls=Command)(demo)
app.command("list", cls=Command)(list_subjects)
app.command(cls=Command)(explain)
app.command(cls=Command)(replay)
app.command(cls=Command)(info)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit; the console script, where no `arguments` are given."""
    install_exit_guard()
    is_program, folder = arguments is None, None
    if is_program:
        ignore_signals_at_exit()
    if SUPERVISED in os.environ:
        from adjointlab.store.job_log import claimed
        from adjointlab.supervisor.exit_hooks import install_exit_hooks

        if (job_log := claimed(launched_rank())) is not None:
            folder = job_log.folder
            install_exit_hooks(folder)
    elif is_program:
        guard_exit_of_c()
        with suppress(OSError, ValueError, RuntimeError):  # standard error is closed, or no file
            # A crash of user code is not silent then. (Under `adjointlab run` the hooks have done the same.)
            faulthandler.enable()
    code = _exit_code(arguments, is_program=is_program)
    if folder is not None:
        from adjointlab.supervisor.exit_hooks import record_exit_code

        record_exit_code(folder, code)
    earn(code, is_final=True)
    if is_program:
        end_despite_leftovers(code)
    raise SystemExit(code)  # not sys.exit, which user code may have replaced


def _exit_code(arguments: list[str] | None, *, is_program: bool) -> int:
    """Run the command line; return its exit code. What it prints has gone out by then."""
    interrupts: Interrupts | RepeatedInterrupt | None = None

    def command() -> int | None:
        nonlocal interrupts
        with collective_interrupts() as interrupts:
            try:
                code: int | None = app(arguments, prog_name="adjointlab", standalone_mode=False)
            except BaseException as error:
                # Also of a command line that nobody could read, whose command has not been called.
                if (text := _usage_error(error)) is None:
                    raise
                if _waited_for(error, words):
                    text = agreed(text)
                files.refuse(text)
                raise UsageError(text) from error
            return code

    words = sys.argv[1:] if arguments is None else arguments
    files = ResultFiles.named_in(words if words[:1] == ["check"] else [])
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What the user's code prints must not end the run either.
        sys.stdout.reconfigure(errors="backslashreplace")
    with HeldStreams(), ExitStack() as until_return:
        until_return.enter_context(Deadline(seconds=2.0))
        code = exit_code_of(command)
        if is_program:
            # It counts to the end of the process, which may be late too. Who calls `main` with arguments goes on afterwards.
            until_return.pop_all()
            ignore_late_signals()
        if code == ExitCode.INTERRUPTED and interrupts is not None:
            code = 128 + (interrupts.number or signal.SIGINT)
        Output().raw("")  # flushes what others have printed, and takes it calmly if nobody reads
        if HeldStreams.lost_output():
            code = code or ExitCode.UNJUDGED
        earn(code)
    return code


def exit_code_of(command: Callable[[], int | None]) -> int:
    """Run `command`; return its exit code, with every error reported once."""
    errors = Output(to_stderr=True)
    try:
        code = command() or ExitCode.COHERENT
        if code == ExitCode.INTERRUPTED:  # typer catches KeyboardInterrupt and returns this code instead
            return _interrupted(errors)
        return code
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted(errors)
    except BaseException as error:  # such as SystemExit, which user code may raise anywhere
        if (text := _usage_error(error)) is not None:
            errors.line(f"adjointlab: {text}")
            _tell_github(text)
            return ExitCode.USAGE
        _tell_failure(error)
        if is_launched():
            # Only this rank has failed. The others may be in a collective call, where they would wait for ever.
            abort_all_ranks(ExitCode.UNJUDGED)
        return ExitCode.UNJUDGED


def _waited_for(error: BaseException, words: Sequence[str]) -> bool:
    """Return True if this rank ends by an error of its own, before the other ranks' commands meet it."""
    return is_launched() and not isinstance(error, AgreedError) and bool({"check", "replay"} & set(words[:1]))


def _tell_failure(error: BaseException) -> None:
    """Tell what ends this rank, and the others with it: the import of a subject that does not end, or a fault of the lab's own."""
    if rank := launched_rank():
        # Where all have failed alike, rank 0 ends this one before it says so once more.
        time.sleep(2 * SECONDS_FOR_OUTPUT)
    errors = Output(to_stderr=True, from_any_rank=True)
    where = f" on rank {rank}:" if rank else ""
    if isinstance(error, NotLoaded):
        errors.line(f"adjointlab:{where} {error}")
        _tell_github(str(error))
    else:
        errors.raw((f"adjointlab:{where}\n" if rank else "") + traceback.format_exc())
        _tell_github(repr(error), traceback.format_exc())


def _tell_github(message: str, *evidence: str) -> None:
    """In a job of GitHub Actions, tell what has ended a command before it had results."""
    if is_github(os.environ) and launched_rank() == 0:
        tell_github(Output(to_stderr=True).line, "", [(message, *evidence)])


def _interrupted(errors: Output) -> int:
    # A Ctrl-C of the terminal reaches the ranks twice under mpiexec, which passes it on. The second one must not kill a rank
    # that is on its way out in good order, for mpiexec would report the signal instead of this exit code.
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    errors.line("interrupted")
    return ExitCode.INTERRUPTED


def _usage_error(error: BaseException) -> str | None:
    """Return the message of an error that the user can mend; `None` for any other."""
    if isinstance(error, UsageError):
        return str(error)
    # click's ClickException and typer's own copy of it (some releases of typer bring click along, so the two are different classes).
    # User code may have exceptions with a method of that name, which may do anything.
    if type(error).__module__.partition(".")[0] in {"click", "typer"} and hasattr(error, "format_message"):
        return str(error.format_message())
    # Whoever raised a SubjectError has imported it. --help has not, nor has a command whose imports have failed.
    if not isinstance(error, getattr(sys.modules.get("adjointlab.core.declaration"), "SubjectError", ())):
        return None
    from adjointlab.worlds.exception_text import message_of

    return message_of(error)
