"""Verdicts: the conclusions of a check about a case, and the exceptions of a check that has none."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from adjointlab.checks.evidence import Evidence
from adjointlab.pictures.drawable import Drawable

if TYPE_CHECKING:
    from adjointlab.pictures.model import Drawing

__all__ = [
    "PERHAPS",
    "VARIOUS",
    "Figure",
    "Figures",
    "Inapplicable",
    "MatrixEntry",
    "Measurement",
    "NotMeasured",
    "Status",
    "Undecided",
    "Verdict",
    "coherent",
    "incoherent",
    "unjudged",
]


class Inapplicable(Exception):
    """A check does not apply to a case; another case is drawn instead.

    Decide on it from data that all ranks share, so that it is raised on every rank or on none: a rank that went on alone
    would wait for messages of the others.
    """


PERHAPS: Final = (
    "perhaps",
    "a cast to a narrower element type, a solver that stops at a tolerance, an ill-conditioned one, or a declared gain with coefficients "
    "that are not integers: if that is meant, declare the allowed error as `rounding`",
)
"""Line on the possible causes of relative errors below :data:`~adjointlab.checks.elements.SMALL`."""


class Undecided(Inapplicable):
    """Results differ, and it is unknown whether they may. Another case is drawn instead; if there are many such, there is no verdict."""


class Measurement(IntEnum):
    """The extent to which a run measures rounding, in addition to the observation of its check."""

    NONE = 0
    ONE_SAMPLE = 1  # of a sequential module, which mostly shows enough
    ALL = 2


class NotMeasured(Exception):
    """A judge needs the effect of rounding, which only a run can measure: the case has to run again with a larger :class:`Measurement`."""


class Status(Enum):
    """Outcome of judging a case."""

    COHERENT = "coherent"
    INCOHERENT = "incoherent"
    UNJUDGED = "could not be judged"  # a crash or a hang


class Figure(StrEnum):
    """The figures of a verdict, by their names in reports and files."""

    GAIN = "gain"
    GAIN_SOURCE = "gain from"
    MISS_PROBABILITY = "miss probability"  # of an exact test
    FLOATING_ERROR = "floating error"  # [Hewett21, eq. 26]
    NONZERO = "inner products other than zero"  # the largest number in a case
    ENTRIES = "entries"  # the number of matrix entries that were compared
    PROVED = "proved"  # whether these are all entries
    ROUNDING = "taken for rounding"  # the largest difference, relative to the largest value of its tensor
    REACHED = "parts that a gradient reaches"  # of the cut parameter with the fewest, the most in a case
    LEAST_REACHED = "parameter with the fewest"  # such parts


Figures: TypeAlias = dict[Figure, float | str]

VARIOUS: Final = "various"
"""A text among the figures that differs from case to case."""


@dataclass(frozen=True)
class MatrixEntry:
    """Indices of the wrong matrix entry: e_column of the domain, f_row of the codomain's dual."""

    column: int
    row: int
    weight: complex | None = None  # by the specification, if that was compared


@dataclass(frozen=True)
class Verdict(Drawable):
    """Status, headline, the labelled lines that explain it, and its figures.

    `kind` distinguishes failures that shrinking must not confuse: a smaller case replaces a failing one only if it fails
    with the same kind. `figures` are reported for coherent cases too. `entry` is the matrix entry that the lines name, if
    any, and `evidence` is for pictures. `is_exact` is True if equality was required, on integers that are never rounded; `is_hang` if
    ranks waited for ever, and none was merely busy; `is_death` if a rank had died.
    """

    status: Status
    headline: str = ""
    kind: str = ""
    lines: tuple[tuple[str, str], ...] = ()
    figures: Figures = field(default_factory=dict)
    # Only for the generated script. It is not compared: two runs that fail in the same way count as the same failure.
    entry: MatrixEntry | None = field(default=None, compare=False)
    is_exact: bool = False
    is_hang: bool = False
    is_death: bool = False
    # Only for pictures.
    evidence: Evidence | None = field(default=None, compare=False, repr=False)

    @property
    def is_coherent(self) -> bool:
        return self.status is Status.COHERENT

    def with_lines(self, *more: tuple[str, str]) -> Verdict:
        """Return the verdict with more lines below its own."""
        return replace(self, lines=(*self.lines, *more)) if more else self

    def fails_like(self, other: Verdict) -> bool:
        """Return True for two failures of one kind. All deaths count as one kind: only the remains of a job show how it died."""
        return self.kind == other.kind or (self.is_death and other.is_death)

    def drawing(self) -> Drawing:
        """Return the evidence of a failure as a drawing, without parts if there is none."""
        from adjointlab.checks.drawing import verdict_drawing

        return verdict_drawing(self)

    def _heading(self) -> str:
        return str(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the verdict as text: IPython calls this, also for the verdicts in the mapping that the checks return."""
        printer.text(str(self))

    def __str__(self) -> str:
        width = max((len(label) for label, _ in self.lines), default=0)
        return "\n".join(
            [self.headline or self.status.value, *(f"  {a:<{width}}  {b}" for a, b in self.lines)]
        )


def coherent(figures: Figures | None = None, *, is_exact: bool = False) -> Verdict:
    """Verdict of a check that found nothing wrong."""
    return Verdict(Status.COHERENT, figures=figures or {}, is_exact=is_exact)


def incoherent(
    headline: str,
    *lines: tuple[str, str],
    kind: str = "",
    figures: Figures | None = None,
    entry: MatrixEntry | None = None,
    evidence: Evidence | None = None,
) -> Verdict:
    """Verdict of a check that found a fault; its kind is the headline unless `kind` gives another."""
    return Verdict(
        Status.INCOHERENT, headline, kind or headline, lines, figures or {}, entry, evidence=evidence
    )


def unjudged(
    headline: str,
    *lines: tuple[str, str],
    kind: str = "",
    is_hang: bool = False,
    is_death: bool = False,
    evidence: Evidence | None = None,
) -> Verdict:
    """Verdict on a case that crashed, hung, or could not be drawn; its kind is the headline unless `kind` gives another."""
    return Verdict(
        Status.UNJUDGED,
        headline,
        kind or headline,
        lines,
        is_hang=is_hang,
        is_death=is_death,
        evidence=evidence,
    )
