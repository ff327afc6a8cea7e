"""mpiarray 0.2.1: halos, which it updates and accumulates, and redistribution.

adjointlab check examples/released/released_mpiarray.py --check adjoint --check sequential
"""

from __future__ import annotations

from itertools import accumulate

import maybempi
import numpy as np
from hypothesis import strategies as st
from mpi4py import MPI

import adjointlab as al

maybempi.get_mpi = lambda use_mpi=None: MPI  # it looks for a launcher, which simulated ranks do not have
import mpiarray  # noqa: E402


def ends(lengths):
    return [0, *accumulate(lengths)]


class Halos(al.LinearOperator):
    """From the blocks of ranks to the blocks with their halos, which are cells of their own; walls give zeros."""

    gain = 9

    def __init__(self, comm, grid, lengths, halo, periodic, wait):
        self.comm, self.wait = comm, wait
        cuts = [ends(each) for each in lengths]
        self.layout = mpiarray.Layout(
            [each[-1] for each in cuts],
            comm=comm,
            split=(0, 1),
            halo=halo,
            periodic=periodic,
            process_grid=grid,
            bounds=cuts,
        )
        stored = [ends(n + 2 * h for n in each) for each, h in zip(lengths, halo, strict=True)]
        self.domain, self.codomain = (
            al.Space(al.Layout.cut([each[-1] for each in cut], grid, cut), name=name)
            for name, cut in (("x", cuts), ("y", stored))
        )

    def forward(self, x):
        array = mpiarray.zeros(layout=self.layout)
        array.local[...] = x
        if pending := array.update_halos(wait=self.wait):
            pending.wait()
        return np.array(array.local_with_halos)

    def adjoint(self, y):
        array = mpiarray.zeros(layout=self.layout)
        array.local_with_halos[...] = y
        if pending := array.accumulate_halos(wait=self.wait):
            pending.wait()
        return np.array(array.local)


def with_halos(x, grid, lengths, halo, periodic, wait):
    for dim, (each, h, wraps) in enumerate(zip(lengths, halo, periodic, strict=True)):
        widths = [(h, h) if dim == other else (0, 0) for other in range(2)]
        padded = np.pad(x, widths, mode="wrap" if wraps else "constant")
        blocks = [
            padded.take(range(end - n, end + 2 * h), dim) for n, end in zip(each, ends(each)[1:], strict=True)
        ]
        x = np.concatenate(blocks, dim)
    return x


@al.subject.operator(Halos, reference=with_halos, name="mpiarray.halos")
def halos(draw, ranks):
    rows = draw(st.sampled_from([n for n in range(1, ranks + 1) if ranks % n == 0]))
    grid, halo = (rows, ranks // rows), [draw(st.integers(0, 2)) for _ in range(2)]
    lengths = [
        [draw(st.integers(max(h, 1), h + 2)) for _ in range(n)] for n, h in zip(grid, halo, strict=True)
    ]
    periodic = [draw(st.booleans()) for _ in range(2)]
    return dict(grid=grid, lengths=lengths, halo=halo, periodic=periodic, wait=draw(st.booleans()))


class Redistribution(al.LinearOperator):
    """From rows to columns."""

    gain = 1

    def __init__(self, comm, lengths):
        self.comm = comm
        shape = [sum(each) for each in lengths]
        self.layouts, spaces = [], []
        for dim, each in enumerate(lengths):
            bounds = [ends(each) if dim == other else None for other in range(2)]
            self.layouts.append(mpiarray.Layout(shape, comm=comm, split=(dim,), bounds=bounds))
            grid = [len(each) if dim == other else 1 for other in range(2)]
            spaces.append(al.Space(al.Layout.cut(shape, grid, bounds), name="xy"[dim]))
        self.domain, self.codomain = spaces

    def _move(self, x, source, target):
        array = mpiarray.zeros(layout=source)
        array.local[...] = x
        return np.array(array.redistribute(target).local)

    def forward(self, x):
        return self._move(x, *self.layouts)

    def adjoint(self, y):
        return self._move(y, *reversed(self.layouts))


@al.subject.operator(Redistribution, reference=lambda x, **_: x, name="mpiarray.redistribution")
def redistributions(draw, ranks):
    return dict(lengths=[[draw(st.integers(1, 3)) for _ in range(ranks)] for _ in range(2)])
