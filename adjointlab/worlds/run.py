"""One run of a body: an outcome for each rank, and what the world found."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from adjointlab.quantities import ranks_listed
from adjointlab.worlds.backward import BackwardPass
from adjointlab.worlds.call_sites import came_back, is_lab, is_worlds
from adjointlab.worlds.exception_text import in_brief, message_of, with_kind
from adjointlab.worlds.watchdog import Overdue

__all__ = [
    "Blocked",
    "Dead",
    "Finding",
    "FindingKind",
    "Matched",
    "MatchedCall",
    "Outcome",
    "PeerFailed",
    "Raised",
    "Returned",
    "Run",
]


@dataclass(frozen=True)
class Returned:
    """The rank returned a value."""

    value: Any

    def __str__(self) -> str:
        return "returned"


@dataclass(frozen=True)
class Raised:
    """The rank raised an exception: its class name, message and formatted traceback.

    `exception` is None if it could not be pickled, so use :meth:`is_a` to test its type. `in_lab` is True if no user code was
    running.
    """

    kind: str
    message: str
    traceback: str
    exception: BaseException | None = None
    types: tuple[type[BaseException], ...] = ()
    in_lab: bool = False

    @classmethod
    def of(cls, exception: BaseException) -> Raised:
        """The outcome of a rank whose body raised `exception`; its traceback begins at the first frame of user code."""
        whole = start = exception.__traceback__
        while start is not None and is_worlds(start.tb_frame.f_code.co_filename):
            start = start.tb_next
        formatted = traceback.TracebackException(type(exception), exception, start or whole)
        if isinstance(exception, Overdue):
            # Its innermost frame is the watchdog's signal handler, which is not where the rank was.
            while len(formatted.stack) > 1 and is_worlds(formatted.stack[-1].filename):
                formatted.stack.pop()
        types = tuple(filter(_is_known_everywhere, type(exception).__mro__))
        text = "".join(formatted.format())
        in_lab = all(is_lab(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(whole))
        return cls(type(exception).__name__, message_of(exception), text, exception, types, in_lab)

    @classmethod
    def of_no_signal(cls, exception: KeyboardInterrupt) -> Raised:
        """The outcome of a rank whose body raised KeyboardInterrupt without a signal: it ends the case, not the process."""
        return replace(cls.of(exception), exception=None, types=(BaseException,))

    @classmethod
    def overdue(cls, exception: Overdue, stack: str) -> Raised:
        """The outcome of a rank in which the watchdog has raised `exception`, even if user code has swallowed it."""
        name = f"{Overdue.__module__}.{Overdue.__qualname__}"
        text = f"Traceback (most recent call last):\n{stack}\n{name}: {exception}\n"
        return cls(
            Overdue.__name__, str(exception), text, None, tuple(filter(_is_known_everywhere, Overdue.__mro__))
        )

    def is_a(self, kind: type[BaseException]) -> bool:
        """Return True if the exception is an instance of `kind`, a class of the lab or of Python itself.

        Compares classes rather than names: user code may have a class of the same name.
        """
        return kind in self.types

    def __str__(self) -> str:
        return f"raised {with_kind(self.kind, in_brief(self.message))}"


def _is_known_everywhere(kind: type) -> bool:
    """Return True for classes that every process of the job can import by name, as unpickling requires."""
    module = sys.modules.get(kind.__module__)
    is_installed = kind.__module__ == "builtins" or kind.__module__.startswith("adjointlab.")
    return is_installed and getattr(module, kind.__qualname__, None) is kind


@dataclass(frozen=True)
class Blocked:
    """The rank was in a call that could not complete."""

    call: str  # e.g. "Recv(source=1, tag=0)"
    where: str  # "file:line" of the caller outside adjointlab
    waits_for: tuple[int, ...]
    # The call sends a message, and may wait until it is received.
    is_send: bool = field(default=False, compare=False)
    # If the call is the lab's own: a verb phrase for where the rank has been, see :func:`came_back`.
    came_back: str = field(default=came_back(None), compare=False)
    # The call is made in a backward pass of torch.
    in_backward: bool = field(default=False, compare=False)

    @property
    def is_lab(self) -> bool:
        """True if the call is the lab's own, made after user code has returned."""
        return is_lab(self.where.rpartition(":")[0])

    def __str__(self) -> str:
        if self.is_lab:
            return f"had {self.came_back}, waiting for {self._whom}"
        return f"blocked in {self.call} at {self.where}, waiting for {self._whom}"

    @property
    def _whom(self) -> str:
        return ranks_listed(self.waits_for) if self.waits_for else "nobody in particular"


