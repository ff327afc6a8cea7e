"""What is printed: the text of a failure, the table of verdicts, and the same as JSON.

The JSON form (``adjointlab check --json``) has these keys, always all of them:

- ``schema``: 1; ``world``: "simulated" or "mpi"; ``ranks``: the size of the world;
- ``complete``: whether everything that was asked for is in ``reports``; not after Ctrl-C, nor while the run goes on, for
  the file is written anew after every verdict; ``exit_code``: that of the run (0 to 3, 75, 130), 3 while it goes on;
- ``reports``: a list, one entry for each subject and check, with

  - ``subject``, ``reference`` (what names it on a command line), ``installed``, ``check``;
  - ``verdict``: "coherent", "incoherent" or "could not be judged"; ``headline``, ``kind``;
    ``lines``: a list of [label, text];
  - ``figures``: an object of numbers and strings, e.g. "miss probability";
  - ``known``: why it is listed as a known failure (``--xfails``), and where, or null;
  - ``cases`` tried, the ``seed`` of the draws, ``seconds``;
  - ``case``: the smallest failing case, as in a reproducer, or null;
  - ``reproducer``, ``script``: paths, or null; ``replay``: the command, or null.

Numbers that JSON does not have are strings ("nan", "inf").
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import Status
from adjointlab.core.layout import Layout
from adjointlab.core.space import Space
from adjointlab.engine.case import Case
from adjointlab.engine.search import SearchResult
from adjointlab.session import CheckResult

__all__ = [
    "as_data",
    "blind_spots",
    "exit_code",
    "failure_text",
    "outcome",
    "proof_summary",
    "proof_table",
    "replay_command",
    "summary",
    "verdict_table",
]

_COLOURS = {Status.COHERENT: "green", Status.INCOHERENT: "bold red", Status.UNJUDGED: "bold yellow"}
_PACKAGE = Path(__file__).parent
_OWN_FRAMES = re.compile(
    '  File "('
    + "|".join(re.escape(str(_PACKAGE / room)) for room in ("checks", "harness", "worlds", "operator.py"))
    # ... and what stands between the lab and a strategy.
    + '|[^"]*[/\\\\]site-packages[/\\\\]hypothesis[/\\\\])'
)


def exit_code(statuses: Iterable[Status]) -> int:
    """0 all coherent, 1 something incoherent, 3 nothing worse than what could not be judged."""
    seen = set(statuses)
    return 1 if Status.INCOHERENT in seen else 3 if Status.UNJUDGED in seen else 0


def outcome(results: Iterable[CheckResult]) -> int:
    """The exit code of results: known failures do not count, unless they are mended, which is a failure of the list."""
    results = list(results)
    if any(entry.unexpectedly_passes for entry in results):
        return 1
    return exit_code(entry.status for entry in results if not entry.is_expected)


def failure_text(run_check: CheckResult) -> str:
    """A failure as people read it; empty for a coherent run_check, one line for a known failure or one that is mended."""
    report = run_check.result
    if run_check.unexpectedly_passes:
        return (
            f"{report.subject} {report.check}: is coherent, although it is listed as a known failure; remove the line: "
            f"{run_check.known}"
        )
    if report.status is Status.COHERENT:
        return ""
    if run_check.is_expected:
        return f"{report.subject} {report.check}: fails as expected, {report.verdict.headline}; {run_check.known}"
    lines = [*_where(report), *_findings(report)]
    if run_check.written is not None:
        lines.append(("replay", replay_command(run_check)))
        if not run_check.found.subject.is_layer or report.spaces is not None:
            needs = (
                "needs only the operator and mpi4py" if report.spaces is not None else "needs adjointlab too"
            )
            lines.append(("script", f"{_relative(run_check.written.script)}         ({needs})"))
    elif run_check.unwritten:
        lines.append(("replay", f"could not be stored: {run_check.unwritten}"))
    # The partition's line stands alone; aligned with it, all others would stand too far in.
    width = max((len(label) for label, _ in lines if label != "partition"), default=0)
    margin = "\n" + " " * (width + 4)
    return "\n".join(
        [
            f"{report.subject}: {report.verdict.headline}{_history(run_check)}",
            *(
                f"  partition {text}"
                if label == "partition"
                else f"  {label:<{width}}  {text.replace(chr(10), margin)}"
                for label, text in lines
            ),
        ]
    )


def replay_command(run_check: CheckResult) -> str:
    """The command that runs a stored failure again, with the subject named where nobody would find it otherwise."""
    assert run_check.written is not None
    report = run_check.result
    words = ["adjointlab", "replay", str(_relative(run_check.written.json))]
    if not run_check.found.is_installed:
        words += ["--subject", run_check.found.reference]
    if report.world == "mpi" and report.case is not None:
        words = ["mpiexec", "-n", str(report.case.ranks), *words]
    return shlex.join(words)


def verdict_table(results: Sequence[CheckResult]) -> Table:
    """Subject by check: the verdict, the cases that it rests on, and how far it reaches."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Subject", no_wrap=True)
    table.add_column("Check", no_wrap=True)
    table.add_column("Verdict", no_wrap=True)
    table.add_column("Cases", justify="right", no_wrap=True)
    table.add_column("Seed", justify="right", no_wrap=True)
    table.add_column("Reach")
    before = ""
    for entry in results:
        report = entry.result
        table.add_row(
            "" if report.subject == before else escape(report.subject),
            report.check,
            _verdict(entry),
            str(report.tried),
            str(report.seed),
            escape(reach(report)),
        )
        before = report.subject
    return table


