"""Any operator of PyLops-MPI, in one line: `mpi_operator` reads off its arrays how they are distributed.

adjointlab check examples/pylops_mpi_operator.py
"""

import pylops
from hypothesis import strategies as st
from pylops_mpi.basicoperators import MPIBlockDiag

import adjointlab as al
from adjointlab.adapters.pylops_mpi import mpi_operator


def derivatives(comm, sizes):
    return MPIBlockDiag([pylops.FirstDerivative(sizes[comm.Get_rank()])], comm)


@al.subject.operator(mpi_operator(derivatives))
def derivatives_of_ranks(draw, ranks):
    return dict(sizes=draw(st.lists(st.integers(3, 6), min_size=ranks, max_size=ranks)))


TestDerivatives = al.coherence_tests(derivatives_of_ranks)
