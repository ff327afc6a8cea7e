"""Forward sends a message that adjoint receives: as many calls of both leave nothing over, where MPI buffers it."""

import numpy as np

import adjointlab as al
from tests.unearned_greens.common import Copying, blocks


class Talking(Copying):
    def forward(self, x):
        rank, size = self.comm.Get_rank(), self.comm.Get_size()
        if size > 1:
            self.comm.Isend(np.ones(1), (rank + 1) % size).Wait()
        return super().forward(x)

    def adjoint(self, y):
        rank, size = self.comm.Get_rank(), self.comm.Get_size()
        if size > 1:
            self.comm.Recv(np.empty(1), (rank - 1) % size)
        return super().adjoint(y)


@al.subject(Talking)
def subject(draw, ranks):
    return blocks(draw, ranks)
