"""Start a job, record_death it if it dies, start it again with what is known by then: until it has come to its end.

Every death leaves the job_log with one more case, piece of work or test that is not run again, and each of them can end
a job twice at most. A failure is made smaller for a limited time, and what moves no more is ended. So this ends.
"""

from __future__ import annotations

import json
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from adjointlab.checks.verdict import Status, Verdict
from adjointlab.exit_codes import ExitCode
from adjointlab.store import running_case as running
from adjointlab.store.job_log import Death, JobLog, work_of
from adjointlab.store.reproducer import write_case
from adjointlab.supervisor.exit_report import ExitReport, exit_report
from adjointlab.supervisor.job import Ended, Job, Signals
from adjointlab.supervisor.launcher import Launcher
from adjointlab.supervisor.output import Output
from adjointlab.supervisor.processes import adopt_orphans
from adjointlab.supervisor.pytest_results import Tests

__all__ = ["SupervisedCommand", "supervise"]

UNJUDGED: Final = 3
_TIMES: Final = 2
"""How often one thing may end a job: once, and once more to see that it does."""
_STALLS: Final = 3
"""How many jobs in a row may ask to be started again without having got any further."""


@dataclass(frozen=True)
class SupervisedCommand:
    """What to supervise: a command, on `ranks` ranks of a launcher or in one process without; within which limits."""

    command: tuple[str, ...]
    ranks: int
    launcher: Launcher | None
    patience: float
    shrinking: float
    seed: int
    folder: Path  # where the supervisor keeps its own


@dataclass
class _State:
    """What has happened so far."""

    jobs: int = 0
    stalls: int = 0
    standing: object = None  # how far the job was that last asked to be started again
    trouble: list[str] = field(default_factory=list)


def supervise(plan: SupervisedCommand, tell: Callable[[str], None]) -> int:
    """Run `plan` to its end; the exit code. `tell` is given what the supervisor itself has to say, line by line."""
    adopt_orphans()
    plan.folder.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="run-", dir=plan.folder)).absolute()
    job_log, tests, state = JobLog(place), Tests(place, plan.ranks), _State()
    job_log.settle(plan.seed, plan.shrinking)
    code = UNJUDGED
    try:
        with Signals() as signals:
            code = _until_the_end(plan, job_log, tests, state, signals, tell)
    finally:
        _keep_unfinished(job_log, tell)
        _clear(place)
    return code


def _until_the_end(
    plan: SupervisedCommand,
    job_log: JobLog,
    tests: Tests,
    state: _State,
    signals: Signals,
    tell: Callable[[str], None],
) -> int:
    while True:
        state.jobs += 1
        tests.settle()
        output = Output(_held_until(job_log))
        ended = Job(plan.command, plan.ranks, plan.launcher, job_log.folder, output).run(
            plan.patience, signals
        )
        if ended.leftover:
            tell(f"{ended.leftover} processes of the job could not be ended")
        if signals.times:
            output.release()
            if signals.number != signal.SIGINT:  # the command line says so itself
                tell(f"ended by {signal.Signals(signals.number).name}")
            return signals.code
        if ended.in_order and ended.code != ExitCode.RESTART:
            return _code(ended, job_log, tests, state, tell)
        if ended.in_order or _ended_itself(job_log) == running.EndedBy.EXHAUSTION:
            standing = (len(job_log.done), len(job_log.deaths), tests.done, _cases_done(job_log))
            state.stalls = state.stalls + 1 if standing == state.standing else 0
            state.standing = standing
            if state.stalls >= _STALLS:
                tell("the job asks to be started again and again without getting any further: giving up")
                return _summary(UNJUDGED, job_log, state, tell)
            job_log.clear()
            tell("the job has used up what MPI has; it is started again, to go on where it was")
            continue
        found = _exit_report(plan, job_log, ended)
        if found.signal:
            output.release()
            tell(f"{found.kind} ({signal.Signals(found.signal).name})")
            return 128 + found.signal
        death = _death(found, job_log, tests, ended)
        name = death.work or death.test
        if not name:
            output.release()
            for line in _told(death):
                tell(line)
            tell("it was at no case and no test that could be passed over: giving up")
            return _summary(UNJUDGED, job_log, state, tell)
        same = [
            one
            for one in job_log.deaths
            if (one.case, one.work, one.test) == (death.case, death.work, death.test)
        ]
        if len(same) >= (_TIMES if death.case else 1):
            output.release()
            tell(f"{name}: it ends the job again, although it should not have been run: giving up")
            return _summary(UNJUDGED, job_log, state, tell)
        first = not any((one.work or one.test) == name for one in job_log.deaths)
        job_log.record_death(death)
        job_log.clear()
        if first:
            output.release()
            for line in _told(death):
                tell(line)
            what = "to make the case smaller and then go on" if death.case else "to go on after it"
            tell(f"  all its processes are ended; the job is started again, {what}")


