"""PyLops-MPI's block-diagonal operator, `MPIBlockDiag`: each rank has its own blocks, of any sizes.

mpiexec -n 4 adjointlab check examples/pylops_mpi_block_diag.py
"""

import numpy as np
from hypothesis import strategies as st
from pylops import MatrixMult
from pylops_mpi import DistributedArray
from pylops_mpi.basicoperators import MPIBlockDiag
from scipy.linalg import block_diag

import adjointlab as al

DTYPES = ("float64", "float32", "complex128", "complex64")


class BlockDiag(al.LinearOperator):
    def __init__(self, comm, shapes, divisor, seed, dtype):
        blocks = matrices(shapes[comm.Get_rank()], divisor, [seed, comm.Get_rank()], dtype)
        self.comm, self.operator = comm, MPIBlockDiag([MatrixMult(b, dtype=dtype) for b in blocks], comm)
        rows, columns = (np.cumsum([0, *(sum(s[side] for s in mine) for mine in shapes)]) for side in (0, 1))
        workers = al.Partition([comm.Get_size()])
        self.domain = al.Space(al.Layout.cut(columns[-1:], workers, [columns]), dtype=dtype)
        self.codomain = al.Space(al.Layout.cut(rows[-1:], workers, [rows]), dtype=dtype, name="y")

    def forward(self, x):
        return self._apply(self.operator.matvec, x)

    def adjoint(self, y):
        return self._apply(self.operator.rmatvec, y)

    def _apply(self, multiply, local):
        sizes = self.comm.allgather(local.size)
        array = DistributedArray(sum(sizes), self.comm, local_shapes=sizes, local_array=local)
        return multiply(array).local_array


def matrices(shapes, divisor, seed, dtype):
    random, imaginary = np.random.default_rng(seed), 1j if dtype.startswith("complex") else 0
    for shape in shapes:
        a, b = random.integers(-3, 4, (2, *shape)) / divisor
        yield (a + imaginary * b).astype(dtype)


def sequential(x, shapes, divisor, seed, dtype):
    ranks = enumerate(shapes)
    return block_diag(*(b for rank, mine in ranks for b in matrices(mine, divisor, [seed, rank], dtype))) @ x


@al.subject.operator(BlockDiag, reference=sequential)
def block_diagonals(draw, ranks):
    side = st.integers(1, 5)
    blocks = st.lists(st.tuples(side, side), min_size=1, max_size=3)
    return dict(
        shapes=draw(st.lists(blocks, min_size=ranks, max_size=ranks)),
        divisor=draw(st.sampled_from([1, 3])),  # whole numbers, or fractions that are rounded
        seed=draw(st.integers(0, 99)),
        dtype=draw(al.strategies.dtypes(DTYPES)),
    )


TestBlockDiag = al.coherence_tests(block_diagonals)
