"""The words of the code are those of MPI, autograd and testing: no private word stands in the package or its documents."""

from __future__ import annotations

import re
from functools import cache
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


@cache
def lines(*where: str) -> list[tuple[str, str]]:
    """The lines of the modules and the documents that are written by hand in some folders, each after its place.

    A capital within an identifier begins a word, as an underscore does.
    """
    names = [name for name in tracked(*where) if name.endswith((".py", ".md")) and name not in GENERATED]
    return [
        (f"{name}:{number}", re.sub(r"([a-z])([A-Z])", r"\1 \2", line.strip()))
        for name in names
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1)
    ]


def found(pattern: re.Pattern[str], *where: str) -> str:
    return "\n".join(f"{place}: {line}" for place, line in lines(*where) if pattern.search(line))


@pytest.mark.parametrize("word", PRIVATE)
def test_a_private_word_stands_nowhere(word: str) -> None:
    pattern = re.compile(rf"(?<![a-z])(?:{word})(?![a-z])", re.IGNORECASE)
    assert not (there := found(pattern, *PACKAGE, *DOCUMENTS)), f"write {PRIVATE[word]!r} instead:\n{there}"


def test_a_docstring_says_what_a_thing_does_rather_than_asks() -> None:
    pattern = re.compile(r'^r?"""(?:What|Whether|How|Who|Where|Which)\b')
    assert not found(pattern, *PACKAGE, "tests", "benchmarks", "examples")


def test_an_error_says_that_a_value_is_not_a_list_rather_than_is_no_list() -> None:
    assert not found(re.compile(r"\} (?:is|are) no \w"), *PACKAGE)
