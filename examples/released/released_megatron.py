"""Megatron-core 0.16: the functions of `tensor_parallel.mappings`, which lead into and out of parallel regions.

adjointlab check examples/released/released_megatron.py --check adjoint
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from hypothesis import strategies as st
from megatron.core.tensor_parallel import mappings

import adjointlab as al
from adjointlab.adapters.regions import region

if not torch.cuda.is_available():
    # Where buffers are allocated on "the current device", that of a process without one is the CPU.
    torch.cuda.current_device = lambda: "cpu"

CONTIGUOUS = ("row-major",)


def check(kind, function, name, orders=CONTIGUOUS, ranks=(1, 2, 3, 4, 8), **options):
    """The function in the default group, on tensors whose cut dimension the ranks share evenly."""

    def in_default_group(x, **options):
        return function(x, group=dist.group.WORLD, **options)

    def cases(draw, count):
        rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        return {**region(kind, (rows * count, columns * count), count), **options}

    return al.subject.autograd(in_default_group, process_group=True, name=name, orders=orders, ranks=ranks)(
        cases
    )


copies = check("copy", mappings.copy_to_tensor_model_parallel_region, "megatron.copy")
sums = check("reduce", mappings.reduce_from_tensor_model_parallel_region, "megatron.reduce")
copies_in_place = check("copy", mappings.copy_to_tensor_model_parallel_region, "megatron.copy.in_place")
sums_in_place = check("reduce", mappings.reduce_from_tensor_model_parallel_region, "megatron.reduce.in_place")
scatters = check("scatter", mappings.scatter_to_tensor_model_parallel_region, "megatron.scatter")
gathers = check("gather", mappings.gather_from_tensor_model_parallel_region, "megatron.gather")
sequence_scatters = check(
    "scatter sequence", mappings.scatter_to_sequence_parallel_region, "megatron.scatter_sequence"
)
sequence_gathers = check(
    "gather sequence", mappings.gather_from_sequence_parallel_region, "megatron.gather_sequence"
)
whole_gradients = check(
    "gather sequence, whole gradient",
    mappings.gather_from_sequence_parallel_region,
    "megatron.gather_sequence.whole",
    tensor_parallel_output_grad=False,
)
sequence_sums = check(
    "reduce-scatter sequence",
    mappings.reduce_scatter_to_sequence_parallel_region,
    "megatron.reduce_scatter_sequence",
)
last_gathers = check(
    "all-gather", mappings.all_gather_last_dim_from_tensor_parallel_region, "megatron.all_gather_last"
)
last_sums = check(
    "reduce-scatter",
    mappings.reduce_scatter_last_dim_to_tensor_parallel_region,
    "megatron.reduce_scatter_last",
)
to_hidden = check("sequence to hidden", mappings.all_to_all_sp2hp, "megatron.all_to_all_sp2hp")
to_sequence = check("hidden to sequence", mappings.all_to_all_hp2sp, "megatron.all_to_all_hp2sp")

copies_of_any_order = check(
    "copy", mappings.copy_to_tensor_model_parallel_region, "megatron.copy.transposed", ("column-major",), (2,)
)


def with_sizes(function):
    def in_default_group(x, sizes):
        return function(x, group=dist.group.WORLD, **sizes)

    return in_default_group


def uneven(kind, name, keyword):
    def cases(draw, count):
        sizes = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
        spaces = region(kind, (sum(sizes), draw(st.integers(1, 3))), count, sizes=sizes)
        return dict(**spaces, sizes={keyword: sizes})

    return cases


uneven_gathers = al.subject.autograd(
    with_sizes(mappings.gather_from_sequence_parallel_region),
    process_group=True,
    name="megatron.gather_sequence.uneven",
    orders=CONTIGUOUS,
)(uneven("gather sequence", "gather", "output_split_sizes"))
uneven_sums = al.subject.autograd(
    with_sizes(mappings.reduce_scatter_to_sequence_parallel_region),
    process_group=True,
    name="megatron.reduce_scatter_sequence.uneven",
    orders=CONTIGUOUS,
)(uneven("reduce-scatter sequence", "sum", "input_split_sizes"))
