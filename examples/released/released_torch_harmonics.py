"""torch-harmonics 0.9: the primitives of `torch_harmonics.distributed`, on polar groups of uneven latitudes.

adjointlab check examples/released/released_torch_harmonics.py --check adjoint
"""

from __future__ import annotations

from itertools import accumulate

import torch.distributed as dist
import torch_harmonics.distributed as harmonics
from hypothesis import strategies as st
from torch_harmonics.distributed import primitives, utils

import adjointlab as al

LATITUDES = {
    # (batch, channels, latitudes, longitudes), cut along the latitudes
    "whole": (None, "invariant"),
    "input": (None, "replicated"),
    "summands": (None, "partial"),
    "cut": (2, "varying"),
    "cut longitudes": (3, "varying"),
}


def space(kind, shape, ranks, sizes):
    dim, local_type = LATITUDES[kind]
    if dim is None:
        return al.Space(al.Layout(shape, al.Partition((ranks,)), axes=(None,) * 4), types=(local_type,))
    ends = [(0, *accumulate(sizes)) if k == dim else None for k in range(4)]
    return al.Space(al.Layout.cut(shape, al.Partition([ranks if k == dim else 1 for k in range(4)]), ends))


def check(name, function, domain, codomain):
    """``function(x, shape)`` of tensors of global `shape`."""

    def in_group(x, shape):
        harmonics.init(dist.group.WORLD, None)
        return function(x, shape)

    def cases(draw, ranks):
        latitudes, longitudes = draw(st.integers(ranks, 2 * ranks + 2)), draw(st.integers(ranks, 2 * ranks))
        shape = (1, draw(st.integers(1, 2)), latitudes, longitudes)

        def sizes(kind):
            return primitives.compute_split_shapes(longitudes if "longitudes" in kind else latitudes, ranks)

        return dict(
            domain=space(domain, shape, ranks, sizes(domain)),
            codomain=space(codomain, shape, ranks, sizes(codomain)),
            shape=shape,
        )

    return al.subject.autograd(
        in_group, process_group=True, name=name, rank_local=("torch_harmonics.distributed",)
    )(cases)


def sizes_of(shape, dim):
    return primitives.compute_split_shapes(shape[dim], utils.polar_group_size())


copies = check("harmonics.copy", lambda x, shape: primitives.copy_to_polar_region(x), "whole", "input")
sums = check("harmonics.reduce", lambda x, shape: primitives.reduce_from_polar_region(x), "summands", "whole")
scatters = check(
    "harmonics.scatter", lambda x, shape: primitives.scatter_to_polar_region(x, 2), "whole", "cut"
)
gathers = check(
    "harmonics.gather",
    lambda x, shape: primitives.gather_from_polar_region(x, 2, sizes_of(shape, 2)),
    "cut",
    "whole",
)
scattered_sums = check(
    "harmonics.reduce_scatter",
    lambda x, shape: primitives.reduce_from_scatter_to_polar_region(x, 2),
    "summands",
    "cut",
)
gathered_copies = check(
    "harmonics.gather_copy",
    lambda x, shape: primitives.gather_from_copy_to_polar_region(x, 2, sizes_of(shape, 2)),
    "cut",
    "input",
)
transposes = check(
    "harmonics.transpose",
    lambda x, shape: primitives.distributed_transpose_polar(x, (3, 2), sizes_of(shape, 2)),
    "cut",
    "cut longitudes",
)
