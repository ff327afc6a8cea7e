"""Search for ranks that wait for each other in a circle."""

import pytest

from adjointlab.worlds.diagnosis import cycle_line, find_cycle, waits_for_text


@pytest.mark.parametrize(
    ("waits_for", "cycle"),
    [
        ({}, []),
        ({0: ()}, []),
        ({0: (1,), 1: (2,)}, []),  # rank 2 is not blocked
        ({0: (0,)}, [0]),
        ({2: (1,), 1: (2,)}, [1, 2]),
        ({0: (1,), 1: (2,), 2: (1,)}, [1, 2]),  # rank 0 leads into it
        (
            {0: (2, 1), 1: (3,), 3: (1,), 2: (0,)},
            [1, 3],
        ),  # rank 0 waits for several, so it is not asked first
        ({0: (3, 1), 3: (), 1: (4, 2), 4: (), 2: (0,)}, [0, 1, 2]),
    ],
)
def test_a_cycle_is_found_and_begins_at_its_lowest_rank(waits_for, cycle):
    assert find_cycle(waits_for) == cycle


def test_a_cycle_of_thousands_of_ranks_is_found():
    ranks = 5000
    assert find_cycle({rank: ((rank + 1) % ranks,) for rank in range(ranks)}) == list(range(ranks))


def test_the_lines_of_a_report():
    assert cycle_line({1: (0,), 0: (1,)}) == ("  cycle: rank 0 → rank 1 → rank 0",)
    assert cycle_line({1: (0,)}) == ()
    assert waits_for_text((0, 2), (False, False, True)) == ", waits for rank 0, rank 2 (which has ended)"
    assert waits_for_text((), ()) == ""
