"""The words of the code are those of MPI, autograd and testing: no private word stands in the package or its documents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tracked import tracked

ROOT = Path(__file__).resolve().parents[1]

PRIVATE = {
    "strand": "task",
    "doom": "cancel",
    "condemn": "cancel",
    "unwound": "Cancelled",
    "liberties|liberty": "nondeterminism",
    "heard|hears": "matched, receives from",
    "pausing": "backoff",
    "ledger": "job log",
    "journal": "job log, JSON lines",
    "obituary|obituaries|bury|buries|buried": "exit report, record",
    "hound|patrol|bark|barked": "watchdog",
    "enrol|enrols|enrolled|enrolment": "install exit hooks",
    "immortal": "keepalive",
    "spoilt|littered|litter": "leaked",
    "parcel|parcels": "payload",
    "travels|travelled": "is pickled, is sent",
    "trail|trails": "call log",
    "books": "run statistics",
    "fingerprint|fingerprints": "call signature",
    "rehearsal|rehearsals|rehearse|rehearsed": "simulate first",
    "mended": "unexpectedly passes, fixed",
    "last words|last_words|farewell|mourned|mourn": "report",
    "seed paper": "a key of docs/references.md",
}
"""Each private word, as a pattern, and what to write instead."""

GENERATED = {"docs/power.md", "docs/faults.md", "docs/benchmarks.md"}


PACKAGE = ("adjointlab", "primitives", "layers")
DOCUMENTS = ("docs", "README.md", "CONTRIBUTING.md")


def texts(*where: str) -> list[Path]:
    """The modules and the documents that are written by hand in some folders."""
    return [
        ROOT / name for name in tracked(*where) if name.endswith((".py", ".md")) and name not in GENERATED
    ]


@pytest.mark.parametrize("word", PRIVATE)
def test_a_private_word_stands_nowhere(word: str) -> None:
    # An underscore or a capital within an identifier begins a word, too.
    pattern = re.compile(rf"(?<![a-z])(?:{word})(?![a-z])", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts(*PACKAGE, *DOCUMENTS)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(re.sub(r"([a-z])([A-Z])", r"\1 \2", line))
    ]
    assert not found, f"write {PRIVATE[word]!r} instead:\n" + "\n".join(found)


def test_a_docstring_says_what_a_thing_does_rather_than_asks() -> None:
    pattern = re.compile(r'^\s*r?"""(?:What|Whether|How|Who|Where|Which)\b')
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts(*PACKAGE, "tests", "benchmarks", "examples")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.match(line)
    ]
    assert not found, "\n".join(found)


def test_an_error_says_that_a_value_is_not_a_list_rather_than_is_no_list() -> None:
    pattern = re.compile(r"\} (?:is|are) no \w")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts(*PACKAGE)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)
