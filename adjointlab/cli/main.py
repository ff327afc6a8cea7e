"""The command line: ``adjointlab check | run | exhaust | list | explain | replay``, alone or under mpiexec.

Exit codes: 0 coherent, 1 incoherent, 2 usage or a bad file, 3 could not be judged (a crash, a hang), 75 start
it again to go on (MPI has no communicators left; `adjointlab run` does so), 130 Ctrl-C.
Under mpiexec all ranks end with the same one, and rank 0 alone prints.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console

from adjointlab.worlds.interrupts import Interrupts
from adjointlab.worlds.launch import is_launched, launched_rank, open_world
from adjointlab.worlds.watchdog import Watchdog

if TYPE_CHECKING:
    from adjointlab.engine.discovery import Found
    from adjointlab.session import CheckResult
    from adjointlab.store.known_failures import KnownFailures
    from adjointlab.store.reproducer import Stored
    from adjointlab.worlds.world import World

__all__ = ["app", "main"]

USAGE, UNJUDGED, EXHAUSTED, INTERRUPTED = 2, 3, 75, 130

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Verifies that distributed forward and backward passes are adjoint. `mpiexec -n 4 adjointlab ...` does so on "
    "real ranks.",
)

Subjects = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SUBJECT]...",
        help="package.module:name, path/to/file.py:name, or the name of an installed subject. Default: all installed.",
        show_default=False,
    ),
]
Ranks = Annotated[
    int | None,
    typer.Option("--ranks", min=1, help="Largest number of ranks. Default: 8, or those of mpiexec."),
]


Strict = Annotated[
    bool,
    typer.Option(
        "--strict", help="Under MPI, compare every blocking collective of all ranks before it is carried out."
    ),
]
Limit = Annotated[
    float | None,
    typer.Option(
        "--watchdog",
        min=0.1,
        help="Seconds after which a case that has not ended is ended. Default: 30; less once one has hung.",
        show_default=False,
    ),
]


class _Usage(Exception):
    """The command cannot be carried out as it was given."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """The console script."""
    if "ADJOINTLAB_SUPERVISED" in os.environ:
        from adjointlab.store.job_log import supervised
        from adjointlab.supervisor.exit_hooks import install_exit_hooks

        if (job_log := supervised()) is not None:
            install_exit_hooks(job_log.folder)

    def command() -> Any:
        with _interrupts():
            return app(arguments, prog_name="adjointlab", standalone_mode=False)

    code = _guarded(command)
    sys.stdout.flush()
    sys.exit(code)


@app.command()
def check(
    subjects: Subjects = None,
    cases: Annotated[int, typer.Option(min=1, help="Cases to draw for each check.")] = 100,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the draws. Default: a fresh one, which is printed.")
    ] = None,
    ranks: Ranks = None,
    schedules: Annotated[
        int, typer.Option(min=1, help="Legal interleavings to run each case under, with simulated ranks.")
    ] = 1,
    checks: Annotated[
        list[str] | None, typer.Option("--check", metavar="NAME", help="Only this check. May be repeated.")
    ] = None,
    strict: Strict = False,
    watchdog: Limit = None,
    xfails: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Known failures, a line each: SUBJECT CHECK  # why. They do not fail the run, unless they are mended.",
            show_default=False,
        ),
    ] = None,
    folder: Annotated[Path, typer.Option(help="Where failures are stored.")] = Path(".adjointlab"),
    json_to: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write the verdicts as JSON; - is standard output."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print failures only.")] = False,
) -> int:
    """Check subjects: draw cases, judge them, shrink what fails."""
    from adjointlab.engine.discovery import find
    from adjointlab.engine.search import Budget
    from adjointlab.report import as_data, blind_spots, failure_text, outcome, summary, verdict_table
    from adjointlab.session import run_check
    from adjointlab.store.job_log import supervised

    def prepare() -> tuple[list[tuple[Found, str]], KnownFailures]:
        return _plan(find(subjects or []), checks), _known_failures(xfails)

    out = _Output(to_stderr=json_to == "-")
    if json_to not in (None, "-") and not Path(json_to).resolve().parent.is_dir():
        raise _Usage(f"--json: the folder of {json_to} does not exist")
    with _stage(ranks, prepare, strict, watchdog) as (world, (plan, known)):
        results: list[CheckResult] = []
        told = 0

        def save(code: int, *, complete: bool) -> None:
            if json_to is not None and world.is_leader:
                _write_json(json_to, as_data(results, world.name, world.ranks, code, complete=complete))

        with _progress(out, world, quiet) as (watch, tell), _until_ended() as ended:
            for number, (found, name) in enumerate(plan):
                tick = watch(f"[{number + 1}/{len(plan)}] {found.subject.name} {name}", cases)
                budget = Budget(cases, ranks, seed, schedules=schedules)
                listed = known.of_check(found.subject.name, name)
                one = run_check(world, found, name, budget, folder, tick)
                results.append(one if listed is None else replace(one, known=str(listed)))
                # What is found is told and saved at once: the next case may end the process. A supervised job is started
                # again, and finds what it knew.
                if supervised() is None and len(results) < len(plan):
                    tell(failure_text(results[-1]))
                    told = len(results)
                    if json_to != "-":
                        save(UNJUDGED, complete=False)
        code = ended.code or outcome(results)
        if world.is_leader:
            for text in filter(None, map(failure_text, results[told:])):
                out.line(f"{text}\n")
            if not quiet:
                out.table(verdict_table(results))
                out.line("")
                if note := blind_spots(results):
                    out.line(f"{note}\n")
                for line in known.unused({(found.subject.name, name) for found, name in plan}):
                    out.line(f"{line.place}: nothing of the kind was checked")
                out.line(f"{summary(results)}, {_in(world)}")
        if results or not ended.code:
            save(code, complete=not ended.code)
        if ended.code:
            out.line(f"{len(results)} of {len(plan)} are done. {ended.why}".rstrip())
        if ended.code == INTERRUPTED:
            raise KeyboardInterrupt
        return code


@app.command()
def exhaust(
    subjects: Subjects = None,
    bounds: Annotated[
        list[str] | None,
        typer.Option(
            "--bound",
            metavar="NAME=N",
            help="Change a bound, such as ranks=3 or side=2. May be repeated. The table shows those that there are.",
        ),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes. Default: one for each core.")] = None,
    folder: Annotated[Path, typer.Option(help="Where failures are stored.")] = Path(".adjointlab"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print failures only.")] = False,
) -> int:
    """Prove every small case: all cases within a bound instead of drawn ones, each by its whole matrices."""
    from adjointlab.engine.discovery import find
    from adjointlab.engine.exhaust import bound_of, exhaust
    from adjointlab.report import exit_code, failure_text, proof_summary, proof_table
    from adjointlab.session import kept

    if is_launched():
        raise _Usage("exhaust uses simulated ranks in processes of its own; run it without mpiexec")
    found = _usable(lambda: find(subjects or []))
    if not subjects:
        found = [entry for entry in found if entry.subject.every is not None]
    given = dict(_bound(text) for text in bounds or ())
    plan = _usable(lambda: [(entry, bound_of(entry.subject, given)) for entry in found])
    if unknown := [name for name in given if all(name not in bound for _, bound in plan)]:
        legal = sorted({name for _, bound in plan for name in bound})
        raise _Usage(f"--bound: {unknown[0]} is not one of {', '.join(legal)}")
    out = _Output()
    results: list[CheckResult] = []
    try:
        with _proving(quiet) as watch:
            for number, (entry, bound) in enumerate(plan):
                tick = watch(f"[{number + 1}/{len(plan)}] {entry.subject.name}")
                report = exhaust(entry.subject, entry.reference, bound, jobs, tick)
                results.append(kept(entry, report, folder))
    finally:
        # What is done is told, whatever has ended the run.
        if not quiet:
            out.table(proof_table(results, [bound for _, bound in plan[: len(results)]]))
            out.line("")
        for text in filter(None, map(failure_text, results)):
            out.line(f"{text}\n")
        if not quiet:
            out.line(proof_summary(results))
        if len(results) < len(plan):
            out.line(f"{len(results)} of {len(plan)} subjects are done.")
    return exit_code(entry.status for entry in results)


@dataclass
class _Ended:
    """Why a run has ended before it was done, and the exit code for that; 0 if it has not."""

    code: int = 0
    why: str = ""


@contextmanager
def _until_ended() -> Iterator[_Ended]:
    """Filled when it is over, if what ended it leaves something to tell."""
    from adjointlab.worlds.world import Exhausted

    ended = _Ended()
    try:
        yield ended
    except Exhausted as problem:
        ended.code, ended.why = EXHAUSTED, str(problem)
    except KeyboardInterrupt:
        ended.code = INTERRUPTED


def _bound(text: str) -> tuple[str, int]:
    name, equals, number = text.partition("=")
    if not equals or not number.strip().isdecimal():
        raise _Usage(f"--bound: {text!r} is not NAME=N, such as ranks=3")
    return name.strip(), int(number)


@app.command(context_settings={"allow_interspersed_args": False})
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
            "-n", min=1, help="Start so many ranks. Default: one process, without MPI.", show_default=False
        ),
    ] = None,
    launcher: Annotated[
        str | None,
        typer.Option(
            metavar="'PROGRAM FLAGS'",
            help="What starts ranks. Default: the mpiexec beside this Python, else on PATH.",
        ),
    ] = None,
    patience: Annotated[
        float,
        typer.Option(
            min=0.1,
            help="Seconds without progress after which a case counts as stuck; what is no case gets ten times as long.",
        ),
    ] = 60.0,
    shrinking: Annotated[
        float, typer.Option(min=0.0, help="Seconds for making the case smaller that ended a job.")
    ] = 60.0,
    folder: Annotated[Path, typer.Option(help="Where the supervisor keeps its own while it runs.")] = Path(
        ".adjointlab"
    ),
) -> int:
    """Supervise pytest or adjointlab check: when a rank dies or nothing moves, record the case and go on after it."""
    import secrets

    from adjointlab.supervisor.launcher import (
        NoLauncher,
        find_launcher,
        find_program,
        fits,
        library_of_mpi4py,
        prepared,
    )
    from adjointlab.supervisor.supervise import Plan, supervise

    if is_launched():
        raise _Usage("run starts mpiexec itself; run it without")
    if launcher is not None and ranks is None:
        raise _Usage("--launcher: say how many ranks it is to start, with -n")
    program = find_program(command[0])
    if program is None:
        raise _Usage(f"there is no program {command[0]}, beside {sys.executable} or on PATH")
    out = _Output(to_stderr=True)

    def tell(text: str) -> None:
        out.line("adjointlab run: " + text.replace("\n", "\n" + " " * 16))

    chosen = None
    if ranks is not None:
        try:
            chosen = prepared(find_launcher(launcher), ranks)
            library = library_of_mpi4py()
        except NoLauncher as problem:
            raise _Usage(str(problem)) from None
        if not fits(chosen, library):
            raise _Usage(
                f"{chosen.path} belongs to {chosen.vendor}, but mpi4py of {sys.executable} uses {library}, so every "
                f"rank would think that it is alone; name the launcher of {library} with --launcher"
            )
        tell(f"{ranks} {'rank' if ranks == 1 else 'ranks'} by {chosen}")
    words = (program, *command[1:])
    return supervise(Plan(words, ranks or 1, chosen, patience, shrinking, secrets.randbits(32), folder), tell)


@app.command("list")
def list_(subjects: Subjects = None) -> int:
    """List subjects, their checks, and where they are declared."""
    from rich.table import Table

    from adjointlab.engine.discovery import find
    from adjointlab.engine.run_case import checks_of

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Subject", no_wrap=True)
    table.add_column("Reference", no_wrap=True)
    table.add_column("Checks")
    for found in _usable(lambda: find(subjects or [])):
        table.add_row(found.subject.name, found.reference, ", ".join(checks_of(found.subject)))
    _Output().table(table)
    return 0


@app.command()
def explain(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="The subject, as for check.")],
    ranks: Annotated[int, typer.Option(min=1, help="Ranks of the small case that is explained.")] = 2,
) -> int:
    """Print an operator's program and its adjoint in the papers' notation, for a small case."""
    from adjointlab.engine.discovery import find
    from adjointlab.engine.explain import explained

    out = _Output()
    texts = _usable(lambda: [explained(found.subject, ranks) for found in find([subject])])
    out.line("\n\n".join(texts))
    return 0


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A reproducer that a failure has left.")],
    subject: Annotated[
        str | None, typer.Option(help="Where its subject is, if it is not installed; as for check.")
    ] = None,
    ranks: Ranks = None,
    strict: Strict = False,
    watchdog: Limit = None,
) -> int:
    """Run a stored failure again: exit code 1 (or 3 for a crash or hang) while it fails, 0 when it is mended."""
    from adjointlab import session
    from adjointlab.checks.verdict import Status
    from adjointlab.report import exit_code, failure_text
    from adjointlab.store.reproducer import Written, read

    def prepare() -> tuple[Stored, Found]:
        stored = read(file)
        if ranks is not None and ranks < stored.case.ranks:
            raise _Usage(f"{file}: the case needs {stored.case.ranks} ranks; --ranks {ranks} are too few")
        return stored, _subject_of(stored, subject, file)

    out = _Output()
    with _stage(ranks, prepare, strict, watchdog) as (world, (stored, found)):
        if stored.case.ranks > world.ranks:
            count = stored.case.ranks
            raise _Usage(
                f"{file}: the case needs {count} ranks; run mpiexec -n {count} adjointlab replay, or without mpiexec "
                f"--ranks {count}"
            )
        report = session.replay(world, found.subject, stored.case)
        entry = session.CheckResult(found, report, Written(file, file.with_suffix(".py")), replayed=file)
        if report.status is Status.COHERENT:
            out.line(f"{report.subject}: {report.check} is coherent on this case now, {_in(world)}")
            out.line(f"  was   {stored.headline}")
        else:
            out.line(failure_text(entry))
            if report.verdict.kind != stored.kind:
                out.line(f"  was another failure when it was stored: {stored.headline}")
        return exit_code([report.status])


def _plan(found: list[Found], only: list[str] | None) -> list[tuple[Found, str]]:
    """Which subject is put to which check."""
    from adjointlab.engine.run_case import check_named, checks_of

    for name in only or ():
        check_named(name)
    plan = [
        (entry, name) for entry in found for name in checks_of(entry.subject) if only is None or name in only
    ]
    if not plan:
        raise _Usage(
            f"--check: none of the subjects has the check {', '.join(only or ())}; see adjointlab list"
        )
    return plan


def _known_failures(file: Path | None) -> KnownFailures:
    from adjointlab.store.known_failures import KnownFailures, read

    return KnownFailures({}, {}) if file is None else read(file)


def _subject_of(stored: Stored, reference: str | None, file: Path) -> Found:
    """The subject of a reproducer. What the file says of it is a name: nothing is imported on the file's word."""
    from adjointlab.engine.discovery import find, installed

    candidates = installed() if reference is None else find([reference])
    named = [entry for entry in candidates if entry.subject.name == stored.subject]
    named = [entry for entry in named if entry.subject.location == stored.location] or named
    if len(named) == 1:
        return named[0]
    where = f"--subject {reference}" if reference else "what is installed"
    if named:
        problem = f"{where} has several of that name: {', '.join(entry.reference for entry in named)}"
    else:
        present = ", ".join(dict.fromkeys(entry.subject.name for entry in candidates))
        problem = f"{where} has no such subject" + (f", but {present}" if present else "")
    raise _Usage(
        f"{file} is about {stored.subject}, declared in {stored.location}; {problem}; "
        "name it with --subject package.module:name or --subject path/to/file.py:name"
    )


