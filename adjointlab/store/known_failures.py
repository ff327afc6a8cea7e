"""A file of known failures, which lets a project adopt the whole suite before it passes.

One failure per line, with the reason in a comment, which begins with ``#``::

    # until issue 17 is closed
    RingShift adjoint                                     # subject and check, as adjointlab list names them
    tests/test_layers.py::TestLinear::test_gradients      # or the node id of any test

A listed failure does not fail the run. A listed check or test that unexpectedly passes does, so that the list stays up to date.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from adjointlab.checks.check import check_named

__all__ = ["BadList", "Known", "KnownFailures", "read"]


class BadList(ValueError):
    """A file is not a list of known failures; the message names the line, and says what a line may contain."""


@dataclass(frozen=True)
class Known:
    """A line of the list: its position, and the reason."""

    position: str  # "file:line"
    reason: str

    def __str__(self) -> str:
        return f"{self.reason or 'the list gives no reason'} ({self.position})"


@dataclass(frozen=True)
class KnownFailures:
    """The known failures of a file: checks of subjects, and tests."""

    checks: dict[tuple[str, str], Known]
    tests: dict[str, Known]

    def of_check(self, subject: str, check: str) -> Known | None:
        """Return the entry of a check of a subject."""
        return self.checks.get((subject, check))

    def of_test(self, nodeid: str) -> Known | None:
        """Return the entry of a test; an entry without parameters applies to all parameters."""
        return self.tests.get(nodeid) or self.tests.get(nodeid.partition("[")[0])

    def unused(
        self, pairs: Collection[tuple[str, str]], nodeids: Collection[str] | None = None
    ) -> list[Known]:
        """Return the entries that match none of the given checks and tests."""
        found = [known for pair, known in self.checks.items() if pair not in pairs]
        if nodeids is not None:
            present = {*nodeids, *(nodeid.partition("[")[0] for nodeid in nodeids)}
            found += [known for nodeid, known in self.tests.items() if nodeid not in present]
        return found


def read(path: Path) -> KnownFailures:
    """Read the list in a file. Raises :class:`BadList`."""
    try:
        # utf-8-sig, because Windows editors may write a byte order mark, which would become part of the first name.
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadList(f"{path}: {why}") from None
    checks: dict[tuple[str, str], Known] = {}
    tests: dict[str, Known] = {}
    for number, line in enumerate(text.splitlines(), 1):
        position = f"{path}:{number}"
        # The parameters in a node id may contain a "#", so a comment needs a blank before it.
        content, _, comment = re.sub(r"(^|\s)#", "\0", line, count=1).partition("\0")
        content, known = content.strip(), Known(position, comment.strip())
        if not content:
            continue
        before: Known | None
        if "::" in content:
            before = tests.get(content)
            tests[content] = known
        else:
            pair = _pair(content, position)
            before = checks.get(pair)
            checks[pair] = known
        if before is not None:
            raise BadList(f"{position}: {content} stands at {before.position} already")
    return KnownFailures(checks, tests)


def _pair(content: str, position: str) -> tuple[str, str]:
    words = content.rsplit(maxsplit=1)  # the name of a subject may have spaces
    if len(words) != 2:
        raise BadList(
            f"{position}: {content!r} cannot be read as a known failure; a line is a subject and a check (RingShift adjoint) or a test's node id "
            "(tests/test_rings.py::test_shift), and perhaps a # with a comment"
        )
    try:
        check_named(words[1])
    except ValueError as error:
        raise BadList(f"{position}: {error}") from None
    return words[0], words[1]
