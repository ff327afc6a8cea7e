"""The operator takes itself for alone when a communicator is refused."""

import contextlib

import numpy as np
from mpi4py import MPI

import adjointlab as al
from tests.unearned_greens.common import Copying, blocks

DUPLICATE = MPI.COMM_WORLD.Dup()


class Summing(Copying):
    def forward(self, x):
        total = np.array(x)
        with contextlib.suppress(RuntimeError):
            DUPLICATE.Allreduce(np.ascontiguousarray(x), total)
        return total


@al.subject(Summing)
def subject(draw, ranks):
    return blocks(draw, ranks)
