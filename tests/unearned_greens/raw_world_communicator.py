"""The operator sums over MPI.COMM_WORLD, past the communicator that it is handed."""

import numpy as np
from mpi4py import MPI

import adjointlab as al
from tests.unearned_greens.common import Copying, blocks


class Summing(Copying):
    def forward(self, x):
        total = np.empty_like(x)
        MPI.COMM_WORLD.Allreduce(np.ascontiguousarray(x), total)
        return total

    adjoint = forward


@al.subject(Summing)
def subject(draw, ranks):
    return blocks(draw, ranks)
