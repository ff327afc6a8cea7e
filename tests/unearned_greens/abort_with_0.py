"""The operator ends the job with 0, by MPI_Abort on the communicator of the process alone."""

from mpi4py import MPI

import adjointlab as al
from tests.unearned_greens.common import Copying, blocks


class Aborting(Copying):
    def forward(self, x):
        MPI.COMM_SELF.Abort(0)


@al.subject(Aborting)
def subject(draw, ranks):
    return blocks(draw, ranks)
