"""heat 1.8.0: arrays that are cut along one dimension are cut along another.

adjointlab check examples/released/released_heat.py --check adjoint --check sequential
"""

from __future__ import annotations

import heat
import numpy as np
import torch
from hypothesis import strategies as st

import adjointlab as al


def of_default(comm, x, shape, split):
    """The array whose part on this rank is x, on the communicator that is the default."""
    heat.use_comm(heat.MPICommunication(comm))
    return of_communicator(heat.get_comm(), x, shape, split)


def of_communicator(comm, x, shape, split):
    comm = heat.MPICommunication(getattr(comm, "handle", comm))
    return heat.DNDarray(x, tuple(shape), heat.float64, split, heat.cpu, comm, True)


def of_parts(comm, x, shape, split):
    heat.use_comm(heat.MPICommunication(comm))
    return heat.array(x, is_split=split)


def check(name, make, **options):
    """The subject of an array of three dimensions, which `make` makes."""

    def forward(comm, x, shape, source, target):
        array = make(comm, torch.from_numpy(np.array(x)), shape, source)
        return heat.resplit(array, target).larray.numpy()

    def adjoint(comm, y, shape, source, target):
        return forward(comm, y, shape, target, source)

    def cases(draw, ranks):
        shape = [draw(st.integers(1, 9)) for _ in range(3)]
        source, target = draw(st.permutations(range(3)))[:2]

        def space(dim):
            parts = [len(part) for part in np.array_split(range(shape[dim]), ranks)]
            grid, cuts = [1, 1, 1], [None] * 3
            grid[dim], cuts[dim] = ranks, [sum(parts[:rank]) for rank in range(ranks + 1)]
            return al.Space(al.Layout.cut(shape, grid, cuts))

        return dict(
            shape=shape, source=source, target=target, gain=1, domain=space(source), codomain=space(target)
        )

    return al.subject.pair(
        forward,
        adjoint,
        reference=lambda x, **_: x,
        rank_local=("heat",),
        name=f"heat.{name}",
        **options,
    )(cases)


recut = check("resplit", of_default)
recut_elsewhere = check("resplit.communicator", of_communicator, ranks=(2,))
recut_of_parts = check("array.is_split", of_parts, ranks=(2,))
