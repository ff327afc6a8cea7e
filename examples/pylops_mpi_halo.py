"""PyLops-MPI's halo exchange, `MPIHalo`, whose adjoint crops the halo that its forward pass copied.

Its documentation says so. But the adjoint of a copy is a sum: what a worker did to its copy of a neighbour's cell belongs
to that cell. The lab finds the entry that is missing; docs/pylops-mpi.md tells the story.

    mpiexec -n 4 adjointlab check examples/pylops_mpi_halo.py
"""

from itertools import pairwise
from math import ceil

import numpy as np
from hypothesis import strategies as st
from pylops_mpi import DistributedArray
from pylops_mpi.basicoperators import MPIHalo

import adjointlab as al

DTYPES = ("float64", "float32", "complex128", "complex64")


class Halo(al.LinearOperator):
    def __init__(self, comm, dims, halo, grid, dtype):
        self.comm, self.operator, workers = comm, MPIHalo(dims, halo, grid, comm, dtype), al.Partition(grid)
        # A single width ends at the edges of the tensor; widths of their own reach beyond them.
        widths, beyond = ((halo,) * 2 * len(dims), 0) if isinstance(halo, int) else (halo, max(halo))
        cuts = [[min(i * ceil(n / p), n) for i in range(p + 1)] for n, p in zip(dims, grid, strict=True)]
        windows = [
            [(max(a - left, -beyond), min(b + right, cut[-1] + beyond)) for a, b in pairwise(cut)]
            for cut, left, right in zip(cuts, widths[::2], widths[1::2], strict=True)
        ]
        self.domain = al.Space(al.Layout.cut(dims, workers, cuts), dtype=dtype)
        self.codomain = al.Space(al.Layout(dims, workers, windows), dtype=dtype, name="y")

    def forward(self, x):
        return self._apply(self.operator.matvec, x, self.codomain)

    def adjoint(self, y):
        return self._apply(self.operator.rmatvec, y, self.domain)

    def _apply(self, multiply, local, space):
        sizes = self.comm.allgather(local.size)
        array = DistributedArray(sum(sizes), self.comm, local_shapes=sizes, local_array=np.ravel(local))
        return multiply(array).local_array.reshape(space.tensors[0].layout.local_shape(self.comm.Get_rank()))


def exchanged(x, **_):
    return x  # what every worker should hold is its window of the global tensor


@al.subject.operator(Halo, reference=exchanged)
def halos(draw, ranks):
    grid = draw(al.strategies.partitions(ranks)).shape
    dims, widths = [], []
    for workers in grid:
        block = draw(st.integers(1, 4))
        last = draw(st.integers(max(1, block - workers + 1), block)) if workers > 1 else block
        dims.append(block * (workers - 1) + last)  # every block is ceil(n / p) long but the last
        if workers > 1:  # neighbours must want the same of each other, and no more than there is
            widths += [draw(st.integers(0, last))] * 2
        else:
            widths += [draw(st.integers(0, 3)), draw(st.integers(0, 3))]
    halo = tuple(widths)
    if not draw(st.booleans()):
        halo = min((w for w, workers in zip(widths[::2], grid, strict=True) if workers > 1), default=2)
    return dict(dims=tuple(dims), halo=halo, grid=grid, dtype=draw(al.strategies.dtypes(DTYPES)))
