"""PyLops-MPI's finite differences, `MPIFirstDerivative`, along the first dimension, which is cut over the ranks.

mpiexec -n 4 adjointlab check examples/pylops_mpi_first_derivative.py
"""

import numpy as np
import pylops
from hypothesis import strategies as st
from pylops_mpi import DistributedArray
from pylops_mpi.basicoperators import MPIFirstDerivative

import adjointlab as al

DTYPES = ("float64", "float32", "complex128", "complex64")


class FirstDerivative(al.LinearOperator):
    def __init__(self, comm, dims, dtype, **options):
        self.comm, self.operator = comm, MPIFirstDerivative(dims, base_comm=comm, dtype=dtype, **options)
        rows = al.Layout(dims, al.Partition([comm.Get_size()]), axes=(0,) + (None,) * (len(dims) - 1))
        self.domain, self.codomain = al.Space(rows, dtype=dtype), al.Space(rows, dtype=dtype, name="y")

    def forward(self, x):
        return self._apply(self.operator.matvec, x)

    def adjoint(self, y):
        return self._apply(self.operator.rmatvec, y)

    def _apply(self, multiply, local):
        sizes = self.comm.allgather(local.size)
        array = DistributedArray(sum(sizes), self.comm, local_shapes=sizes, local_array=np.ravel(local))
        return multiply(array).local_array.reshape(local.shape)


def sequential(x, dims, **options):
    return pylops.FirstDerivative(dims, axis=0, **options).matvec(x.ravel()).reshape(dims)


@al.subject.operator(FirstDerivative, reference=sequential)
def first_derivatives(draw, ranks):
    kind = draw(st.sampled_from(["forward", "backward", "centered"]))
    order = draw(st.sampled_from([3, 5])) if kind == "centered" else 3
    needed = {"forward": 1, "backward": 1, "centered": order - 1}[kind]  # rows that a neighbour asks for
    rows = draw(st.integers(needed * ranks, needed * ranks + 6))
    return dict(
        dims=(rows, *draw(st.lists(st.integers(1, 3), max_size=2))),
        sampling=draw(st.sampled_from([1.0, 0.5, 0.3, 7.0])),
        kind=kind,
        edge=draw(st.booleans()),
        order=order,
        dtype=draw(al.strategies.dtypes(DTYPES)),
    )


TestFirstDerivative = al.coherence_tests(first_derivatives)
