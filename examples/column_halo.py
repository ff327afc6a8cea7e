"""Ghost columns of a matrix whose columns are cut: exchanged as MPI codes do, by a datatype that names a column.

pytest examples/column_halo.py, or mpiexec -n 4 python -m pytest examples/column_halo.py
"""

from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

import adjointlab as al
from adjointlab import MPI  # as mpi4py's, which work too


class GhostColumns(al.LinearOperator):
    """Each worker's columns, and on either side a copy of the next one, which its neighbour has."""

    def __init__(self, comm, rows, cut):
        self.comm, columns = comm, cut[-1]
        self.line = comm.Create_cart([comm.Get_size()])
        self.ghosts = int(comm.Get_rank() > 0), int(comm.Get_rank() < comm.Get_size() - 1)
        ranks = al.Partition((1, comm.Get_size()))
        wide = [(max(begin - 1, 0), min(end + 1, columns)) for begin, end in pairwise(cut)]
        self.domain = al.Space(al.Layout.cut((rows, columns), ranks, [None, cut]))
        self.codomain = al.Space(al.Layout((rows, columns), ranks, windows=[[(0, rows)], wide]), name="y")

    def _exchange(self, sent, columns, received):
        """Send two columns, to the worker before and the one after; what comes from there are the outermost ones of `received`."""
        rows, width = sent.shape
        column = MPI.DOUBLE.Create_vector(rows, 1, width).Commit()
        out, into = ([8 * place for place in places] for places in (columns, (0, width - 1)))
        self.line.Neighbor_alltoallw(
            [sent, [1, 1], out, [column] * 2], [received, [1, 1], into, [column] * 2]
        )
        column.Free()

    def forward(self, x):
        before, after = self.ghosts
        y = np.zeros((x.shape[0], before + x.shape[1] + after))
        y[:, before : y.shape[1] - after] = x
        self._exchange(y.copy(), (before, y.shape[1] - 1 - after), y)
        return y

    def adjoint(self, y):
        before, after = self.ghosts
        sums = np.zeros(y.shape)
        self._exchange(np.ascontiguousarray(y), (0, y.shape[1] - 1), sums)
        x = y[:, before : y.shape[1] - after].copy()
        x[:, 0] += sums[:, 0]
        x[:, -1] += sums[:, -1]
        return x


def plain(x, rows, cut):
    return x


@al.subject.operator(GhostColumns, reference=plain)
def ghost_columns(draw, ranks):
    return dict(rows=draw(st.integers(1, 4)), cut=draw(al.strategies.cuts(2 * ranks + 3, ranks, least=1)))


TestGhostColumns = al.coherence_tests(ghost_columns)