# Ranks that agree


@contextmanager
def _stage(
    ranks: int | None, prepare: Callable[[], Any], strict: bool = False, watchdog: float | None = None
) -> Iterator[tuple[World, Any]]:
    """The world and what `prepare` makes, on all ranks; or an end that is the same on all.

    `prepare` runs before there is a world: it reads files and imports modules, which may fail on one rank only.
    """
    prepared, problem = _attempted_by_all(prepare, ranks or 1) if is_launched() else _attempted(prepare)
    if problem:
        raise _Usage(problem)
    world = open_world(ranks=ranks or 8, strict=strict, watchdog=Watchdog(watchdog))
    yield world, prepared
    # Not after an exception: then the ranks may not be of one mind, and what the world holds ends with the process.
    world.close()


@contextmanager
def _interrupts() -> Iterator[None]:
    """Under mpiexec Ctrl-C waits until the ranks can end together: where the world or :func:`_stage` lets it through."""
    if not is_launched():
        yield
        return
    with Interrupts() as interrupts:
        try:
            yield
        finally:
            if interrupts.is_forced:
                # The others may wait for this one.
                _abort(INTERRUPTED)


def _attempted_by_all(prepare: Callable[[], Any], ranks: int) -> tuple[Any, str]:
    """What `prepare` makes, or the problem that some rank has; an interrupt of one rank is one of all."""
    from adjointlab.worlds.mpi.rendezvous import Assembly

    assembly = Assembly()
    prepared, problem, interrupted = None, "", False
    with Interrupts() as interrupts:
        try:
            interrupts.allow()
            prepared, problem = _attempted(prepare)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            interrupts.hold()
    seen = assembly.meet("ready", (problem, interrupted))
    if any(interrupted for _, interrupted in seen):
        raise KeyboardInterrupt
    if assembly.size < ranks:
        return None, f"--ranks: {ranks} are asked for, but mpiexec has started {assembly.size}"
    problems = [text for text, _ in seen]
    if not problems[0]:
        return prepared, next((f"on rank {rank}: {text}" for rank, text in enumerate(problems) if text), "")
    return None, problems[0]


