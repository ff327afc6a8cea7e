"""The results as one HTML page (``adjointlab check --html``, ``pytest --adjointlab-html``).

An :class:`Entry` has what the page shows of one check of one subject. It is plain data, so that processes can send it.
"""

from __future__ import annotations

import platform
import sys
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from adjointlab.check_result import CheckResult, ReportedAs
from adjointlab.checks.verdict import Status
from adjointlab.pictures.html import fragment
from adjointlab.quantities import counted
from adjointlab.report.failure_text import failure_text
from adjointlab.report.html_page import page
from adjointlab.report.summary import notes
from adjointlab.store.files import printable

__all__ = ["Entry", "entry_of", "environment", "html_of_entries", "html_report"]

_PACKAGES: Final = ("adjointlab", "numpy", "hypothesis", "torch", "mpi4py", "cupy", "jax", "pylops-mpi")
_OPEN: Final = 6
"""Largest number of failures that are expanded when the page is opened."""

_BADGES: Final = {
    kind.name.lower(): kind.value
    for kind in (
        ReportedAs.INCOHERENT,
        ReportedAs.UNJUDGED,
        ReportedAs.UNEXPECTED,
        ReportedAs.EXPECTED,
        ReportedAs.COHERENT,
    )
}
"""The kinds of entries with their names on the page, worst first."""


@dataclass(frozen=True)
class Entry:
    """One check of one subject; `kind` is a key of the badges, `picture` is HTML, all else is text."""

    subject: str
    check: str
    kind: str
    headline: str
    text: str
    picture: str
    figures: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...]  # name and content
    cases: int
    seconds: float
    is_failure: bool


def html_report(
    results: Sequence[CheckResult], environment: Mapping[str, str], remarks: Sequence[str] = ()
) -> str:
    """Return the page of these results. `environment` has its last lines, as :func:`environment` returns them.

    The `remarks` are printed above the verdicts, with notes on what the results do not cover.
    """
    return html_of_entries([entry_of(each) for each in results], environment, (*notes(results), *remarks))


def environment(**more: str) -> dict[str, str]:
    """Return the entries `more`, followed by the versions of Python, the platform and the installed packages."""
    found = {
        **more,
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "Python": platform.python_version(),
        "platform": platform.platform(),
    }
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    if (mpi := sys.modules.get("mpi4py.MPI")) is not None:
        found["MPI library"] = str(mpi.Get_library_version()).splitlines()[0].strip("\0")
    return found


def entry_of(check_result: CheckResult) -> Entry:
    """Return the entry of a result. Reads the files of its reproducer."""
    result = check_result.result
    return Entry(
        printable(check_result.subject),
        result.check,
        check_result.reported_as.name.lower(),
        printable(result.verdict.headline),
        failure_text(check_result),
        "" if check_result.status is Status.COHERENT else fragment(check_result.drawing()),
        tuple(_figures(check_result)),
        tuple(_files(check_result)),
        result.tried,
        result.seconds,
        check_result.is_wrong,
    )


def _figures(check_result: CheckResult) -> Iterable[tuple[str, str]]:
    result = check_result.result
    for name, value in result.figures.items():
        yield str(name), f"{value:.3g}" if isinstance(value, float) else str(value)
    if (counts := result.counts) is not None and counts.judged:
        yield "cases on several ranks", str(counts.on_several_ranks)
        yield "cases in which ranks communicated", str(counts.communicating)
        yield "most ranks that communicated", str(counts.most_ranks)
        for reason, number in counts.rejected.items():
            yield "rejected cases", f"{number}: {printable(reason)}"
    if check_result.seed is not None:
        yield "seed", str(check_result.seed)
    yield "seconds", f"{result.seconds:.1f}"


def _files(check_result: CheckResult) -> Iterable[tuple[str, str]]:
    written = check_result.written
    paths: tuple[Path | None, ...] = () if written is None else (written.json, written.script)
    for path in paths:
        if path is not None:
            try:
                yield path.name, path.read_text(encoding="utf-8")
            except (OSError, ValueError):  # it may have been removed since
                continue


def html_of_entries(
    entries: Sequence[Entry], environment: Mapping[str, str], remarks: Sequence[str] = ()
) -> str:
    """Return the page of these entries, failures first, below the `remarks` on what they do not cover."""
    counts = Counter(entry.kind for entry in entries)
    failures = [entry for entry in entries if entry.is_failure]
    others = [entry for entry in entries if not entry.is_failure]
    cases, seconds = sum(entry.cases for entry in entries), sum(entry.seconds for entry in entries)
    buttons = "".join(
        f'<button type="button" data-kind="{kind}" aria-pressed="false">{counts[kind]} {badge}</button>'
        for kind, badge in _BADGES.items()
        if counts[kind]
    )
    body = [
        f"<p>{counted(len(entries), 'check')} of {counted(len({entry.subject for entry in entries}), 'subject')}, {counted(cases, 'case', grouped=True)}, "
        f"{seconds:.1f} s of checking.</p>",
        f'<div class="find"><input id="search" type="search" placeholder="Search" '
        f'aria-label="Search subjects, checks and messages">{buttons}</div>',
        '<p id="none" class="none" hidden>Nothing fits the search.</p>',
        *(f'<p class="note">{escape(printable(remark))}</p>' for remark in remarks),
    ]
    for heading, group in (("Failures", failures), ("Verdicts", others)):
        if group:
            body.append(f"<h2>{heading}</h2>")
            # Many failures are collapsed, so that a reader sees the list of them first.
            body += [_details(entry, is_open=entry.is_failure and len(failures) <= _OPEN) for entry in group]
    body.append(f"<h2>Environment</h2>{_list(environment.items())}")
    return page("adjointlab: coherence of distributed adjoints", "\n".join(body))


def _details(entry: Entry, *, is_open: bool) -> str:
    searched = " ".join((entry.subject, entry.check, _BADGES[entry.kind], entry.headline, entry.text)).lower()
    inside = [f'<p class="headline">{escape(entry.headline)}</p>'] if entry.headline else []
    if entry.picture:
        inside.append(
            f'<div class="scroll" tabindex="0" role="group" aria-label="picture">{entry.picture}</div>'
        )
    if entry.text:
        inside.append(f'<pre tabindex="0">{escape(entry.text)}</pre>')
    if entry.files:
        inside.append(f'<p class="files">{"".join(_download(*file) for file in entry.files)}</p>')
    inside.append(_list(entry.figures))
    return (
        f'<details class="{entry.kind}" data-kind="{entry.kind}" data-text="{escape(searched)}"'
        f"{' open' if is_open else ''}><summary>"
        f'<span class="badge">{_BADGES[entry.kind]}</span> <span class="name">{escape(entry.subject)}</span> '
        f'<span>{escape(entry.check)}</span> <span class="more">{counted(entry.cases, "case", grouped=True)}</span></summary>'
        f'<div class="inside">{"".join(inside)}</div></details>'
    )


def _download(name: str, content: str) -> str:
    kind = "application/json" if name.endswith(".json") else "text/x-python"
    data = b64encode(content.encode()).decode()
    return f'<a download="{escape(name)}" href="data:{kind};base64,{data}">{escape(name)}</a>'


def _list(items: Iterable[tuple[str, str]]) -> str:
    terms = "".join(f"<dt>{escape(name)}</dt><dd>{escape(printable(value))}</dd>" for name, value in items)
    return f"<dl>{terms}</dl>" if terms else ""
