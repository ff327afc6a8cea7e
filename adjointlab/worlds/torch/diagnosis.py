"""The leader's diagnosis of a run on real process groups, from the errors of the backend and the logs of all ranks.

A real backend reports only that a timeout has expired, or that a connection was closed. The errors of all ranks together show which
rank failed first, and which ones failed because of it; their logs show the mismatched calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

import torch.distributed as dist

from adjointlab.worlds.call_sites import user_frame
from adjointlab.worlds.diagnosis import heading
from adjointlab.worlds.divergence import Place, divergence_lines
from adjointlab.worlds.exception_text import causes
from adjointlab.worlds.parts import of_ranks
from adjointlab.worlds.run import Blocked, Finding, FindingKind, Outcome, PeerFailed, Raised, Returned
from adjointlab.worlds.torch.calls import GroupSummary, LoggedCall
from adjointlab.worlds.torch.splits import unequal_splits

__all__ = ["GroupFailure", "RankStatistics", "communicating", "conclude", "failure_of"]


class FailureKind(StrEnum):
    """Reasons of a backend for a failed operation."""

    TIMEOUT = "timeout"
    CLOSED = "closed"


_SIGNS: Final = {
    FailureKind.TIMEOUT: (
        "timed out waiting",
        "wait timeout",
        "timeout caused",
        "connect timeout",
        "timed out after",
    ),
    FailureKind.CLOSED: (
        "connection closed by peer",
        "connection reset by peer",
        "broken pipe",
        "connection refused",
    ),
}
"""Parts of error messages of gloo, nccl and torch's store."""


@dataclass(frozen=True)
class GroupFailure:
    """An operation on a process group that has failed in the backend."""

    kind: FailureKind
    call: str
    where: str
    waited: bool = True  # for about as long as patience, or until its timeout

    def blocked(self) -> Blocked:
        return Blocked(self.call, self.where, ())


Logs: TypeAlias = Mapping[int, GroupSummary]
"""Logs of one group, by rank."""


class _Mismatch(NamedTuple):
    position: int  # index of the first mismatched collective of a group
    text: str


@dataclass(frozen=True)
class RankStatistics:
    """Statistics of one rank on a run, reported with its outcome."""

    failure: GroupFailure | None = None
    groups: Mapping[str, GroupSummary] = field(default_factory=dict)
    refused: tuple[str, ...] = ()


def failure_of(exception: BaseException, last: LoggedCall | None, *, waited: bool) -> GroupFailure | None:
    """The backend failure that caused `exception`, in the `last` logged call; None if there was none.

    `waited` is True if that call has taken about as long as patience. The ranks of a deadlock time out one after another, and
    the first one closes its connections to the others.
    """
    for cause in causes(exception):
        if isinstance(cause, RuntimeError) and (kind := _kind_of(cause)) is not None:
            return GroupFailure(kind, *_place_of(cause, last), waited or kind is FailureKind.TIMEOUT)
    return None


def _kind_of(error: RuntimeError) -> FailureKind | None:
    text = str(error).lower()
    is_backends = isinstance(error, dist.DistError) or any(
        part in text for part in ("/gloo/", "pair closure", "nccl")
    )
    kinds = (kind for kind, signs in _SIGNS.items() if any(sign in text for sign in signs))
    return next(kinds, None) if is_backends else None


def _place_of(error: BaseException, last: LoggedCall | None) -> tuple[str, str]:
    """The call and the line of user code."""
    entries = []
    entry = error.__traceback__
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    if not entries:
        return "torch.distributed", "an unknown place"
    caller = user_frame(entries[-1].tb_frame)
    frames = [each.tb_frame for each in entries]
    index = frames.index(caller) if caller in frames else -1
    where = f"{caller.f_code.co_filename}:{entries[index].tb_lineno}"
    if last is not None and last.where == where:
        return str(last.label), where
    called = (frame.f_code.co_name for frame in frames[index + 1 :])
    # "wrapper" is torch's decorator. Without a Python frame, C++ code waits for an earlier call.
    name = next((name for name in called if name != "wrapper"), "wait")
    return f"{name}()", where