@dataclass(frozen=True)
class PeerFailed:
    """The rank's wait or call was cancelled because other ranks had failed."""

    call: str
    where: str
    peers: tuple[int, ...]
    came_back: str = field(default=came_back(None), compare=False)

    def __str__(self) -> str:
        peers = ranks_listed(sorted(set(self.peers)))
        if is_lab(self.where.rpartition(":")[0]):
            return f"had {self.came_back} when {peers} failed"
        return f"left {self.call} at {self.where} because {peers} failed"


@dataclass(frozen=True)
class Dead:
    """The rank's process is gone."""

    reason: str

    def __str__(self) -> str:
        return f"dead: {self.reason}"


Outcome = Returned | Raised | Blocked | PeerFailed | Dead


class FindingKind(StrEnum):
    """The faults that a world detects in a run."""

    DEADLOCK = "deadlock"
    LIVELOCK = "livelock"
    BLOCKED = "blocked"
    MISMATCHED_COLLECTIVE = "mismatched collective"
    MISMATCHED_MESSAGE = "mismatched message"
    MESSAGE_LEFT_OVER = "message left over"
    REQUEST_LEFT_OPEN = "request left open"
    COMMUNICATOR_LEFT_OPEN = "communicator left open"
    BUFFER_MISUSED = "buffer misused"
    PAST_THE_RUN = "communication past the run"
    GROUP_OF_ANOTHER_RANK = "group in shared module state"


@dataclass(frozen=True)
class Finding:
    """Fault that the world itself detected in a run. If `is_busy`, a rank was still at work, so it may not be a fault."""

    kind: FindingKind | str  # a string describes the end of the job, such as "a rank called MPI_Abort(1)"
    text: str
    is_busy: bool = False


class MatchedCall(Protocol):
    """A call whose ``str`` shows its name and arguments."""

    @property
    def where(self) -> str:
        """``file:line`` of the caller."""


@dataclass(frozen=True)
class Matched:
    """The match of a call that several messages or requests could have completed."""

    rank: int
    call: MatchedCall
    what: str  # e.g. "receives from rank 1"
    sender: int | None = None  # of the matched message; None for a request
    crosses: bool = False  # whether the sender is in another application of the operator

    def __str__(self) -> str:
        return f"rank {self.rank} in {self.call} at {self.call.where} {self.what}"


@dataclass(frozen=True)
class Run:
    """One execution of a body: an outcome for each rank, and the findings of the world.

    `matched` lists, in order of time, the calls that could have matched otherwise; `decisions` is the record of the
    schedule (:mod:`adjointlab.worlds.schedule`); `backward` has each rank's latest backward pass, by rank; `delayed` has the
    calls whose results were delayed as long as MPI allows. All are empty if the world does not record them.
    """

    outcomes: tuple[Outcome, ...]
    findings: tuple[Finding, ...] = ()
    matched: tuple[Matched, ...] = field(default=(), compare=False, repr=False)
    decisions: str = field(default="", compare=False, repr=False)
    communicating: frozenset[int] = field(default=frozenset(), compare=False, repr=False)
    backward: tuple[BackwardPass | None, ...] = field(default=(), compare=False, repr=False)
    delayed: tuple[MatchedCall, ...] = field(default=(), compare=False, repr=False)

    @property
    def completed(self) -> bool:
        """True if every rank returned and the world found nothing wrong."""
        return not self.findings and all(isinstance(outcome, Returned) for outcome in self.outcomes)

    @property
    def values(self) -> tuple[Any, ...]:
        """Value that each rank returned (only for a run whose ranks all returned)."""
        return tuple(outcome.value for outcome in self.outcomes if isinstance(outcome, Returned))

    def __str__(self) -> str:
        """A line for each outcome, with the ranks that have it, and each finding; then the traceback of the first rank that raised."""
        ranks_with: dict[str, list[int]] = {}
        for rank, outcome in enumerate(self.outcomes):
            ranks_with.setdefault(str(outcome), []).append(rank)
        lines = [f"{ranks_listed(ranks)}: {text}" for text, ranks in ranks_with.items()]
        lines += [f"{finding.kind}: {finding.text}" for finding in self.findings]
        tracebacks = (outcome.traceback for outcome in self.outcomes if isinstance(outcome, Raised))
        return "\n".join([*lines, *(text.rstrip() for text in (next(tracebacks, ""),) if text)])
