"""neuraloperator 2.0: the functions of `neuralop.mpu.mappings`, whose group is a module-level variable.

adjointlab check examples/released/released_neuraloperator.py --check adjoint

Tensors are of float32, in which sums are made.
"""

from __future__ import annotations

import torch.distributed as dist
from hypothesis import strategies as st
from neuralop.mpu import comm, mappings

import adjointlab as al
from adjointlab.adapters.regions import region


def check(kind, function, name, dtype="float32"):
    def in_group(x):
        comm._MODEL_PARALLEL_GROUP = dist.group.WORLD  # `comm.init` asks for GPUs
        return function(x)

    def cases(draw, ranks):
        return region(kind, (draw(st.integers(1, 3)) * ranks, draw(st.integers(1, 3)) * ranks), ranks, dtype)

    # Tensors are contiguous, as their collectives ask for.
    return al.subject.autograd(
        in_group,
        process_group=True,
        name=f"neuralop.{name}",
        orders=("row-major",),
        rank_local=("neuralop.mpu",),
    )(cases)


copies = check("copy", mappings.copy_to_model_parallel_region, "copy")
# The sum is made in place.
sums = check("reduce", lambda x: mappings.reduce_from_model_parallel_region(x * 1), "reduce")
scatters = check("scatter", lambda x: mappings.scatter_to_model_parallel_region(x, 1), "scatter")
gathers = check("gather", lambda x: mappings.gather_from_model_parallel_region(x, 1), "gather")
first_scatters = check(
    "scatter sequence", lambda x: mappings.scatter_to_model_parallel_region(x, 0), "scatter_first"
)
first_gathers = check(
    "gather sequence, whole gradient",
    lambda x: mappings.gather_from_model_parallel_region(x, 0),
    "gather_first",
)

# Findings

copies_of_complex = check("copy", mappings.copy_to_model_parallel_region, "copy.complex", "complex128")
sums_of_complex = check("reduce", mappings.reduce_from_model_parallel_region, "reduce.complex", "complex128")
copies_of_doubles = check("copy", mappings.copy_to_model_parallel_region, "copy.float64", "float64")
copies_in_place = check("copy", mappings.copy_to_model_parallel_region, "copy.in_place")
sums_in_place = check("reduce", mappings.reduce_from_model_parallel_region, "reduce.in_place")