def communicating(statistics: Sequence[RankStatistics]) -> frozenset[int]:
    """The ranks that have executed an operation on a process group of several ranks."""
    return frozenset(
        rank
        for rank, of_rank in enumerate(statistics)
        if any(len(group.members) > 1 and group.operations for group in of_rank.groups.values())
    )


def conclude(
    outcomes: Sequence[Outcome], statistics: Sequence[RankStatistics]
) -> tuple[tuple[Outcome, ...], tuple[Finding, ...]]:
    """Return the outcomes, revised in the light of all ranks' failures, and the findings of the run."""
    failures = [
        of_rank.failure if isinstance(outcome, Raised) else None
        for outcome, of_rank in zip(outcomes, statistics, strict=True)
    ]
    by_themselves = tuple(
        rank
        for rank, outcome in enumerate(outcomes)
        if isinstance(outcome, Raised) and failures[rank] is None
    )
    findings = [
        *(
            Finding(FindingKind.PAST_THE_RUN, f"rank {rank}: {reason}")
            for rank, of_rank in enumerate(statistics)
            for reason in of_rank.refused
        ),
        *_mismatches(outcomes, statistics),
    ]
    # The rank that times out first may be in a wait of the lab's: then the others' connections are closed while they wait.
    has_waited = any(failure is not None and failure.waited for failure in failures) or any(
        isinstance(outcome, Blocked) for outcome in outcomes
    )
    concluded: list[Outcome] = list(outcomes)
    for rank, failure in enumerate(failures):
        if failure is None:
            continue
        if by_themselves:
            concluded[rank] = PeerFailed(failure.call, failure.where, by_themselves)
        elif has_waited:
            concluded[rank] = failure.blocked()
        # Otherwise a connection was closed by a rank that has not failed: only the backend's error is known.
    if any(isinstance(outcome, Blocked) for outcome in concluded) and not any(
        finding.kind is FindingKind.MISMATCHED_COLLECTIVE for finding in findings
    ):
        findings.append(_stuck(concluded, failures, statistics))
    return tuple(concluded), tuple(findings)


def _stuck(
    outcomes: Sequence[Outcome], failures: Sequence[GroupFailure | None], statistics: Sequence[RankStatistics]
) -> Finding:
    lines = []
    for rank, outcome in enumerate(outcomes):
        place = f"in {outcome.call} at {outcome.where}" if isinstance(outcome, Blocked) else str(outcome)
        lines.append(f"  rank {rank} {place}")
    lines += _divergence_lines(_complete_logs(statistics), len(outcomes))
    blocked = sum(isinstance(outcome, Blocked) for outcome in outcomes)
    # A rank whose connection was closed may have arrived late, after the others had timed out.
    nobody_could_help = all(
        isinstance(outcome, Returned)
        or (isinstance(outcome, Blocked) and (failure is None or failure.waited))
        for outcome, failure in zip(outcomes, failures, strict=True)
    )
    if nobody_could_help:
        return Finding(FindingKind.DEADLOCK, "\n".join([heading(blocked, len(outcomes)), *lines]))
    return Finding(FindingKind.BLOCKED, "\n".join(["a wait lasted longer than the world's patience", *lines]))


def _mismatches(outcomes: Sequence[Outcome], statistics: Sequence[RankStatistics]) -> Iterator[Finding]:
    """Find the first mismatched collective of each group."""
    for logs in _logs_of_groups(statistics):
        if text := _other_members(logs):
            yield Finding(FindingKind.MISMATCHED_COLLECTIVE, text)
            continue
        # If calls have bypassed the log, its entries cannot be matched.
        if not all(log.is_complete for log in logs.values()):
            continue
        mismatch = _different(logs) or _other_splits(logs) or _left_alone(logs, outcomes)
        if mismatch is not None:
            lines = [
                f"in collective {mismatch.position + 1}{of_ranks(_members(logs), len(outcomes))}, {mismatch.text}"
            ]
            lines += _divergence_lines([logs], len(outcomes), before=mismatch.position)
            yield Finding(FindingKind.MISMATCHED_COLLECTIVE, "\n".join(lines))


