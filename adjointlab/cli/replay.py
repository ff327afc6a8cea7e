"""``adjointlab replay``: runs a stored failure again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace as with_changes
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adjointlab.cli.device import usable_device
from adjointlab.cli.output import Output, describe_ranks
from adjointlab.cli.parameters import DeviceOfReplay, RanksOfReplay, Strict, Watchdog, is_configured
from adjointlab.cli.startup import UsageError, opened_world
from adjointlab.devices.memories import is_on_device, on
from adjointlab.exit_codes import ExitCode
from adjointlab.options import DEVICE, RANKS
from adjointlab.spelling import from_here
from adjointlab.worlds.launch import is_launched

if TYPE_CHECKING:
    from adjointlab.checks.verdict import Status
    from adjointlab.engine.discovery import Found
    from adjointlab.engine.search_result import SearchResult
    from adjointlab.store.reproducer import Reproducer

__all__ = ["replay", "replayed", "status_of"]


def replay(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The reproducer of a stored failure.")],
    subject: Annotated[
        str | None, typer.Option(help="Where the subject is, as for check, if it is not installed.")
    ] = None,
    ranks: RanksOfReplay = None,
    device: DeviceOfReplay = DEVICE.default,
    strict: Strict = False,
    watchdog: Watchdog = None,
) -> int:
    """Run a stored failure again. The exit code is 1 while it fails (3 for a crash or hang), 0 once it passes.

    If it passes, but was found under another launcher (or without one), the exit code is 3: it may not show here. It is 2 if the
    subject does not accept the case.
    With --device its tensors are in memory of that device, whatever they were in when it was stored.
    """
    from adjointlab.engine.failed_runs import MISDECLARED
    from adjointlab.report.summary import exit_code

    if ranks is not None and is_configured(context, "ranks"):
        # The configured number is a limit for drawn cases; a stored case has a fixed number of ranks.
        ranks = None if is_launched() or ranks <= RANKS.default else ranks
    stored, result = replayed(file, subject, ranks, device, strict=strict, watchdog=watchdog)
    if result.verdict.kind == MISDECLARED:
        return ExitCode.USAGE
    return exit_code([status_of(stored, result)])


def status_of(stored: Reproducer, result: SearchResult) -> Status:
    """Return the status of a replay: unjudged if the case passes in another world than the one in which it failed."""
    from adjointlab.checks.verdict import Status

    is_unseen = result.status is Status.COHERENT and result.world != stored.world
    return Status.UNJUDGED if is_unseen else result.status


def replayed(
    file: Path,
    subject: str | None = None,
    ranks: int | None = None,
    device: str | None = None,
    *,
    strict: bool = False,
    watchdog: float | None = None,
    is_shown_by_file: bool = False,
) -> tuple[Reproducer, SearchResult]:
    """Run a stored failure again and print the result; return the reproducer and the result.

    With `is_shown_by_file`, the printed lines refer to the subject by its file, whatever module name it is imported by here.
    """
    from msgspec import structs

    from adjointlab import replaying
    from adjointlab.checks.check import check_named
    from adjointlab.store.reproducer import read
    from adjointlab.worlds.world import WorldName

    def prepare() -> tuple[Reproducer, Found]:
        if file.suffix == ".py" and (beside := file.with_suffix(".json")).is_file():
            raise UsageError(f"{file} is the script of a failure, which python runs; replay takes {beside}")
        stored = read(file)
        if ranks is not None and ranks < stored.case.ranks:
            raise UsageError(f"{file}: the case needs {stored.case.ranks} ranks; --ranks {ranks} are too few")
        usable_device(device)
        found = _subject_of(stored, subject, file)
        if not check_named(stored.check).applies_to(found.subject):
            raise UsageError(
                f"{file}: the check {stored.check} does not apply to {stored.subject}, as it is declared now"
            )
        if device is not None and not _is_usable(stored.case.setting.library, device):
            memory = found.subject.libraries(device)[0]
            stored = structs.replace(stored, case=stored.case.moved_to(memory))
        _require(stored.case.setting.library, found, file)
        return stored, _by_file(found) if is_shown_by_file else found

    with opened_world(prepare, ranks, strict=strict, watchdog=watchdog) as (world, (stored, found)):
        needed = stored.case.ranks
        if needed > world.ranks:
            by = WorldName.TORCH if world.name == WorldName.TORCH else WorldName.MPI
            launcher, *options = by.launcher(needed)
            raise UsageError(
                f"{file}: the case needs {needed} ranks; run {' '.join([launcher, *options])} adjointlab replay, or without {launcher} "
                f"--ranks {needed}"
            )
        result = replaying.replay(world, found.subject, stored.case)
        out = Output()
        for line in _lines(file, stored, found, result, describe_ranks(world, needed)):
            out.line(line)
        return stored, result


def _lines(file: Path, stored: Reproducer, found: Found, result: SearchResult, here: str) -> Iterator[str]:
    """Yield the lines of the report on a replay; `here` describes its ranks."""
    from adjointlab.check_result import CheckResult
    from adjointlab.checks.verdict import Status
    from adjointlab.report.failure_text import failure_text, replay_command
    from adjointlab.store.reproducer import Written, same_subject

    name, written = f"{found.subject.label}: {result.check}", Written.beside(file)
    is_own = same_subject(stored.location, found.subject.location)
    if result.case is None:  # it was not run: its subject cannot run in this world
        yield f"{name} could not be judged: {result.verdict.headline}"
    elif status_of(stored, result) is not result.status:
        there = with_changes(result, world=stored.world)
        yield f"{name}: a failure found under {stored.world.ranks_run_under} is not seen on {here}"
        yield f"  was     {stored.headline}"
        yield f"  replay  {replay_command(CheckResult(found, there, written))}"
    elif result.status is Status.COHERENT:
        yield f"{name} is coherent on this case now, {here}"
        yield f"  was   {stored.headline}"
        if is_own:
            yield "  If nothing was changed since, the failure needs the cases that ran before it: look for what a module or class keeps."
    else:
        yield failure_text(CheckResult(found, result, written, replayed=file))
        if result.verdict.kind != stored.kind:
            yield f"  was another failure when it was stored: {stored.headline}"
    if not is_own:
        yield f"  The case was stored for the subject at {stored.location}, and was run here with the one at {found.reference}."


def _is_usable(memory: str, device: str) -> bool:
    from adjointlab.core.arrays import installed

    return bool(on(device, [memory])) and installed(memory)


def _require(memory: str, found: Found, file: Path) -> None:
    """Raise :class:`UsageError` if arrays cannot be allocated in the memory of a stored case."""
    from adjointlab.core.arrays import installed
    from adjointlab.devices import probes

    if installed(memory):
        return
    missing = [part for part in memory.split("+") if not installed(part)]
    here = probes.found() if any(map(is_on_device, missing)) else probes.Found()
    why = "; ".join(map(here.lacking_of, missing))
    of_host = [library for library in on("cpu", found.subject.arrays) if installed(library)]
    instead = f"; --device cpu moves it into the memory {of_host[0]}" if of_host else ""
    raise UsageError(
        f"{file}: the case is in the memory {memory}, which cannot be used here ({why}){instead}"
    )


def _by_file(found: Found) -> Found:
    """Return `found` with a reference to its file and the variable there."""
    module, _, name = found.subject.location.partition(":")
    file = getattr(sys.modules.get(module), "__file__", None)
    return found if file is None else with_changes(found, reference=f"{from_here(Path(file))}:{name}")


def _is_in_place(stored: Reproducer, location: str) -> bool:
    """Return True if `location` is that of the stored subject and names a variable, so that it identifies one subject."""
    from adjointlab.store.reproducer import same_subject

    return stored.location.partition(":")[2].isidentifier() and same_subject(stored.location, location)


def _subject_of(stored: Reproducer, reference: str | None, file: Path) -> Found:
    """Find the subject of a reproducer among the installed ones, or where `reference` says.

    A reproducer names its subject and that subject's source file. These names only choose among the subjects that the
    user has installed or named. Nothing is imported because the file says so, since a file may come from anybody.
    """
    from adjointlab.engine.discovery import find, installed

    candidates = installed() if reference is None else find([reference])
    in_place = [entry for entry in candidates if _is_in_place(stored, entry.subject.location)]
    named = [entry for entry in candidates if entry.subject.name == stored.subject] or in_place
    named = [entry for entry in named if entry.subject.location == stored.location] or named
    if len(named) == 1:
        return named[0]
    where = f"--subject {reference}" if reference else "what is installed"
    if named:
        problem = f"{where} has several of that name: {', '.join(entry.reference for entry in named)}"
    elif reference is None:
        problem = "it is not installed"
    else:
        present = ", ".join(dict.fromkeys(entry.subject.name for entry in candidates))
        problem = f"{where} is another" if len(candidates) == 1 else f"{where} has {present}"
    raise UsageError(
        f"{file} is about {stored.subject}, declared in {stored.location}; {problem}; "
        f"name it with --subject {stored.location} or --subject path/to/file.py:{stored.location.partition(':')[2]}"
    )
