"""Your own operator under the lab: every worker's local tensor moves one worker to the right.

pytest examples/ring_shift.py, or mpiexec -n 4 python -m pytest examples/ring_shift.py
"""

import numpy as np

import adjointlab as al


class RingShift(al.LinearOperator):
    def __init__(self, comm, cut):
        self.comm, size, ends = comm, comm.Get_size(), [0, *np.cumsum(np.roll(np.diff(cut), 1))]
        ranks = al.Partition((size,))
        self.domain = al.Space(al.Layout.cut((cut[-1],), ranks, [cut]))
        self.codomain = al.Space(al.Layout.cut((cut[-1],), ranks, [ends]), name="y")

    def _move(self, x, space, step):
        rank, size = self.comm.Get_rank(), self.comm.Get_size()
        out = np.empty(space.tensors[0].layout.local_shape(rank))
        self.comm.Sendrecv(np.ascontiguousarray(x), (rank + step) % size, 0, out, (rank - step) % size, 0)
        return out

    def forward(self, x):
        return self._move(x, self.codomain, 1)

    def adjoint(self, y):
        return self._move(y, self.domain, -1)


@al.subject.operator(RingShift)
def ring_shifts(draw, ranks):  # a Hypothesis strategy: the arguments of one case
    return dict(cut=draw(al.strategies.cuts(7, ranks)))


TestRingShift = al.coherence_tests(ring_shifts)  # pytest collects one test for each check