def _logs_of_groups(statistics: Sequence[RankStatistics]) -> Iterator[Logs]:
    for name in dict.fromkeys(name for of_rank in statistics for name in of_rank.groups):
        yield {
            rank: of_rank.groups[name] for rank, of_rank in enumerate(statistics) if name in of_rank.groups
        }


def _complete_logs(statistics: Sequence[RankStatistics]) -> Iterator[Logs]:
    for logs in _logs_of_groups(statistics):
        if all(log.is_complete for log in logs.values()) and not _other_members(logs):
            yield logs


def _members(logs: Logs) -> Sequence[int]:
    return next(iter(logs.values())).members


def _divergence_lines(groups: Iterable[Logs], ranks: int, before: int | None = None) -> tuple[str, ...]:
    """Line on the first collective that ranks called from different places, among the first `before` collectives of each group."""
    return divergence_lines(
        (
            index,
            of_ranks(_members(logs), ranks),
            dict(zip(logs, (Place(call.where, call.in_backward) for call in calls), strict=True)),
        )
        for logs in groups
        for index, calls in enumerate(zip(*(log.collectives[:before] for log in logs.values()), strict=False))
    )


def _other_members(logs: Logs) -> str:
    """Describe ranks that make groups in different order; empty if there are none.

    Ranks match groups by serial number, and gloo connects groups with different members without an error.
    """
    (first, reference), *others = logs.items()
    for rank, log in others:
        if log.members != reference.members:
            return (
                "the ranks make groups in different orders, so that groups with different members are matched\n  "
                f"rank {first} makes new_group({list(reference.members)}) at {reference.made_at}\n  "
                f"rank {rank} makes new_group({list(log.members)}) at {log.made_at}"
            )
    return ""


def _different(logs: Logs) -> _Mismatch | None:
    (first, reference), *others = logs.items()
    for index, call in enumerate(reference.collectives):
        for rank, log in others:
            if index < len(log.collectives) and log.collectives[index].label != call.label:
                other = log.collectives[index]
                text = f"they call different collectives\n  rank {first} calls {call}\n  rank {rank} calls {other}"
                return _Mismatch(index, text)
    return None


def _other_splits(logs: Logs) -> _Mismatch | None:
    members = next(iter(logs.values())).members
    for position in range(max(len(log.collectives) for log in logs.values())):
        calls = {
            rank: log.collectives[position] for rank, log in logs.items() if position < len(log.collectives)
        }
        splits = {rank: call.splits for rank, call in calls.items() if call.splits is not None}
        if found := unequal_splits(members, splits):
            lines = dict.fromkeys(
                f"  rank {rank} calls {calls[rank]}" for rank in (found.sender, found.receiver)
            )
            return _Mismatch(position, "\n".join([str(found), *lines]))
    return None


def _left_alone(logs: Logs, outcomes: Sequence[Outcome]) -> _Mismatch | None:
    """A collective that one rank has called, and another one has not before it returned."""
    fewest = min(
        logs, key=lambda rank: (len(logs[rank].collectives), not isinstance(outcomes[rank], Returned))
    )
    most = max(logs, key=lambda rank: len(logs[rank].collectives))
    index = len(logs[fewest].collectives)
    if index == len(logs[most].collectives) or not isinstance(outcomes[fewest], Returned):
        return None
    text = f"only some ranks take part\n  rank {most} calls {logs[most].collectives[index]}\n  "
    return _Mismatch(index, f"{text}rank {fewest} has ended after {index}")