def _exit_report(plan: SupervisedCommand, job_log: JobLog, ended: Ended) -> ExitReport:
    simulated = plan.launcher is None
    return exit_report(
        job_log.folder, plan.ranks, ended.said, ended.code, stuck=ended.stuck, simulated=simulated
    )


def _death(found: ExitReport, job_log: JobLog, tests: Tests, ended: Ended) -> Death:
    """What the job died of, and at what."""
    death = Death(found.kind, found.lines, found.ranks, at=time.time(), certain=bool(ended.stuck))
    record = running.read(job_log.folder)
    if record is None or record.case is None:
        work, _ = job_log.work
        return replace(death, work=work) if work else replace(death, test=tests.interrupted(found.ranks))
    death = replace(death, case=record.case.digest, work=work_of(record.location, record.check))
    if record.ended is running.EndedBy.WATCHDOG:
        lines = _lines_of(Path(record.reproducer)) or death.lines
        death = replace(death, kind=record.kind or death.kind, lines=lines, ranks={}, certain=True)
    if not job_log.is_known(death):
        number = len(job_log.deaths)
        verdict = Verdict(Status.UNJUDGED, death.kind, death.kind, death.verdict().lines)
        path = write_case(
            record.case, record.location, record.world, verdict, job_log.folder / f"death-{number}"
        )
        death = replace(death, reproducer=str(path), folder=str(job_log.work[1] or ""))
    return death


def _code(ended: Ended, job_log: JobLog, tests: Tests, state: _State, tell: Callable[[str], None]) -> int:
    """The exit code of a job that has come to its end: its own, but for tests that only deaths have made fail."""
    code = ended.code if ended.code is not None else UNJUDGED
    deaths = job_log.deaths
    if not deaths:
        return code
    if code == 1 and tests.any():
        died = {death.work for death in deaths if _is_unjudged(job_log, death.work)}
        code = UNJUDGED if tests.failed <= tests.of(died) | {death.test for death in deaths} else 1
    return _summary(code, job_log, state, tell)


def _is_unjudged(job_log: JobLog, work: str) -> bool:
    """Whether nothing else has come of it: a wrong result may have been found beside a death."""
    done = job_log.outcome(work)
    return done is None or done.result.status is Status.UNJUDGED


def _summary(code: int, job_log: JobLog, state: _State, tell: Callable[[str], None]) -> int:
    deaths = job_log.deaths
    early = f", {len(deaths)} of which ended before {'its' if len(deaths) == 1 else 'their'} time"
    tell(f"{_count(state.jobs, 'job')}{early if deaths else ''}; exit code {code}")
    for name in dict.fromkeys(death.work or death.test for death in deaths):
        mine = [death for death in deaths if (death.work or death.test) == name]
        tell(f"  {name}: {mine[-1].kind}")
        done = job_log.outcome(name)
        if done is not None and done.result.case is not None:
            count = done.result.case.ranks
            where = f", {done.written.json}" if done.written else ""
            tell(f"    shrunk to {_count(count, 'rank')} by {_count(len(mine), 'death')}{where}")
    return code


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _told(death: Death) -> list[str]:
    lines = [f"{death.work or death.test or 'the job'}: {death.kind}"]
    lines += [f"  rank {rank}: {reason}" for rank, reason in sorted(death.ranks.items())]
    for label, text in death.lines:
        margin = "\n" + " " * (len(label) + 4)
        lines.append(f"  {label}  {text.replace(chr(10), margin)}")
    return lines


def _held_until(job_log: JobLog) -> Callable[[], bool] | None:
    """When a job that is started again has something new to say: when it is done with what ended the one before."""
    deaths = job_log.deaths
    if not deaths or not (name := deaths[-1].work):
        return None
    return lambda: job_log.outcome(name) is not None


def _ended_itself(job_log: JobLog) -> str:
    record = running.read(job_log.folder)
    return "" if record is None else record.ended


def _cases_done(job_log: JobLog) -> int:
    record = running.read(job_log.folder)
    return 0 if record is None else record.done


def _keep_unfinished(job_log: JobLog, tell: Callable[[str], None]) -> None:
    """The cases of deaths that no job has lived to store, in the folder of failures."""
    for death in job_log.deaths:
        if death.reproducer and death.folder and job_log.outcome(death.work) is None:
            source = Path(death.reproducer)
            target = Path(death.folder) / source.name
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                source.replace(target)
                tell(f"  {death.work}: not made smaller; {target}")


def _lines_of(reproducer: Path) -> tuple[tuple[str, str], ...]:
    try:
        content = json.loads(reproducer.read_text(encoding="utf-8"))
        return tuple((str(label), str(text)) for label, text in content["lines"])
    except (OSError, ValueError, LookupError, TypeError):
        return ()


def _clear(place: Path) -> None:
    for path in sorted(place.rglob("*"), reverse=True):
        with suppress(OSError):
            path.rmdir() if path.is_dir() else path.unlink()
    for folder in (place, place.parent):
        with suppress(OSError):  # the folder of failures stays if it holds any
            folder.rmdir()
