"""A failing case as a Python script, which exits with 1 while the failure occurs, 0 once it does not, and 2 if it cannot run.

There are two forms. A wrong matrix entry of an operator or of a pair of functions is shown on the plain communicator of
mpi4py (:mod:`adjointlab.store.products_script`). Any other failure is replayed, by the lab, from the JSON file beside the script.
"""

from __future__ import annotations

from pathlib import Path

from adjointlab.checks.check import Spaces
from adjointlab.checks.hints import FaultKind
from adjointlab.checks.memory_orders import ORDERS
from adjointlab.checks.verdict import Status
from adjointlab.core import arrays
from adjointlab.engine.case import Case
from adjointlab.engine.search_result import SearchResult
from adjointlab.engine.subject import Kind, Subject
from adjointlab.store.products_script import functions_of, products
from adjointlab.store.script_text import HEAD, PATHS, commented, folders, literal, script_name, subject_name

__all__ = ["script"]

_REPLAY = (
    HEAD
    + PATHS
    + """
if __name__ == "__main__":
    try:
        from adjointlab.cli.reproduce import reproduce
    except ImportError as error:
        print(f"this script needs adjointlab: {{error}}", file=sys.stderr)
        sys.exit(2)
    reproduce(__file__, {reference})
"""
)


_USAGE = """It replays {name}, which has to lie beside it, and needs adjointlab.
Run with: {command}
Exit codes: 1 while the failure is seen, 0 once the case passes, 2 where neither can be told, as where it was found under
another launcher and is not seen under this one. Under mpiexec, a case that ends its process decides the code."""


def script(case: Case, report: SearchResult, subject: Subject, beside: Path) -> str | None:
    """Return the script for `case`; `None` if no other process can import its subject.

    `beside` is the reproducer beside it. A subject is importable if it, or its function, is an attribute of a
    module with a file.
    """
    findings = commented(
        f"{report.subject}: {report.verdict.headline}",
        "",
        *(f"{label}: {text}" for label, text in report.verdict.lines if label != "traceback"),
    )
    entry, spaces = report.verdict.entry, report.spaces
    if entry is not None and spaces is not None and _shows_products(case, report, subject, spaces):
        functions = functions_of(subject)
        if functions is not None:
            return products(case, subject, spaces, entry, functions, findings, beside)
    return _replayed(case, report, subject, findings, beside)


def _replayed(case: Case, report: SearchResult, subject: Subject, findings: str, beside: Path) -> str | None:
    found = subject_name(subject)
    if found is None:
        return None
    plain = f"python {script_name(beside)}"
    under_mpi = f"mpiexec -n {case.ranks} {plain}"
    if case.schedules:
        command = f"{plain} (on simulated ranks, which alone have schedules)"
    elif report.world == "mpi":
        command = f"{under_mpi}; without mpiexec, on simulated ranks"
    elif report.world == "torch":
        command = f"torchrun --nproc-per-node {case.ranks} {script_name(beside)}; without torchrun, on simulated ranks"
    elif subject.process_group:
        command = f"{plain} (on simulated ranks), {under_mpi}, or torchrun --nproc-per-node {case.ranks} {script_name(beside)}"
    else:
        command = f"{plain} (on simulated ranks), or {under_mpi}"
    return _REPLAY.format(
        findings=findings,
        usage=commented(_USAGE.format(name=beside.name, command=command)),
        folders=folders([found], beside),
        reference=literal(f"{found.module}:{found.attribute}"),
    )


def _shows_products(case: Case, report: SearchResult, subject: Subject, spaces: Spaces) -> bool:
    """Return True if plain basis vectors show the failure, and MPI supports their element types."""
    tensors = (*spaces.domain.tensors, *spaces.codomain.tensors)
    return (
        report.status is Status.INCOHERENT
        and subject.kind in (Kind.OPERATOR, Kind.PAIR)
        and not subject.process_group
        and not case.schedules
        and not _needs_a_schedule(report)
        and case.setting.library in ("numpy", "torch")
        and set(case.setting.orders) == {ORDERS[0]}
        and all(arrays.supports("numpy", tensor.dtype) for tensor in tensors)
    )


def _needs_a_schedule(report: SearchResult) -> bool:
    """Return True if the failure was found to need another order of ranks and messages than the simplest one."""
    evidence = report.verdict.evidence
    return evidence is not None and any(hint.kind is FaultKind.SCHEDULE for hint in evidence.retried)