def _verdict(entry: CheckResult) -> str:
    if entry.is_expected:
        return "[dim]expected failure[/]"
    if entry.unexpectedly_passes:
        return "[bold red]mended[/]"
    return f"[{_COLOURS[entry.status]}]{entry.status.value}[/]"


def reach(report: SearchResult) -> str:
    """How far a coherent verdict reaches; the headline of another."""
    if report.status is not Status.COHERENT:
        return report.verdict.headline
    figures = report.figures
    notes = []
    if isinstance(miss := figures.get("miss probability"), float):
        exact = f"exact: misses a wrong case with probability below {_rounded_up(miss)}"
        if report.exact < report.tried:
            exact = f"{report.exact} of {report.tried} cases {exact}; floating form alone in the rest"
        notes.append(exact)
    elif report.check == "adjoint":
        notes.append("floating form only")
    if isinstance(error := figures.get("floating error (eq. 26)"), float):
        notes.append(f"floating error {error:.1g}")
    if proved := figures.get("proved"):
        notes.append(
            "entries: " + ("all or a sample" if proved == "various" else str(proved).removesuffix(" entries"))
        )
    return "; ".join(notes)


def summary(results: Sequence[CheckResult]) -> str:
    """One line: how many verdicts of which kind, on how many cases."""
    counts = [
        (status.value, sum(entry.status is status and not entry.known for entry in results))
        for status in Status
    ]
    counts.append(("failed as expected", sum(entry.is_expected for entry in results)))
    counts.append(("mended", sum(entry.unexpectedly_passes for entry in results)))
    told = ", ".join(f"{count} {name}" for name, count in counts if count)
    cases = sum(entry.result.tried for entry in results)
    seconds = sum(entry.result.seconds for entry in results)
    return f"{told or 'nothing checked'}: {cases} cases in {seconds:.1f} s"


def proof_table(results: Sequence[CheckResult], bounds: Sequence[Mapping[str, int]]) -> Table:
    """Subject by bound: what an exhaustive run has proved."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Subject", no_wrap=True)
    table.add_column("Bound")
    table.add_column("Verdict", no_wrap=True)
    for name in ("Cases", "Matrix entries", "Seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for entry, bound in zip(results, bounds, strict=True):
        report = entry.result
        proved = report.status is Status.COHERENT
        table.add_row(
            escape(report.subject),
            ", ".join(f"{name} {value}" for name, value in bound.items()),
            f"[{_COLOURS[report.status]}]{'proved' if proved else report.status.value}[/]",
            f"{report.tried:,}",
            f"{report.figures.get('entries', 0):,}",
            f"{report.seconds:.1f}",
        )
    return table


def proof_summary(results: Sequence[CheckResult]) -> str:
    """What is proved of how many cases, and what that rests on."""
    proved = [entry.result for entry in results if entry.status is Status.COHERENT]
    cases = sum(report.tried for report in proved)
    seconds = sum(entry.result.seconds for entry in results)
    text = (
        f"{cases:,} cases of {_count(len(proved), 'subject')} proved in {seconds:.1f} s: forward has the matrix of the "
        "specification (where there is one), adjoint its transpose, given linearity, which was sampled in every case"
    )
    return (
        text
        if len(proved) == len(results)
        else f"{text}; {_count(len(results) - len(proved), 'subject')} failed"
    )


def blind_spots(results: Sequence[CheckResult]) -> str:
    """What no check could see: a line for the subjects that nothing is known of but forward and adjoint."""
    subjects = {entry.found.subject.name: entry.found.subject for entry in results}
    blind = [name for name, one in subjects.items() if not one.has_specification and one.reference is None]
    if not blind:
        return ""
    return (
        f"{', '.join(blind)}: no reference and no specification, so a fault that forward and adjoint share stays "
        "unseen; give @subject(reference=...)"
    )


def as_data(
    results: Sequence[CheckResult], world: str, ranks: int, code: int, *, complete: bool
) -> dict[str, Any]:
    """The JSON form; the schema stands in the module's docstring."""
    return {
        "schema": 1,
        "world": world,
        "ranks": ranks,
        "complete": complete,
        "exit_code": code,
        "reports": [_entry(entry) for entry in results],
    }


