"""Words in messages: suggestions for those that are not among the legal ones, and names of types with their article."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["described_type", "did_you_mean"]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?" with the legal word that is spelled most like `word`; empty if none is near."""
    by_lower = {name.lower(): name for name in known}
    near = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""


def described_type(value: object) -> str:
    """Return the name of the type of `value` after "a" or "an"; "None" of None, which is the only one of its type."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[:1] in 'aeioAEIO' or name.startswith('ndarray') else 'a'} {name}"
