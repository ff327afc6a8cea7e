"""After a run: what the leader concludes from the outcomes and the books of all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from adjointlab.worlds.call_sites import is_lab
from adjointlab.worlds.diagnosis import POLLING, UNBUFFERED_SENDS, cycle_line, heading, waits_for_text
from adjointlab.worlds.mpi.call_log import Account, difference
from adjointlab.worlds.mpi.guard import Books
from adjointlab.worlds.world import Blocked, Finding, Outcome, PeerFailed, Raised, Returned

__all__ = ["conclude"]


def conclude(outcomes: Sequence[Outcome], books: Sequence[Books]) -> tuple[tuple[Finding, ...], bool]:
    """What was wrong with the run itself, and whether its communicators are clean for another."""
    stuck = tuple(_stuck(outcomes, books))
    if stuck:
        return stuck, False
    untidy = (*_collectives(books), *_requests(books), *_messages(books))
    clean = not untidy and not any(book.abandoned for book in books)
    if all(isinstance(outcome, Returned) for outcome in outcomes):
        return untidy, clean
    # Where a rank failed, what lies about is no finding of its own. But calls that do not match are always one, and may
    # be why a rank raised: numbers taken for others, or an error of MPI, which may also tell of those that are missing.
    mpi_raised = any(map(_is_of_mpi, outcomes))
    settled = [mpi_raised and isinstance(outcome, Returned) for outcome in outcomes]
    return tuple(_collectives(books, settled)), clean


def _is_of_mpi(outcome: Outcome) -> bool:
    """Whether MPI has told the rank of an error, such as Open MPI of collectives of different lengths."""
    return isinstance(outcome, Raised) and "mpi4py.MPI.Exception: " in outcome.traceback


def _stuck(outcomes: Sequence[Outcome], books: Sequence[Books]) -> Iterator[Finding]:
    blocked = {rank: outcome for rank, outcome in enumerate(outcomes) if isinstance(outcome, Blocked)}
    if not blocked:
        return
    mismatches = tuple(_collectives(books, settled=[isinstance(outcome, Returned) for outcome in outcomes]))
    waiting = [rank for rank, outcome in enumerate(outcomes) if isinstance(outcome, Blocked | PeerFailed)]
    late = ", ".join(str(rank) for rank, book in enumerate(books) if book.late)
    everyone = not late and all(isinstance(outcome, Blocked | Returned) for outcome in outcomes)
    lines = [_told(rank, outcome, outcomes) for rank, outcome in enumerate(outcomes)]
    if mismatches:
        # They explain why the ranks are stuck.
        yield from mismatches
    elif everyone and all(books[rank].polling for rank in waiting):
        lines.insert(0, POLLING)
        yield Finding("livelock", "\n".join(lines))
    elif everyone:
        # Nobody is left who could end a wait.
        lines.insert(0, heading(len(blocked), len(outcomes)))
        lines += cycle_line({rank: outcome.waits_for for rank, outcome in blocked.items()})
        if any("send" in outcome.call.lower() for outcome in blocked.values()):
            lines.append(UNBUFFERED_SENDS)
        yield Finding("deadlock", "\n".join(lines))
    else:
        busy = f" (rank {late} was still at work then)" if late else ""
        lines.insert(0, f"a wait lasted longer than the world's patience{busy}")
        yield Finding("blocked", "\n".join(lines))


def _told(rank: int, outcome: Outcome, outcomes: Sequence[Outcome]) -> str:
    if not isinstance(outcome, Blocked):
        return f"  rank {rank} {outcome}"
    ended = [isinstance(other, Returned) for other in outcomes]
    if is_lab(outcome.where):
        text = f"  rank {rank} has come back from user code"
    else:
        text = f"  rank {rank} in {outcome.call} at {outcome.where}"
    return text + waits_for_text(outcome.waits_for, ended)


def _collectives(books: Sequence[Books], settled: Sequence[bool] | None = None) -> Iterator[Finding]:
    """Communicators on which the ranks called collectives that do not match.

    While some ranks are stuck, only what no waiting could mend counts: calls that differ, or a rank that has returned
    (`settled`) with fewer calls.
    """
    for key in dict.fromkeys(key for book in books for key in book.collectives):
        ranks = key[0]
        accounts = {rank: books[rank].collectives.get(key, Account(0, 0, ())) for rank in ranks}
        of = "" if len(ranks) == len(books) else f" of ranks {', '.join(map(str, ranks))}"
        if found := difference(accounts):
            number, one, other, why = found
            calls = [
                call.told(rank) for rank in (one, other) if (call := accounts[rank].call(number)) is not None
            ]
        else:
            fewest = min(ranks, key=lambda rank: (accounts[rank].calls, settled is None or not settled[rank]))
            most = max(ranks, key=lambda rank: accounts[rank].calls)
            number = accounts[fewest].calls
            if number == accounts[most].calls or not (settled is None or settled[fewest]):
                continue
            call = accounts[most].call(number)
            why = "only some ranks take part"
            calls = [
                f"rank {most} goes on" if call is None else call.told(most),
                f"rank {fewest} has ended after {number}",
            ]
        text = f"in collective {number + 1}{of}, {why}\n  " + "\n  ".join(calls)
        yield Finding("mismatched collective", text)


def _requests(books: Sequence[Books]) -> Iterator[Finding]:
    for rank, book in enumerate(books):
        for request in book.left_open:
            yield Finding("request left open", f"rank {rank} never completed {request}")


def _messages(books: Sequence[Books]) -> Iterator[Finding]:
    for rank, book in enumerate(books):
        senders = [sender for sender, other in enumerate(books) if other.sent[rank]]
        sent = sum(other.sent[rank] for other in books)
        if sent > book.received:
            source = " or ".join(map(str, senders))
            yield Finding(
                "message left over",
                f"rank {rank} was sent {sent} and received {book.received} (sent by rank {source})",
            )
        elif sent < book.received and not book.left_open:
            yield Finding(
                "request left open", f"rank {rank} posted {book.received} receives and was sent {sent}"
            )