def _abort(code: int) -> None:
    """End all ranks at once."""
    sys.stderr.flush()
    from mpi4py import MPI

    MPI.COMM_WORLD.Abort(code)


def _attempted(prepare: Callable[[], Any]) -> tuple[Any, str]:
    from adjointlab.engine.subject import SubjectError

    try:
        return prepare(), ""
    except (_Usage, ValueError, SubjectError) as error:
        # BadReproducer and NotFound are ValueErrors.
        return None, str(error)


def _usable(make: Callable[[], Any]) -> Any:
    value, problem = _attempted(make)
    if problem:
        raise _Usage(problem)
    return value


def _guarded(run: Callable[[], Any]) -> int:
    """Run a command; its exit code, with all that can go wrong told once."""
    from adjointlab.engine.subject import SubjectError

    errors = _Output(to_stderr=True)
    try:
        code = int(run() or 0)
        if code == INTERRUPTED:  # typer has turned the exception into a code
            errors.line("interrupted")
        return code
    except KeyboardInterrupt:
        errors.line("interrupted")
        return INTERRUPTED
    except (_Usage, SubjectError) as error:
        errors.line(f"adjointlab: {error}")
        return USAGE
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's own, whichever click it has inside
            errors.line(f"adjointlab: {error.format_message()}")
            return USAGE
        if type(error).__name__ == "Abort":
            return INTERRUPTED
        traceback.print_exc()
        if is_launched():
            # The other ranks may wait for this one.
            _abort(UNJUDGED)
        return UNJUDGED


