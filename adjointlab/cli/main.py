"""The command line: ``adjointlab demo | check | run | exhaust | list | explain | replay | info``, alone or under mpiexec.

Each command has its own file. These files import the engine inside their functions, so that ``adjointlab --help``
needs neither Hypothesis nor an array library. :mod:`adjointlab.exit_codes` lists the exit codes; under mpiexec all
ranks end with the same code, and only rank 0 prints.
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
# Options after the name of the program belong to the program, even if `run` has an option of the same name.
app.command(cls=Command, context_settings={"allow_interspersed_args": False})(run)
app.command(cls=Command)(exhaust)
app.command(cls=Command)(demo)
app.command("list", cls=Command)(list_subjects)
app.command(cls=Command)(explain)
app.command(cls=Command)(replay)
app.command(cls=Command)(info)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit. Without `arguments`, this is the console script."""
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
        with suppress(OSError, ValueError, RuntimeError):  # standard error is closed, or has no descriptor
            # So that a crash of user code prints a stack. (Under `adjointlab run` the hooks enable it.)
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
    """Run the command line and flush its output; return its exit code."""
    interrupts: Interrupts | RepeatedInterrupt | None = None

    def command() -> int | None:
        nonlocal interrupts
        with collective_interrupts() as interrupts:
            try:
                code: int | None = app(arguments, prog_name="adjointlab", standalone_mode=False)
            except BaseException as error:
                # This also handles a command line that could not be parsed, whose command has not been called.
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
        # Characters that user code prints must not end the run with an encoding error either.
        sys.stdout.reconfigure(errors="backslashreplace")
    with HeldStreams(), ExitStack() as until_return:
        until_return.enter_context(Deadline(seconds=2.0))
        code = exit_code_of(command)
        if is_program:
            # The deadline stays in force until the process ends, which may take long too. A caller that passes arguments goes on
            # afterwards, without it.
            until_return.pop_all()
            ignore_late_signals()
        if code == ExitCode.INTERRUPTED and interrupts is not None:
            code = 128 + (interrupts.number or signal.SIGINT)
        Output().raw("")  # flushes the output of other code, without an error if the reader is gone
        if HeldStreams.lost_output():
            code = code or ExitCode.UNJUDGED
        earn(code)
    return code


def exit_code_of(command: Callable[[], int | None]) -> int:
    """Run `command` and return its exit code; report an error once."""
    errors = Output(to_stderr=True)
    try:
        code = command() or ExitCode.COHERENT
        if code == ExitCode.INTERRUPTED:  # typer catches KeyboardInterrupt and returns this code instead
            return _interrupted(errors)
        return code
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted(errors)
    except BaseException as error:  # includes SystemExit, which user code may raise anywhere
        if (text := _usage_error(error)) is not None:
            errors.line(f"adjointlab: {text}")
            _tell_github(text)
            return ExitCode.USAGE
        _tell_failure(error)
        if is_launched():
            # Only this rank has failed. The others may be in a collective call, where they would wait forever.
            abort_all_ranks(ExitCode.UNJUDGED)
        return ExitCode.UNJUDGED


def _waited_for(error: BaseException, words: Sequence[str]) -> bool:
    """Return True if this rank fails before the ranks have agreed on their preparation, so that the others wait for it."""
    return is_launched() and not isinstance(error, AgreedError) and bool({"check", "replay"} & set(words[:1]))


def _tell_failure(error: BaseException) -> None:
    """Print the error that ends this rank and so the job: an import that does not return, or a bug of the lab."""
    if rank := launched_rank():
        # If all ranks have failed alike, rank 0 ends this one before it repeats the message.
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
    """In a job of GitHub Actions, report the error that ended a command before it had results."""
    if is_github(os.environ) and launched_rank() == 0:
        tell_github(Output(to_stderr=True).line, "", [(message, *evidence)])


def _interrupted(errors: Output) -> int:
    # Under mpiexec, which passes signals on, a Ctrl-C of the terminal reaches the ranks twice. The second one must not kill a rank
    # that is exiting, because mpiexec would then report the signal instead of this exit code.
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    errors.line("interrupted")
    return ExitCode.INTERRUPTED


def _usage_error(error: BaseException) -> str | None:
    """Return the message of an error that the user can correct; `None` for any other error."""
    if isinstance(error, UsageError):
        return str(error)
    # click's ClickException, or typer's copy of it: some releases of typer vendor click, so the two are different classes.
    # The module is checked first, because an exception of user code may have a method of that name, which may do anything.
    if type(error).__module__.partition(".")[0] in {"click", "typer"} and hasattr(error, "format_message"):
        return str(error.format_message())
    # Looked up rather than imported: code that raises a SubjectError has imported it, but --help has not, nor has a command whose
    # imports have failed.
    if not isinstance(error, getattr(sys.modules.get("adjointlab.core.declaration"), "SubjectError", ())):
        return None
    from adjointlab.worlds.exception_text import message_of

    return message_of(error)
