"""``adjointlab exhaust``: a proof of every case within a bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from adjointlab.cli.device import usable_device
from adjointlab.cli.output import Output, progress_line
from adjointlab.cli.parameters import DeviceOfProofs, FolderOfProofs, Quiet, Subjects, option_of
from adjointlab.cli.result_files import folder_of_failures
from adjointlab.cli.startup import UsageError, or_usage_error
from adjointlab.options import DEVICE, FOLDER
from adjointlab.worlds.launch import is_launched

if TYPE_CHECKING:
    from adjointlab.check_result import CheckResult
    from adjointlab.engine.discovery import Found

__all__ = ["exhaust"]


def exhaust(
    context: typer.Context,
    subjects: Subjects = None,
    bounds: Annotated[
        list[str] | None,
        typer.Option(
            "--bound",
            metavar="NAME=N",
            help="Change a bound, such as ranks=3 or side=2. May be repeated. The table shows the bounds.",
        ),
    ] = None,
    device: DeviceOfProofs = DEVICE.default,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes. Default: one for each core.")] = None,
    folder: FolderOfProofs = FOLDER.default,
    quiet: Quiet = False,
) -> int:
    """Prove every small case by its whole matrices. The cases are all those within a bound, not drawn ones."""
    from adjointlab.engine import exhaust as proof
    from adjointlab.report.failure_text import failure_text
    from adjointlab.report.summary import outcome, proof_summary, silent
    from adjointlab.report.tables import proof_table
    from adjointlab.session import kept

    if is_launched():
        raise UsageError("exhaust uses simulated ranks in processes of its own; run it without a launcher")
    plan, nameless = or_usage_error(lambda: _bounded(subjects or [], bounds or [], device))
    # Made absolute first, because the user's code may change the directory.
    folder = folder_of_failures(folder, option_of(context, "folder"))
    out = Output()
    results: list[CheckResult] = []
    try:
        with progress_line(is_shown=not quiet, time_left=True) as line:
            for number, (entry, bound) in enumerate(plan):
                tick = line.track(f"[{number + 1}/{len(plan)}] {entry.subject.label}")
                result = proof.exhaust(entry.subject, entry.reference, bound, jobs, tick, device)
                results.append(kept(entry, result, folder))
    finally:
        # Also after Ctrl-C or an error: proofs take minutes, so the completed ones are reported.
        if not quiet:
            out.table(proof_table(results, [bound for _, bound in plan[: len(results)]]))
            out.line()
        for each in results:
            if each.is_reported:
                out.line(f"{failure_text(each)}\n")
        if not quiet:
            for note in filter(None, (silent(results), *nameless)):
                out.line(f"{note}\n")
            out.line(proof_summary(results))
        if len(results) < len(plan):
            out.line(f"{len(results)} of {len(plan)} subjects are done.")
    return outcome(results)


def _bounded(
    references: list[str], bounds: list[str], device: str | None
) -> tuple[list[tuple[Found, dict[str, int]]], list[str]]:
    """Return pairs of a subject and its bound, and notes on subjects without a name.

    Raises :class:`UsageError` for a bound that no subject has, and :class:`~adjointlab.engine.subject.SubjectError` for a subject
    without memory on `device`.
    """
    from adjointlab.engine.discovery import find_and_note
    from adjointlab.engine.listed_cases import bound_of, memory_of_proofs

    usable_device(device)
    found, nameless = find_and_note(references)
    if not references:
        found = [entry for entry in found if entry.subject.every is not None]
    given = dict(map(_parse_bound, bounds))
    for entry in found:
        memory_of_proofs(entry.subject, device)
    plan = [(entry, dict(bound_of(entry.subject, given))) for entry in found]
    if unknown := [name for name in given if all(name not in bound for _, bound in plan)]:
        legal = sorted({name for _, bound in plan for name in bound})
        raise UsageError(f"--bound: {unknown[0]} is not one of {', '.join(legal)}")
    return plan, nameless


def _parse_bound(text: str) -> tuple[str, int]:
    name, equals, number = text.partition("=")
    if not equals or not number.strip().isdecimal():
        raise UsageError(f"--bound: {text!r} is not NAME=N, such as ranks=3")
    return name.strip(), int(number)
