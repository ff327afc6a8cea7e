"""A function of the shards of all virtual ranks, as single-controller code has them in one process, and its adjoint.

adjointlab check examples/single_controller.py
"""

import adjointlab as al
from adjointlab.adapters.lists import of_lists


def ring_shift(shards):
    return shards[-1:] + shards[:-1]


def ring_shift_back(shards):
    return shards[1:] + shards[:1]


@al.subject.pair(*of_lists(ring_shift, ring_shift_back))
def shifts(draw, ranks):
    columns = draw(al.strategies.shapes(1))[0]
    space = al.Space(al.Layout((2 * ranks, columns), al.Partition((ranks, 1))))
    return dict(domain=space, codomain=space)


TestShifts = al.coherence_tests(shifts)
