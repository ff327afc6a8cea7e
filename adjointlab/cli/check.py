"""``adjointlab check``: draw cases for every check of the subjects, judge them, and store what fails."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from adjointlab import options
from adjointlab.cli.check_report import CheckReport
from adjointlab.cli.check_run import CHECKS_FOR_A_PROCESS, CheckRun
from adjointlab.cli.device import usable_device
from adjointlab.cli.held_streams import prints_on_stderr
from adjointlab.cli.loading import loading_shown
from adjointlab.cli.output import Output
from adjointlab.cli.parameters import (
    Cases,
    Colour,
    Device,
    Folder,
    Html,
    Junit,
    MaxTime,
    Quiet,
    Ranks,
    Schedules,
    Seed,
    Shard,
    Strict,
    Subjects,
    Verbose,
    Watchdog,
    Xfails,
    is_configured,
    option_of,
)
from adjointlab.cli.result_files import ResultFiles, folder_of_failures
from adjointlab.cli.run_record import RunRecord
from adjointlab.cli.selection import selected
from adjointlab.cli.startup import UsageError, opened_world, or_usage_error
from adjointlab.cores import cores
from adjointlab.variables import SUPERVISED
from adjointlab.worlds.exit_guard import before_forced_end
from adjointlab.worlds.launch import is_launched

if TYPE_CHECKING:
    from adjointlab.cli.selection import Plan
    from adjointlab.store.known_failures import KnownFailures

__all__ = ["check"]


def check(
    context: typer.Context,
    subjects: Subjects = None,
    cases: Cases = options.CASES.default,
    seed: Seed = None,
    ranks: Ranks = None,
    schedules: Schedules = options.SCHEDULES.default,
    checks: Annotated[
        list[str] | None,
        typer.Option("--check", metavar="NAME", help="Run only this check. May be repeated."),
    ] = None,
    device: Device = options.DEVICE.default,
    strict: Strict = False,
    watchdog: Watchdog = None,
    xfails: Xfails = None,
    folder: Folder = options.FOLDER.default,
    json_to: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Write the verdicts as JSON; with -, to standard output, and all else to standard error.",
        ),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    _color: Colour = "auto",
    max_time: MaxTime = None,
    shard: Shard = None,
    junit: Junit = None,
    html: Html = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes that run the checks, with simulated ranks. Default: one for each core, but at most one for every "
            f"{CHECKS_FOR_A_PROCESS} checks of {options.CASES.default} cases; one under `adjointlab run`.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Check subjects: draw cases, judge them, shrink what fails."""
    from adjointlab.cli.parallel import CheckProcesses
    from adjointlab.cli.parallel_messages import Setup, Surroundings

    # Made absolute first, because the user's code may change the directory.
    surroundings = Surroundings.now()
    folder = folder_of_failures(folder, option_of(context, "folder"))
    files = ResultFiles.checked(json=json_to, junit=junit, html=html, html_option=option_of(context, "html"))
    names, only = tuple(subjects or ()), None if checks is None else tuple(checks)

    def load() -> tuple[Plan, KnownFailures | None]:
        with loading_shown(is_shown=not quiet):
            from adjointlab.store.known_failures import read

            usable_device(device)
            plan = selected(subjects or [], checks)
            try:
                return plan, None if xfails is None else read(xfails)
            except ValueError as problem:
                raise UsageError(f"{option_of(context, 'xfails')}: {problem}") from None

    # Ranks configured in pyproject.toml are an upper limit: a launcher may have started fewer.
    least = None if is_launched() and is_configured(context, "ranks") else ranks
    with ExitStack() as stack:
        stack.enter_context(prints_on_stderr(is_wanted=files.leave_stdout))
        processes = stack.enter_context(CheckProcesses(surroundings, jobs or cores(), cores()))
        if _are_surely_several(jobs, cases, is_everything=not (names or only or shard)):
            processes.start_one()
        with files.until_loaded(ranks):
            # Imported only here, because these import the engine, which the process started above imports at the same time.
            from adjointlab.engine.search_result import Budget
            from adjointlab.replaying import say_not_replayed
            from adjointlab.store.job_log import supervised

            if jobs is not None and jobs > 1:
                _refuse_jobs()
            part = _parsed_shard("1/1" if shard is None else shard)
            budget = or_usage_error(lambda: Budget(cases, ranks, seed, schedules=schedules, device=device))
            setup = Setup(surroundings, names, only, budget, watchdog, folder)
            processes.prepare(setup)
            world, ((whole, nameless), known) = stack.enter_context(
                opened_world(load, least, strict=strict, watchdog=watchdog, listed=_checks_by_name)
            )
        say_not_replayed(world, folder, [found.subject for found, _ in whole])
        report = CheckReport(
            Output(to_stderr=files.leave_stdout),
            whole[part],
            cases,
            surroundings.folder,
            quiet,
            verbose,
        )
        listed = {(found.subject.label, name) for found, name in whole}
        unused = [str(each.position) for each in known.unused(listed)] if known else []
        record = RunRecord(world, nameless, known, unused, report, files, shard or "")
        run = CheckRun(record, setup, processes, jobs)
        if (
            supervised() is None
        ):  # a supervised job is restarted instead, and the supervisor reports the results
            stack.enter_context(before_forced_end(run.end_by_user_code))
        return run.to_end(max_time)


def _checks_by_name(loaded: tuple[Plan, KnownFailures | None]) -> list[str]:
    (plan, _), _ = loaded
    # By its name rather than its label, which depends on the other subjects of the module.
    return [f"{found.subject.name} {name} ({found.reference})" for found, name in plan]


def _are_surely_several(jobs: int | None, cases: int, *, is_everything: bool) -> bool:
    """Return True if the checks will run in several processes whatever they are: all installed subjects are checked, or --jobs says so."""
    # A supervised job runs its checks in one process. To find out which process is the job would require importing the engine.
    if is_launched() or SUPERVISED in os.environ:
        return False
    if jobs is not None:
        return jobs > 1
    return is_everything and cores() > 1 and cases >= options.CASES.default


def _refuse_jobs() -> None:
    """Raise :class:`UsageError` if the checks cannot run in several processes."""
    from adjointlab.store.job_log import supervised

    if is_launched():
        raise UsageError("--jobs: under a launcher the ranks run every check together; leave it out")
    if supervised() is not None:
        raise UsageError(
            "--jobs: adjointlab run supervises one process, or the ranks of one job; leave it out"
        )


def _parsed_shard(text: str) -> slice:
    """Parse K/N, a part of a plan: every N-th check, from the K-th. Raises :class:`UsageError` for any other text."""
    number, _, of = text.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise UsageError(f"--shard: {text!r} is not K/N with K from 1 to N, such as 2/4")
    return slice(int(number) - 1, None, int(of))
