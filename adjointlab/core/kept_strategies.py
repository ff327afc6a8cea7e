"""Strategies that are cached by their arguments.

Hypothesis validates a strategy at its first draw, and caches some of its strategies by the types and values of all arguments, which is
slow. Both together took as long as the draws themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import Final, ParamSpec, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

__all__ = ["BOOLEANS", "choices", "integers", "made_once", "permuted"]

P = ParamSpec("P")
T = TypeVar("T")


def made_once(make: Callable[P, SearchStrategy[T]]) -> Callable[P, SearchStrategy[T]]:
    """Decorate a function so that it returns one strategy for equal arguments, if these are hashable."""
    # For Python's errors about arguments: Hypothesis has defined it within another function.
    make.__qualname__ = make.__name__
    kept = lru_cache(maxsize=1024, typed=True)(make)

    @wraps(make)
    def strategy(*args: P.args, **kwargs: P.kwargs) -> SearchStrategy[T]:
        try:
            return kept(*args, **kwargs)  # type: ignore[arg-type]
        except TypeError:  # an argument is not hashable; an error of `make` itself is raised again
            return make(*args, **kwargs)

    return strategy


BOOLEANS: Final = st.booleans()


@made_once
def integers(least: int, most: int) -> SearchStrategy[int]:
    """Integers from `least` to `most`."""
    return st.integers(least, most)


@made_once
def choices(entries: tuple[T, ...]) -> SearchStrategy[T]:
    """One of `entries`, the first of which is the simplest. No entry may equal one of another type, as True and 1 do."""
    return st.sampled_from(entries)


@made_once
def _orders(number: int) -> SearchStrategy[list[int]]:
    return st.permutations(range(number))


def permuted(draw: DrawFn, entries: Sequence[T]) -> list[T]:
    """Draw a permutation of `entries` as `st.permutations` does; the given order is the simplest."""
    return [entries[position] for position in draw(_orders(len(entries)))]
