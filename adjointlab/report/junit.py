"""The results as a JUnit file, which CI services display as tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree

from adjointlab.check_result import CheckResult, ReportedAs
from adjointlab.report.failure_text import failure_text
from adjointlab.report.recap import diagnosis
from adjointlab.store.files import printable

__all__ = ["NotJudged", "as_junit"]


_TAGS: Final = {
    ReportedAs.INCOHERENT: "failure",
    ReportedAs.UNEXPECTED: "failure",
    ReportedAs.UNJUDGED: "error",
    ReportedAs.EXPECTED: "skipped",
}
"""The element for each kind of result; a coherent result has none."""


@dataclass(frozen=True)
class NotJudged:
    """A check without a result: the `reference` of its subject on a command line, and the `name` of the test."""

    reference: str
    name: str


def as_junit(
    results: Sequence[CheckResult],
    missing: Sequence[NotJudged] = (),
    incomplete: str = "",
    notes: Sequence[str] = (),
) -> str:
    """Return the XML: a test for each check of a subject, in the suite "adjointlab".

    An incoherent result is a failure, a result that could not be judged is an error, an expected failure is skipped, and an unexpected
    pass is a failure. The message is the headline with the hints on the kind of fault. The seed is empty if nothing was drawn.
    `incomplete` is the reason if the run is not complete: the checks in `missing` are then errors, or the run itself if these are not
    known. The `notes` are the standard error of the suite.
    """
    if incomplete:
        missing = missing or [NotJudged("adjointlab", "adjointlab check")]
    suite = ElementTree.Element("testsuite", name="adjointlab", tests=str(len(results) + len(missing)))
    for entry in results:
        _add(suite, entry)
    for each in missing:
        case = ElementTree.SubElement(
            suite, "testcase", classname=printable(each.reference), name=printable(each.name), time="0.000"
        )
        ElementTree.SubElement(case, "error", message=f"not judged: {printable(incomplete, keep=chr(10))}")
    if notes:
        ElementTree.SubElement(suite, "system-err").text = "\n".join(map(printable, notes))
    tags = Counter(_TAGS.get(entry.reported_as) for entry in results)
    suite.set("failures", str(tags["failure"]))
    suite.set("errors", str(tags["error"] + len(missing)))
    suite.set("skipped", str(tags["skipped"]))
    suite.set("time", f"{sum(entry.result.seconds for entry in results):.3f}")
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _add(suite: ElementTree.Element, entry: CheckResult) -> None:
    """Add the test of a result."""
    result = entry.result
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=printable(entry.found.reference),
        name=f"{printable(entry.subject)} {result.check}",
        time=f"{result.seconds:.3f}",
    )
    properties = ElementTree.SubElement(case, "properties")
    for name, value in (("seed", entry.seed), ("cases", result.tried)):
        ElementTree.SubElement(properties, "property", name=name, value="" if value is None else str(value))
    if (tag := _TAGS.get(entry.reported_as)) is not None:
        ElementTree.SubElement(case, tag, message=diagnosis(entry)).text = failure_text(entry)
