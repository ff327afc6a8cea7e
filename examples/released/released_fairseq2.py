"""fairseq2 0.8.1: the functions of tensor parallelism.

adjointlab check examples/released/released_fairseq2.py --check adjoint --check sequential

Other modules of the package need its native library.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from hypothesis import strategies as st
from parts_of_packages import without_init
from torch.distributed.tensor import Partial, Replicate, Shard

import adjointlab as al

without_init("fairseq2", "fairseq2.ops")
from fairseq2.gang import ProcessGroupGang  # noqa: E402
from fairseq2.ops import tensor_parallel  # noqa: E402


def check(name, function, source, target, **options):
    """A function of a tensor that is whole, or cut along a dimension, by its placement."""

    def called(x, dims):
        gang = ProcessGroupGang(dist.group.WORLD, torch.device("cpu"))
        return function(x, gang, **dims)

    def cases(draw, ranks):
        dim, shape = draw(st.integers(0, 1)), [2, 3]
        shape[dim] = ranks * draw(st.integers(1, 2))
        kinds = [kind(dim) if kind is Shard else kind for kind in (source, target)]
        domain, codomain = (al.Space.of_dtensor((ranks,), [kind], shape) for kind in kinds)
        return dict(
            dims=dict(dim=dim) if Shard in (source, target) else {},
            gain=ranks,
            domain=domain,
            codomain=codomain,
        )

    return al.subject.autograd(
        called,
        process_group=True,
        reference=lambda x, dims: x,
        orders=("row-major",),
        name=f"fairseq2.{name}",
        **options,
    )(cases)


scattered = check("scatter", tensor_parallel.scatter, Replicate(), Shard)
gathered = check("gather", tensor_parallel.gather, Shard, Replicate())
reduced = check("reduce", tensor_parallel.reduce, Partial(), Replicate())
copied = check("copy", tensor_parallel.reduce_on_backward, Replicate(), "replicated")
copied_in_place = check("copy.in_place", tensor_parallel.reduce_on_backward, Replicate(), "replicated")
