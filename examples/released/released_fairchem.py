"""fairchem-core 2.24.0: the functions of graph parallelism.

adjointlab check examples/released/released_fairchem.py --check adjoint --check sequential

Other modules of the package need the models.
"""

from __future__ import annotations

import torch.distributed as dist
from hypothesis import strategies as st
from parts_of_packages import without_init
from torch.distributed.tensor import Partial, Replicate

import adjointlab as al

without_init("fairchem", "fairchem.core", "fairchem.core.common")
from fairchem.core.common import gp_utils  # noqa: E402


def with_groups(function):
    """The function in graph-parallel groups of all ranks."""

    def called(x, **arguments):
        if not gp_utils.initialized():
            gp_utils.setup_graph_parallel_groups(dist.get_world_size(), "gloo")
        return function(x, **arguments)

    return called


def cut(rows, columns, ranks):
    """Rows that the ranks share as evenly as possible, the longer parts first."""
    parts = gp_utils.size_list_fn(rows, ranks)
    ends = [sum(parts[:rank]) for rank in range(ranks + 1)]
    return al.Space(al.Layout.cut((rows, columns), (ranks, 1), [ends, None]))


def check(name, function, source, target, gathers=False):
    """A function of atoms that are whole, by their placement, or in parts."""

    def cases(draw, ranks):
        rows, columns = draw(st.integers(0, 5)), draw(st.integers(1, 3))

        def space(kind):
            if kind is cut:
                return cut(rows, columns, ranks)
            return al.Space.of_dtensor((ranks,), [kind], (rows, columns))

        arguments = dict(natoms=rows) if gathers else {}
        return dict(arguments, gain=ranks, domain=space(source), codomain=space(target))

    return al.subject.autograd(
        with_groups(function),
        process_group=True,
        rank_local=("fairchem",),
        reference=lambda x, **_: x,
        name=f"fairchem.{name}",
    )(cases)


scattered = check("scatter", gp_utils.scatter_to_model_parallel_region, Replicate(), cut)
gathered = check("gather", gp_utils.gather_from_model_parallel_region, cut, Replicate(), gathers=True)
gathered_copies = check(
    "gather.copies", gp_utils.gather_from_model_parallel_region_sum_grad, cut, "replicated", gathers=True
)
reduced = check("reduce", gp_utils.reduce_from_model_parallel_region, Partial(), Replicate())
reduced_copies = check("reduce.copies", gp_utils.all_reduce_sum_with_grad, Partial(), "replicated")
