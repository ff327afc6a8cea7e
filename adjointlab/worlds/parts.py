"""Messages about collectives in which a rank sends another one a block of a different size or type than it expects."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["counts_text", "of_ranks", "part_text"]


def part_text(sender: int, receiver: int, sent: str, expected: str) -> str:
    """Return "rank 0 sends 2 elements to rank 1, which expects 1"."""
    if sender == receiver:
        return f"rank {sender} sends {sent} to itself, and expects {expected}"
    return f"rank {sender} sends {sent} to rank {receiver}, which expects {expected}"


def counts_text(sent: Sequence[int] | None, expected: Sequence[int] | None) -> str:
    """Suffix for a call with counts for each rank: ", sending [0, 1] and expecting [2, 0] elements"; empty if it has no counts."""
    counts = {"sending": sent, "expecting": expected}
    listed = [f"{word} {list(each)}" for word, each in counts.items() if each is not None]
    return f", {' and '.join(listed)} elements" if listed else ""


def of_ranks(members: Sequence[int], ranks: int) -> str:
    """Return " of ranks 0, 2" for a communicator or group of these members; empty if it has all `ranks` ranks."""
    return "" if len(members) == ranks else f" of ranks {', '.join(map(str, members))}"
