"""Verdicts: what a check concludes about a case, and the exception of one that can conclude nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["Inapplicable", "MatrixEntry", "Status", "Verdict", "coherent", "incoherent"]


class Inapplicable(Exception):
    """A check has nothing to say about a case; another case is drawn instead.

    Raise it from data that all ranks share, so that it is raised on every rank or on none: a rank that went on alone
    would wait for messages of the others.
    """


class Status(Enum):
    """Outcome of judging a case."""

    COHERENT = "coherent"
    INCOHERENT = "incoherent"
    UNJUDGED = "could not be judged"  # a crash or a hang


@dataclass(frozen=True)
class MatrixEntry:
    """Indices of the matrix entry that is wrong: e_column of the domain, f_row of the codomain's dual."""

    column: int
    row: int
    weight: complex | None = None  # by the specification, where that was compared


@dataclass(frozen=True)
class Verdict:
    """Status, headline, the labelled lines that explain it, and the figures behind it.

    `kind` distinguishes failures that shrinking must not confuse: a smaller case replaces a failing one only if it fails
    with the same kind. `figures` are reported for coherent cases too: the miss probability of an exact test, the error
    of the floating one [Hewett21, eq. 26]. `entry` is the matrix entry that the lines name, if any. `is_exact` is True if
    equality was asked for, on integers that nothing rounds.
    """

    status: Status
    headline: str = ""
    kind: str = ""
    lines: tuple[tuple[str, str], ...] = ()
    figures: dict[str, float | str] = field(default_factory=dict)
    # Read by the generated script alone. Two runs of a case that fails in the same way count as the same failure.
    entry: MatrixEntry | None = field(default=None, compare=False)
    is_exact: bool = False

    @property
    def is_coherent(self) -> bool:
        return self.status is Status.COHERENT

    def __str__(self) -> str:
        width = max((len(label) for label, _ in self.lines), default=0)
        return "\n".join(
            [self.headline or self.status.value, *(f"  {a:<{width}}  {b}" for a, b in self.lines)]
        )


def coherent(**figures: float | str) -> Verdict:
    """Verdict of a check that found nothing wrong."""
    return Verdict(Status.COHERENT, figures=figures)


def incoherent(
    headline: str,
    *lines: tuple[str, str],
    kind: str = "",
    figures: Mapping[str, float | str] | None = None,
    entry: MatrixEntry | None = None,
) -> Verdict:
    """Verdict of a check that found a fault; its kind is the headline unless `kind` gives another."""
    return Verdict(Status.INCOHERENT, headline, kind or headline, lines, dict(figures or {}), entry)
