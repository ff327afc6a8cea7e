"""PyLops-MPI's block-diagonal operator, `MPIBlockDiag`: each rank has its own blocks, of any sizes.

mpiexec -n 4 adjointlab check examples/pylops_mpi_block_diag.py
"""

from itertools import accumulate

import numpy as np
from hypothesis import strategies as st
from pylops import MatrixMult
from pylops_mpi import DistributedArray
from pylops_mpi.basicoperators import MPIBlockDiag

import adjointlab as al

DTYPES = ("float64", "float32", "complex128", "complex64")


class BlockDiag(al.LinearOperator):
    def __init__(self, comm, shapes, divisor, seed, dtype):
        random, unit = (
            np.random.default_rng([seed, comm.Get_rank()]),
            1j if dtype.startswith("complex") else 0,
        )
        matrices = [random.integers(-3, 4, (2, *shape)) / divisor for shape in shapes[comm.Get_rank()]]
        blocks = [MatrixMult((real + unit * imag).astype(dtype), dtype=dtype) for real, imag in matrices]
        self.comm, self.operator = comm, MPIBlockDiag(blocks, comm, dtype=dtype)
        ends = [[*accumulate((sum(s[side] for s in mine) for mine in shapes), initial=0)] for side in (0, 1)]
        self.codomain, self.domain = (
            al.Space(al.Layout.cut(end[-1:], al.Partition([comm.Get_size()]), [end]), dtype=dtype, name=name)
            for end, name in zip(ends, "yx", strict=True)
        )

    def forward(self, x):
        return self._apply(self.operator.matvec, x)

    def adjoint(self, y):
        return self._apply(self.operator.rmatvec, y)

    def _apply(self, multiply, local):
        sizes = self.comm.allgather(local.size)
        return multiply(
            DistributedArray(sum(sizes), self.comm, local_shapes=sizes, local_array=local)
        ).local_array


@al.subject(BlockDiag)
def block_diagonals(draw, ranks):
    side = st.integers(1, 5)
    blocks = st.lists(st.tuples(side, side), min_size=1, max_size=3)
    return dict(
        shapes=draw(st.lists(blocks, min_size=ranks, max_size=ranks)),
        divisor=draw(st.sampled_from([1, 3])),  # whole numbers, or fractions that are rounded
        seed=draw(st.integers(0, 99)),
        dtype=draw(al.strategies.dtypes(DTYPES)),
    )
