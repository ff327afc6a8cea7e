"""The digits of a case's seed, each of which decides one thing. The seed as a whole is the key of the values.

So cases whose seeds differ in one digit differ in one thing besides the values, and consecutive seeds have all combinations. Stored
cases hold seeds, so a change of this table would change their meaning.
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
    """A digit with values below `base`; it changes after `seeds` consecutive seeds."""

    seeds: int
    base: int

    def above(self, base: int) -> Digit:
        """The next higher digit."""
        return Digit(self.seeds * self.base, base)

    def of(self, seed: int) -> int:
        """The value of this digit in a seed."""
        return seed // self.seeds % self.base

    def changed(self, seed: int, value: int) -> int:
        """The seed with this digit set to `value`."""
        return seed + (value - self.of(seed)) * self.seeds


# Of layers: fills of memory, and plans of passes (`adjointlab.checks.layers.passes`)

REQUIRES_GRAD: Final = Digit(1, 3)
APART: Final = REQUIRES_GRAD.above(2)
ACCUMULATED: Final = APART.above(2)
COURSE: Final = ACCUMULATED.above(320)
"""Its remainders modulo 64, 20 and 2 decide what is left out of the loss, what comes before, and the fill of fresh memory."""
LAST_FIRST: Final = COURSE.above(2)
COTANGENTS: Final = LAST_FIRST.above(4)

# Of operators: powers of two by which vectors are multiplied (of the sum of the seed and a draw's number), and memory

X_EXPONENT: Final = Digit(1, 4)
Y_EXPONENT: Final = X_EXPONENT.above(4)
SIZES: Final = Y_EXPONENT.above(15)
ON_EVEN_RANKS: Final = SIZES.above(2)

# Of linearity, whose vectors have no such powers; the parity of a seed decides by which scalar the first of them is multiplied

ZEROS: Final = Digit(3, 3)

SEED_PERIOD: Final = COTANGENTS.above(1).seeds
"""Adding this to a seed changes the values, the samples and the draws of instances when they are made, but no digit."""
