"""After a run: what the leader concludes from the outcomes and the books of all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from adjointlab.worlds.guard import Books
from adjointlab.worlds.world import Blocked, Finding, Outcome, PeerFailed, Returned

__all__ = ["conclude"]


def conclude(outcomes: Sequence[Outcome], books: Sequence[Books]) -> tuple[tuple[Finding, ...], bool]:
    """What was wrong with the run itself, and whether its communicators are clean for another."""
    stuck = tuple(_stuck(outcomes, books))
    if stuck:
        return stuck, False
    untidy = (*_collectives(books), *_requests(books), *_messages(books))
    clean = not untidy and not any(book.abandoned for book in books)
    # Where a rank failed, what lies about is no finding of its own.
    return (untidy if all(isinstance(outcome, Returned) for outcome in outcomes) else ()), clean


def _stuck(outcomes: Sequence[Outcome], books: Sequence[Books]) -> Iterator[Finding]:
    blocked = {rank: outcome for rank, outcome in enumerate(outcomes) if isinstance(outcome, Blocked)}
    if not blocked:
        return
    lines = [
        f"rank {rank} {'returned' if isinstance(outcome, Returned) else outcome}"
        for rank, outcome in enumerate(outcomes)
    ]
    yield from _collectives(books, settled=[isinstance(outcome, Returned) for outcome in outcomes])
    waiting = [rank for rank, outcome in enumerate(outcomes) if isinstance(outcome, Blocked | PeerFailed)]
    late = ", ".join(str(rank) for rank, book in enumerate(books) if book.late)
    everyone = not late and all(isinstance(outcome, Blocked | Returned) for outcome in outcomes)
    if everyone and all(books[rank].polling for rank in waiting):
        yield Finding("livelock", "every rank polls in vain: " + "; ".join(lines))
    elif everyone:
        # Nobody is left who could end a wait.
        cycle = _cycle(blocked)
        circle = f" (in a circle: {' → '.join(map(str, cycle))})" if cycle else ""
        yield Finding("deadlock", f"no rank can go on{circle}: " + "; ".join(lines))
    else:
        busy = f" (rank {late} was still at work then)" if late else ""
        yield Finding("blocked", f"a wait lasted longer than the world's patience{busy}: " + "; ".join(lines))


def _cycle(blocked: dict[int, Blocked]) -> list[int]:
    """A circle of blocked ranks, each waiting for the next."""
    for first in blocked:
        path = [first]
        while True:
            onward = [rank for rank in blocked[path[-1]].waits_for if rank in blocked]
            if not onward:
                break
            if onward[0] in path:
                return [*path[path.index(onward[0]) :], onward[0]]
            path.append(onward[0])
    return []


def _collectives(books: Sequence[Books], settled: Sequence[bool] | None = None) -> Iterator[Finding]:
    """Communicators on which the ranks called different collectives.

    While some ranks are stuck, only what no waiting could mend counts: equal numbers of calls by other names, or a
    rank that has returned (`settled`) with fewer calls.
    """
    names = dict.fromkeys(key for book in books for key in book.collectives)
    for key in names:
        ranks = key[0]
        calls = [books[rank].collectives.get(key, (0, 0, "")) for rank in ranks]
        different = len({(count, checksum) for count, checksum, _ in calls}) > 1
        if different and settled is not None:
            most = max(count for count, _, _ in calls)
            short = any(settled[rank] and call[0] < most for rank, call in zip(ranks, calls, strict=True))
            different = short or len({count for count, _, _ in calls}) == 1
        if different:
            told = "; ".join(
                f"rank {rank} called {count}" + (f", the last one {name}" if name else "")
                for rank, (count, _, name) in zip(ranks, calls, strict=True)
            )
            yield Finding("mismatched collective", f"the ranks called different collectives: {told}")


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