def _in(world: World) -> str:
    ranks = "rank" if world.ranks == 1 else "ranks"
    return (
        f"{world.ranks} simulated {ranks}"
        if world.name == "simulated"
        else f"{world.ranks} {ranks} under MPI"
    )


# What is printed


@dataclass(frozen=True)
class _Output:
    """Prints, on the first rank only."""

    to_stderr: bool = False

    @property
    def console(self) -> Console:
        stream = sys.stderr if self.to_stderr else sys.stdout
        # What goes to a file is not squeezed into the 80 columns of a terminal that is not there.
        return Console(file=stream, width=None if stream.isatty() else 160, quiet=launched_rank() != 0)

    def line(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def table(self, table: Any) -> None:
        self.console.print(table)


@contextmanager
def _progress(
    out: _Output, world: World, quiet: bool
) -> Iterator[tuple[Callable[[str, int], Callable[[int], None]], Callable[[str], None]]]:
    """Makes, for each piece of work, the function that moves the progress line, which is on a terminal only; and a
    function that prints a text meanwhile.
    """

    def tell(text: str) -> None:
        if text:
            out.line(f"{text}\n")

    console = _Output(to_stderr=True).console
    if quiet or not world.is_leader or not console.is_terminal:
        yield lambda label, total: lambda tried: None, tell
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    # No thread of its own: the simulated world decides who runs.
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("")
        shown = 0.0

        def watch(label: str, total: int) -> Callable[[int], None]:
            bar.update(task, description=label, total=total, completed=0)

            def tick(tried: int) -> None:
                nonlocal shown
                bar.update(task, completed=tried)
                if time.monotonic() - shown > 0.1:
                    shown = time.monotonic()
                    bar.refresh()

            return tick

        def tell_above(text: str) -> None:
            bar.stop()
            tell(text)
            bar.start()

        yield watch, tell_above


@contextmanager
def _proving(quiet: bool) -> Iterator[Callable[[str], Callable[[int, int], None]]]:
    """Makes, for each subject, the function that moves the progress line with the time left; on a terminal only."""
    console = _Output(to_stderr=True).console
    if quiet or not console.is_terminal:
        yield lambda label: lambda done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:

        def watch(label: str) -> Callable[[int, int], None]:
            # A task of its own, so that the time left is estimated from this subject's cases.
            for task in bar.task_ids:
                bar.remove_task(task)
            task = bar.add_task(label)

            def tick(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total, refresh=True)

            return tick

        yield watch


def _write_json(target: str, data: dict[str, Any]) -> None:
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    if target == "-":
        sys.stdout.write(text)
        return
    path = Path(target)
    handle, temporary = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        # Readable as any other new file, which mkstemp's are not.
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


if __name__ == "__main__":
    main()