def _entry(run_check: CheckResult) -> dict[str, Any]:
    report, written = run_check.result, run_check.written
    return {
        "subject": report.subject,
        "reference": run_check.found.reference,
        "installed": run_check.found.is_installed,
        "check": report.check,
        "verdict": report.status.value,
        "headline": report.verdict.headline,
        "kind": report.verdict.kind,
        "lines": [[label, text] for label, text in report.verdict.lines],
        "figures": {
            name: _finite(value) for name, value in (report.figures or report.verdict.figures).items()
        },
        "cases": report.tried,
        "seed": report.seed,
        "seconds": round(report.seconds, 3),
        "known": run_check.known or None,
        "case": None if report.case is None else report.case.data(),
        "reproducer": None if written is None else str(written.json),
        "script": None if written is None else str(written.script),
        "replay": None if written is None else replay_command(run_check),
    }


def _history(run_check: CheckResult) -> str:
    report = run_check.result
    if report.case is None:
        return ""
    on = _count(report.case.ranks, "rank")
    if run_check.replayed is not None:
        return f"        (replayed on {on})"
    shrunk = f"shrunk to {on}" if report.drawn_ranks > report.case.ranks else f"on {on}"
    return f"        (found after {_count(report.tried, 'case')}, {shrunk})"


def _where(report: SearchResult) -> Iterator[tuple[str, str]]:
    if report.case is None:
        return
    if report.spaces is None:
        yield from _parameters(report.case)
    else:
        domain, codomain = report.spaces.domain, report.spaces.codomain
        if domain == codomain and len(domain.tensors) == 1:
            yield "partition", _tensors(domain)[0].removeprefix("partition ")
        else:
            for label, space in (("domain", domain), ("codomain", codomain)):
                for tensor in _tensors(space):
                    yield label, tensor
    if memory := _memory(report.case.setting):
        yield "memory", memory
    if report.case.schedules:
        yield "schedule", "; ".join(map(str, report.case.schedules))


def _parameters(case: Case) -> Iterator[tuple[str, str]]:
    yield "ranks", str(case.ranks)
    for name, value in case.parameters.items():
        partition = value.partition if isinstance(value, Layout) else None
        yield name, f"{value}" + (f" over partition {partition}" if partition is not None else "")


def _tensors(space: Space) -> list[str]:
    texts = []
    for tensor in space.tensors:
        layout = tensor.layout
        kind = str(tensor).removeprefix(str(layout)).strip()
        name = f"{tensor.name}: " if len(space.tensors) > 1 else ""
        texts.append(f"{name}partition {layout.partition}   layout {layout}   {kind}")
    return texts


def _memory(setting: InputSetting) -> str:
    plain = InputSetting(setting.seed)
    notes = [] if setting.library == plain.library else [setting.library]
    notes += [
        f"{side} {order}"
        for side, order, usual in (
            ("x", setting.primal_order, plain.primal_order),
            ("y", setting.dual_order, plain.dual_order),
        )
        if order != usual
    ]
    return ", ".join(notes)


def _findings(report: SearchResult) -> Iterator[tuple[str, str]]:
    here = f"{Path.cwd()}{os.sep}"
    for label, text in report.verdict.lines:
        if label == "traceback":
            yield label, _without_own_frames(text)
        else:
            # Lines of code are named as an editor opens them from here.
            yield label, text.replace(here, "")


def _without_own_frames(text: str) -> str:
    """A traceback from the first frame that is not the lab's."""
    frames = re.split(r'(?m)^(?=  File ")', text)
    kept = [frame for frame in frames if not _OWN_FRAMES.match(frame)]
    # The last frame also holds the exception, which must stay.
    return "".join(kept) if frames[-1] in kept else text


def _rounded_up(probability: float) -> str:
    if probability <= 0:
        return "1e-300"
    return f"1e{math.ceil(math.log10(probability) + 1e-9)}"


def _finite(value: float | str) -> float | str:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _relative(path: Path) -> Path:
    absolute, here = path.resolve(), Path.cwd().resolve()
    return absolute.relative_to(here) if absolute.is_relative_to(here) else path


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
