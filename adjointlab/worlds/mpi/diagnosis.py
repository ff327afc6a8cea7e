"""The leader's diagnosis of a run, from the outcomes and statistics of all ranks.

It must be certain. A call that one rank has made and another has not is a mismatch only once that
other rank has returned; if it was blocked or cancelled, it might have made the call later. A wait that lasted too
long is a deadlock only if no rank is left that could have ended it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from adjointlab.worlds.diagnosis import POLLING, UNBUFFERED_SENDS, cycle_line, heading, waits_for_text
from adjointlab.worlds.divergence import Place, divergence_lines
from adjointlab.worlds.mpi.call_log import CallLogSummary, CommKey, RunStatistics, first_mismatch
from adjointlab.worlds.mpi.message_log import message_mismatches
from adjointlab.worlds.parts import of_ranks
from adjointlab.worlds.run import Blocked, Finding, FindingKind, Outcome, PeerFailed, Returned

__all__ = ["communicating", "conclude"]


def communicating(statistics: Sequence[RunStatistics]) -> frozenset[int]:
    """The ranks whose user code took part in a collective or message with another rank."""
    found: set[int] = set()
    for rank, of_rank in enumerate(statistics):
        logs = (log for (members, _), log in of_rank.logs.items() if len(members) > 1)
        if any(not call.is_lab for log in logs for call in log.latest):
            found.add(rank)
        receivers = {other for other, sent in enumerate(of_rank.sent) if sent and other != rank}
        if receivers:
            found |= {rank, *receivers}
    return frozenset(found)


def conclude(
    outcomes: Sequence[Outcome], statistics: Sequence[RunStatistics]
) -> tuple[tuple[Finding, ...], bool]:
    """Return the findings of the run, and True if its communicators are clean enough for another."""
    has_returned = [isinstance(outcome, Returned) for outcome in outcomes]
    if any(isinstance(outcome, Blocked) for outcome in outcomes):
        return (
            *_misuses(statistics),
            # Not messages from another application: like the wait, these are consequences of a missing call.
            *_mismatched_messages(statistics, crossed=False),
            *_stuck(outcomes, statistics),
        ), False
    findings = (
        *_mismatched_messages(statistics),
        *_mismatches(statistics),
        *_open_requests(statistics),
        *_unreceived(statistics),
    )
    is_clean = not findings and not any(of_rank.has_abandoned for of_rank in statistics)
    if all(has_returned):
        return (*_misuses(statistics), *findings), is_clean
    # If a rank has failed, messages and requests left over are consequences, and not reported. But calls that do not match
    # always are, and may be why the rank raised: it received the wrong data, or MPI raised an error. An error of
    # MPI, such as Open MPI's for collectives of different lengths, may also be due to a rank that did not call at all.
    saw_mpi_error = any(of_rank.saw_mpi_error for of_rank in statistics)
    mismatches = _mismatches(statistics, [saw_mpi_error and returned for returned in has_returned])
    return (*_misuses(statistics), *_mismatched_messages(statistics), *mismatches), is_clean


def _stuck(outcomes: Sequence[Outcome], statistics: Sequence[RunStatistics]) -> Iterator[Finding]:
    """Explain why some ranks are blocked."""
    blocked = {rank: outcome for rank, outcome in enumerate(outcomes) if isinstance(outcome, Blocked)}
    has_returned = [isinstance(outcome, Returned) for outcome in outcomes]
    waiting = [rank for rank, outcome in enumerate(outcomes) if isinstance(outcome, Blocked | PeerFailed)]
    late = ", ".join(str(rank) for rank, of_rank in enumerate(statistics) if of_rank.was_late)
    # A rank that was still at work, or raised, might have ended the wait of another one.
    nobody_could_help = not late and all(isinstance(outcome, Blocked | Returned) for outcome in outcomes)
    lines = [_line(rank, outcome, has_returned) for rank, outcome in enumerate(outcomes)]
    if mismatches := tuple(_mismatches(statistics, has_returned)):
        # They explain why the ranks are stuck.
        yield from mismatches
        return
    lines += _divergence_lines(_communicators(statistics), statistics)
    if nobody_could_help and all(statistics[rank].was_polling for rank in waiting):
        yield Finding(FindingKind.LIVELOCK, "\n".join([POLLING, *lines]))
    elif nobody_could_help:
        lines.insert(0, heading(len(blocked), len(outcomes)))
        lines += cycle_line({rank: outcome.waits_for for rank, outcome in blocked.items()})
        if any(outcome.is_send for outcome in blocked.values()):
            lines.append(UNBUFFERED_SENDS)
        yield Finding(FindingKind.DEADLOCK, "\n".join(lines))
    else:
        busy = f" (rank {late} was still at work then)" if late else ""
        text = "\n".join([f"a wait lasted longer than the world's patience{busy}", *lines])
        yield Finding(FindingKind.BLOCKED, text, is_busy=bool(late))


def _line(rank: int, outcome: Outcome, has_returned: Sequence[bool]) -> str:
    if not isinstance(outcome, Blocked):
        return f"  rank {rank} {outcome}"
    if outcome.is_lab:
        text = f"  rank {rank} has {outcome.came_back}"
    else:
        text = f"  rank {rank} in {outcome.call} at {outcome.where}"
    return text + waits_for_text(outcome.waits_for, has_returned)


def _mismatches(
    statistics: Sequence[RunStatistics], is_final: Sequence[bool] | None = None
) -> Iterator[Finding]:
    """Find communicators on which the ranks called collectives that do not match.

    `is_final` has, for each rank, True if it would not have made any further call; the default is True for all.
    """
    for key in _communicators(statistics):
        members, _ = key
        logs = _logs(key, statistics)
        if mismatch := first_mismatch(logs):
            index, reason = mismatch.position, mismatch.reason
            calls = [
                call.by_rank(rank)
                for rank in dict.fromkeys((mismatch.rank, mismatch.other))
                if (call := logs[rank].call(index)) is not None
            ]
        else:
            # Among ranks with equally few calls, prefer one that makes no more.
            fewest = min(members, key=lambda rank: (logs[rank].calls, is_final is None or not is_final[rank]))
            most = max(members, key=lambda rank: logs[rank].calls)
            index, reason = logs[fewest].calls, "only some ranks take part"
            if index == logs[most].calls or not (is_final is None or is_final[fewest]):
                continue
            further = logs[most].call(index)
            calls = [
                f"rank {most} goes on" if further is None else further.by_rank(most),
                f"rank {fewest} has ended after {index}",
            ]
        heading_line = f"in collective {index + 1}{of_ranks(key[0], len(statistics))}, {reason}"
        lines = [heading_line, *(f"  {call}" for call in calls)]
        lines += _divergence_lines([key], statistics, before=index)
        yield Finding(FindingKind.MISMATCHED_COLLECTIVE, "\n".join(lines))


def _communicators(statistics: Sequence[RunStatistics]) -> Iterable[CommKey]:
    return dict.fromkeys(key for of_rank in statistics for key in of_rank.logs)


def _logs(key: CommKey, statistics: Sequence[RunStatistics]) -> dict[int, CallLogSummary]:
    return {rank: statistics[rank].logs.get(key, CallLogSummary(0, 0, ())) for rank in key[0]}


def _divergence_lines(
    keys: Iterable[CommKey], statistics: Sequence[RunStatistics], before: int | None = None
) -> tuple[str, ...]:
    """Line on the first collective that ranks called from different places, among the first `before` collectives of each communicator."""
    return divergence_lines(
        (index, of_ranks(key[0], len(statistics)), places)
        for key in keys
        for index, places in _places(_logs(key, statistics), before)
    )


def _places(logs: dict[int, CallLogSummary], before: int | None) -> Iterator[tuple[int, dict[int, Place]]]:
    """Index and places by rank of each collective that all ranks have described and user code has called."""
    completed = min(log.calls for log in logs.values())
    for index in range(completed if before is None else min(before, completed)):
        calls = {rank: call for rank, log in logs.items() if (call := log.call(index)) is not None}
        if len(calls) == len(logs) and not any(call.is_lab for call in calls.values()):
            yield index, {rank: Place(call.where) for rank, call in calls.items()}


def _misuses(statistics: Sequence[RunStatistics]) -> Iterator[Finding]:
    """Find faults that are independent of how the run ended: misuse of buffers, and calls that bypass the run."""
    for rank, of_rank in enumerate(statistics):
        for reason in of_rank.refused:
            yield Finding(FindingKind.PAST_THE_RUN, f"rank {rank}: {reason}")
        for misuse in of_rank.misuses:
            yield Finding(FindingKind.BUFFER_MISUSED, f"rank {rank} {misuse}")


def _mismatched_messages(statistics: Sequence[RunStatistics], *, crossed: bool = True) -> Iterator[Finding]:
    for key in dict.fromkeys(key for of_rank in statistics for key in of_rank.messages):
        logs = {
            rank: of_rank.messages[key] for rank, of_rank in enumerate(statistics) if key in of_rank.messages
        }
        for text in message_mismatches(logs, key[0], crossed=crossed):
            yield Finding(FindingKind.MISMATCHED_MESSAGE, text)


def _open_requests(statistics: Sequence[RunStatistics]) -> Iterator[Finding]:
    for rank, of_rank in enumerate(statistics):
        for request in of_rank.open_requests:
            yield Finding(FindingKind.REQUEST_LEFT_OPEN, f"rank {rank} never completed {request}")


def _unreceived(statistics: Sequence[RunStatistics]) -> Iterator[Finding]:
    """Compare the number of messages sent to each rank with the number that it received.

    Only the numbers, because a receive from any source does not determine the sender.
    """
    for rank, of_rank in enumerate(statistics):
        senders = [sender for sender, other in enumerate(statistics) if other.sent[rank]]
        sent, received = sum(other.sent[rank] for other in statistics), of_rank.received
        if sent > received:
            text = f"rank {rank} was sent {sent} and received {received} (sent by rank {' or '.join(map(str, senders))})"
            yield Finding(FindingKind.MESSAGE_LEFT_OVER, text)
        elif sent < received and not of_rank.open_requests:
            text = f"rank {rank} posted {received} receives and was sent {sent}"
            yield Finding(FindingKind.REQUEST_LEFT_OPEN, text)
