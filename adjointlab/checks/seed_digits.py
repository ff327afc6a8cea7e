"""The digits of a case's seed, each of which decides one thing beside the values, whose key the seed is as a whole.

So seeds that differ in one digit differ in one thing, and seeds in a row have all combinations. Stored cases hold seeds: with another
table they would be other cases.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = [
    "ACCUMULATED",
    "APART",
    "COTANGENTS",
    "COURSE",
    "LAST_FIRST",
    "ON_EVEN_RANKS",
    "REQUIRES_GRAD",
    "SEED_PERIOD",
    "SIZES",
    "X_EXPONENT",
    "Y_EXPONENT",
    "ZEROS",
    "Digit",
]


class Digit(NamedTuple):
    """A digit with values below `base`; it changes after so many seeds in a row."""

    seeds: int
    base: int

    def above(self, base: int) -> Digit:
        """The next higher digit."""
        return Digit(self.seeds * self.base, base)

    def of(self, seed: int) -> int:
        """The value that it has in a seed."""
        return seed // self.seeds % self.base

    def changed(self, seed: int, value: int) -> int:
        """The seed that differs in this digit alone, which is `value` there."""
        return seed + (value - self.of(seed)) * self.seeds


# Of layers: fills of memory, and plans of passes (`adjointlab.checks.layers.passes`)

REQUIRES_GRAD: Final = Digit(1, 3)
APART: Final = REQUIRES_GRAD.above(2)
ACCUMULATED: Final = APART.above(2)
COURSE: Final = ACCUMULATED.above(320)
"""Its remainders modulo 64, 20 and 2 say what is left out of the loss, what comes before, and the fill of fresh memory."""
LAST_FIRST: Final = COURSE.above(2)
COTANGENTS: Final = LAST_FIRST.above(4)

# Of operators: powers of two by which vectors are multiplied, where seed and number of a draw are added up, and memory

X_EXPONENT: Final = Digit(1, 4)
Y_EXPONENT: Final = X_EXPONENT.above(4)
SIZES: Final = Y_EXPONENT.above(15)
ON_EVEN_RANKS: Final = SIZES.above(2)

# Of linearity, whose vectors have no such powers; the parity of a seed says by which scalar the first of them is multiplied

ZEROS: Final = Digit(3, 3)

SEED_PERIOD: Final = COTANGENTS.above(1).seeds
"""Added to a seed, it changes the values, what samples are taken and what instances draw when they are made, and no digit."""
