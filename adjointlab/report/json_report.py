"""The results as JSON (``adjointlab check --json``). The object always has all of these keys:

- ``schema``: 1; ``world``: "simulated", "mpi" or "torch"; ``ranks``: the size of the world;
- ``complete``: false after a usage error, Ctrl-C or another signal, and during the run, because the file is written at its beginning and
  rewritten after every verdict; one of the ``notes`` says why;
  ``exit_code``: that of the run (:class:`~adjointlab.exit_codes.ExitCode`), 3 during the run;
  ``notes``: a list of sentences on what the verdicts do not cover, such as subjects whose ranks never communicated, or that
  are not checked because they have no name;
  ``asked``: the number of requested checks of subjects; each that has ended has an entry in
- ``reports``: a list, one entry for each subject and check, with

  - ``subject``, as ``adjointlab list`` names it, ``reference`` (which names it on a command line), ``installed``, ``check``;
  - ``verdict``: "coherent", "incoherent" or "could not be judged"; ``headline``, ``kind``;
    ``lines``: a list of [label, text]; ``hints``: a list of objects with the ``kind`` of a fault and a ``text`` about it, empty
    if there is no clear evidence;
  - ``figures``: an object of numbers and strings, e.g. "miss probability";
  - ``known``: the reason and position of its entry in the list of known failures (``--xfails``), or null;
  - ``cases``: the number of cases judged; ``seed`` of the draws (null if none was drawn, because a stored case still fails);
    ``seconds``;
  - ``counts``: an object, or null if no search was completed: the numbers of cases ``asked`` for and ``judged``; of the judged cases,
    those ``on_several_ranks``; of these, those with at least two ranks ``communicating``; ``most_ranks`` that communicated in one
    case; ``lacking_messages``: the cases in which no rank communicated although the declared spaces need messages;
    ``is_cut_short``: true if ``--max-time`` was up before all cases were drawn;
    ``rejected``: an object of reasons, each with the number of cases that could not be judged for it; ``undecided``: the number of
    these whose results differ, where nothing shows if they may;
  - ``case``: the smallest failing case, as in a reproducer, or null;
  - ``reproducer``, ``script``: paths, or null; ``replay``: the command, or null.

Numbers that JSON lacks are strings ("nan", "inf").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from adjointlab.check_result import CheckResult
from adjointlab.checks.told import hints_told
from adjointlab.report.failure_text import replay_command
from adjointlab.report.summary import notes
from adjointlab.spelling import from_here
from adjointlab.store.json_lines import json_figures

__all__ = ["as_data"]


def as_data(
    results: Sequence[CheckResult],
    world: str,
    ranks: int,
    code: int,
    asked: int,
    *,
    complete: bool,
    nameless: Sequence[str] = (),
) -> dict[str, object]:
    """Return the object that the module's docstring describes."""
    return {
        "schema": 1,
        "world": world,
        "ranks": ranks,
        "complete": complete,
        "exit_code": int(code),
        "asked": asked,
        "notes": [*notes(results), *nameless],
        "reports": [_entry(entry) for entry in results],
    }


def _entry(check_result: CheckResult) -> dict[str, object]:
    result, written = check_result.result, check_result.written
    return {
        "subject": check_result.subject,
        "reference": check_result.found.reference,
        "installed": check_result.found.is_installed,
        "check": result.check,
        "verdict": result.status.value,
        "headline": result.verdict.headline,
        "kind": result.verdict.kind,
        "lines": [list(line) for line in result.verdict.lines],
        "hints": [{"kind": hint.kind.value, "text": hint.text} for hint in hints_told(result.verdict)],
        "figures": json_figures(result.figures or result.verdict.figures),
        "cases": result.tried,
        "counts": None if result.counts is None else asdict(result.counts),
        "seed": check_result.seed,
        "seconds": round(result.seconds, 3),
        "known": check_result.known or None,
        "case": None if result.case is None else result.case.data(),
        "reproducer": None if written is None else str(from_here(written.json)),
        "script": None if written is None or written.script is None else str(from_here(written.script)),
        "replay": None if written is None else replay_command(check_result),
    }
