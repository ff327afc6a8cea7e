"""The text of a failure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from adjointlab.check_result import CheckResult, ReportedAs
from adjointlab.checks.proof import PROOF
from adjointlab.checks.told import lines_told
from adjointlab.engine.case_lines import case_lines
from adjointlab.engine.search_result import SearchResult
from adjointlab.quantities import counted
from adjointlab.spelling import from_here, this_folder
from adjointlab.store.files import printable
from adjointlab.worlds.world import WorldName

__all__ = ["failure_text", "replay_command"]


def failure_text(check_result: CheckResult) -> str:
    """Return the text of a failure: empty for a coherent result, one line for a known failure or an unexpected pass.

    Characters in messages of user code that are not printable are escaped.
    """
    return printable(_text(check_result), keep="\n\t")


def _text(check_result: CheckResult) -> str:
    result = check_result.result
    name = f"{check_result.subject} {result.check}"
    if check_result.reported_as is ReportedAs.UNEXPECTED:
        return f"{name}: is coherent, although it is listed as a known failure; remove the line: {check_result.known}"
    if check_result.reported_as is ReportedAs.COHERENT:
        return ""
    if check_result.reported_as is ReportedAs.EXPECTED:
        return f"{name}: fails as expected, {result.verdict.headline}; {check_result.known}"
    lines = [*case_lines(result), *_verdict_lines(result), *_replay_lines(check_result)]
    # The label "partition" is not aligned with the others, because it is so long that it would indent all texts too far.
    width = max((len(label) for label, _ in lines if label != "partition"), default=0)
    margin = "\n" + " " * (width + 4)
    return "\n".join(
        [
            f"{check_result.subject}: {result.verdict.headline}{_history(check_result)}",
            *(
                f"  partition {text}"
                if label == "partition"
                else f"  {label:<{width}}  {text.replace(chr(10), margin)}"
                for label, text in lines
            ),
        ]
    )


def replay_command(check_result: CheckResult) -> str:
    """Return the command that replays a stored failure. It names the subject if that is not installed."""
    assert check_result.written is not None
    result = check_result.result
    words = ["adjointlab", "replay", str(from_here(check_result.written.json))]
    if not check_result.found.is_installed:
        words += ["--subject", check_result.found.reference]
    assert result.case is not None
    return shlex.join([*WorldName(result.world).launcher(result.case.ranks), *words])


def _history(check_result: CheckResult) -> str:
    result = check_result.result
    if result.case is None:
        return ""
    ranks = counted(result.case.ranks, "rank")
    if check_result.replayed is not None:
        return f"        (replayed on {ranks})"
    smallest = ", no smaller neighbour fails" if result.is_smallest else ""
    shrunk = f"shrunk to {ranks}" if result.drawn_ranks > result.case.ranks else f"on {ranks}"
    return f"        (found after {counted(result.tried, 'case')}, {shrunk}{smallest})"


def _verdict_lines(result: SearchResult) -> Iterator[tuple[str, str]]:
    folder = this_folder()
    for label, text in lines_told(result.verdict):
        # Paths are made relative to this folder, so that an editor can open them from here; a traceback keeps Python's paths.
        yield label, text if label == "traceback" else text.replace(folder, "")


def _replay_lines(check_result: CheckResult) -> Iterator[tuple[str, str]]:
    written = check_result.written
    if written is not None:
        yield "replay", replay_command(check_result)
        if written.script is not None:
            yield "script", str(from_here(written.script))
        return
    if check_result.unwritten:
        yield "replay", f"could not be stored: {check_result.unwritten}"
    elif check_result.result.case is not None:
        return
    is_drawn = check_result.seed is not None and check_result.result.check != PROOF.name
    if is_drawn and not check_result.is_misdeclared:
        # This is the seed of one check, also in a test, so the command is `adjointlab check`: pytest's option sets a session's seed.
        yield "seed", f"adjointlab check --seed {check_result.seed} draws these cases again"
