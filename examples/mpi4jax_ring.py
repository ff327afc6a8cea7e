"""A ring shift by mpi4jax, and the sum over all ranks, with the gradients that JAX computes of them.

mpiexec -n 3 adjointlab check examples/mpi4jax_ring.py
"""

import mpi4jax
from mpi4py import MPI

import adjointlab as al
from adjointlab.adapters.mpi4jax import mpi4jax_operator


def ring_shift(comm, x):
    before, behind = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    return mpi4jax.sendrecv(x, x, source=before, dest=behind, comm=comm)


def total(comm, x):
    return mpi4jax.allreduce(x, op=MPI.SUM, comm=comm)


@al.subject.operator(mpi4jax_operator(ring_shift))
def shifts(draw, ranks):
    columns = draw(al.strategies.shapes(1))[0]
    space = al.Space(al.Layout((2 * ranks, columns), al.Partition((ranks, 1))))
    return dict(domain=space, codomain=space)


@al.subject.operator(mpi4jax_operator(total))
def totals(draw, ranks):
    copies = al.Layout(draw(al.strategies.shapes(1)), al.Partition((ranks,)), axes=(None,))
    return dict(domain=al.Space(copies, types=("partial",)), codomain=al.Space(copies, types=("invariant",)))


TestShifts = al.coherence_tests(shifts)
TestTotals = al.coherence_tests(totals)
