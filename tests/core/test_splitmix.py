"""Numbers for a seed are those that SplitMix64 is known to give: a stored case draws the same tensors in every version."""

from __future__ import annotations

import numpy as np
import pytest

from adjointlab.core.splitmix import hashed, mixed, with_key, without_key

MODULUS, GAMMA = 2**64, 0x9E3779B97F4A7C15

# The first numbers of the generator of [Steele14] with the state 1,234,567.
STATE = 1234567
OUTPUTS = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]
COUNTERS = [(STATE + step * GAMMA) % MODULUS for step in range(len(OUTPUTS))]


def test_numbers_are_those_of_the_generator() -> None:
    assert [mixed(counter) for counter in COUNTERS] == OUTPUTS
    assert without_key(np.array(COUNTERS, np.uint64)).tolist() == OUTPUTS


@pytest.mark.parametrize("key", [0, 1, 2**63 + 5, MODULUS - 1])
def test_a_key_is_mixed_into_numbers_of_the_generator(key: int) -> None:
    expected = [mixed(((output ^ key) - GAMMA) % MODULUS) for output in OUTPUTS]

    assert with_key(np.array(OUTPUTS, np.uint64), key).tolist() == expected
    assert hashed(np.array(COUNTERS, np.uint64), key).tolist() == expected
