"""fairscale 0.4: the functions of `nn.model_parallel.mappings`, whose group is a module-level variable.

adjointlab check examples/released/released_fairscale.py --check adjoint
"""

from __future__ import annotations

import torch.distributed as dist
from fairscale.nn.model_parallel import initialize, mappings
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.adapters.regions import region


def check(kind, function, name):
    def in_group(x):
        if not initialize.model_parallel_is_initialized():
            initialize.initialize_model_parallel(dist.get_world_size())
        return function(x * 1)  # the sum is made in place

    def cases(draw, ranks):
        return region(kind, (draw(st.integers(1, 3)), draw(st.integers(1, 3)) * ranks), ranks)

    # Tensors are contiguous, as their collectives ask for.
    return al.subject.autograd(
        in_group,
        process_group=True,
        name=name,
        orders=("row-major",),
        rank_local=("fairscale.nn.model_parallel",),
    )(cases)


copies = check("copy", mappings.copy_to_model_parallel_region, "fairscale.copy")
sums = check("reduce", mappings.reduce_from_model_parallel_region, "fairscale.reduce")
scatters = check("scatter", mappings.scatter_to_model_parallel_region, "fairscale.scatter")
copies_in_place = check("copy", mappings.copy_to_model_parallel_region, "fairscale.copy.in_place")
gathers = check("gather", mappings.gather_from_model_parallel_region, "fairscale.gather")
