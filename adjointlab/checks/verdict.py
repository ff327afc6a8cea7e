"""What a check says about a case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["MatrixEntry", "Status", "Verdict", "coherent", "incoherent"]


class Status(Enum):
    """How a case was judged."""

    COHERENT = "coherent"
    INCOHERENT = "incoherent"
    UNJUDGED = "could not be judged"  # a crash or a hang


@dataclass(frozen=True)
class MatrixEntry:
    """The matrix entry that is wrong: of e_i of the domain and f_j of the codomain's dual, and what it should be."""

    column: int  # i
    row: int  # j
    weight: complex | None = None  # by the specification, where that was compared


@dataclass(frozen=True)
class Verdict:
    """The answer: a headline, labelled lines that explain it, and the figures behind it.

    `kind` tells failures apart that a shrinking search must not confuse. `figures` are reported for coherent cases
    too: the miss probability of an exact test, the error of the floating one [Hewett21, eq. 26]. `entry` is the
    matrix entry that the lines name, if any.
    """

    status: Status
    headline: str = ""
    kind: str = ""
    lines: tuple[tuple[str, str], ...] = ()
    figures: dict[str, float | str] = field(default_factory=dict)
    entry: MatrixEntry | None = field(default=None, compare=False)  # for the script alone

    @property
    def is_coherent(self) -> bool:
        return self.status is Status.COHERENT

    def __str__(self) -> str:
        width = max((len(label) for label, _ in self.lines), default=0)
        return "\n".join(
            [self.headline or self.status.value, *(f"  {a:<{width}}  {b}" for a, b in self.lines)]
        )


def coherent(**figures: float | str) -> Verdict:
    """Nothing wrong was found."""
    return Verdict(Status.COHERENT, figures=figures)


def incoherent(
    headline: str,
    *lines: tuple[str, str],
    kind: str = "",
    figures: Mapping[str, float | str] | None = None,
    entry: MatrixEntry | None = None,
) -> Verdict:
    """Something is wrong, and this is how it shows."""
    return Verdict(Status.INCOHERENT, headline, kind or headline, lines, dict(figures or {}), entry)
