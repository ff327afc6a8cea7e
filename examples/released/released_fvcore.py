"""fvcore 0.1.5, pytorchvideo 0.1.5 and nnunetv2 2.8.1: functions that sum and gather, and the batch normalisations that are made of them.

adjointlab check examples/released/released_fvcore.py --check adjoint --check gradients
"""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from parts_of_packages import without_init
from torch import nn
from torch.distributed.tensor import Partial, Shard
from torch.nn.parallel import DistributedDataParallel

import adjointlab as al

without_init("fvcore", "fvcore.nn", "pytorchvideo", "pytorchvideo.layers", "nnunetv2", "nnunetv2.utilities")
from fvcore.nn.distributed import differentiable_all_gather, differentiable_all_reduce  # noqa: E402
from nnunetv2.utilities.ddp_allgather import AllGatherGrad  # noqa: E402
from pytorchvideo.layers import batch_norm  # noqa: E402


def check_function(name, function, source, **options):
    def cases(draw, ranks):
        shape = ranks * draw(st.integers(1, 3)), draw(st.integers(1, 2))
        domain, codomain = (al.Space.of_dtensor((ranks,), [kind], shape) for kind in (source, "replicated"))
        return dict(gain=ranks, domain=domain, codomain=codomain)

    return al.subject.autograd(function, process_group=True, reference=lambda x: x, name=name, **options)(
        cases
    )


gathers = check_function(
    "fvcore.gather", lambda x: torch.cat(differentiable_all_gather(x)), Shard(0), orders=("row-major",)
)
stacks = check_function(
    "nnunetv2.gather", lambda x: AllGatherGrad.apply(x).flatten(0, 1), Shard(0), orders=("row-major",)
)
sums = check_function(
    "fvcore.sum", lambda x: differentiable_all_reduce(x) * 1, Partial(), orders=("row-major",)
)
sums_in_place = check_function(
    "fvcore.sum.in_place", differentiable_all_reduce, Partial(), orders=("row-major",), ranks=(2,)
)


class Normalized(nn.Sequential):
    def __init__(self, dims, channels, momentum):
        self.dims = dims
        kind = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1]
        super().__init__(kind(channels, momentum=momentum))
        self[0].num_batches_tracked = None  # the package leaves it at 0


def parallelize(module, mesh):
    (old,) = module
    new = getattr(batch_norm, f"NaiveSyncBatchNorm{module.dims}d")(old.num_features, momentum=old.momentum)
    new.num_batches_tracked = None
    new.load_state_dict(old.state_dict())
    return DistributedDataParallel(nn.Sequential(new))


def check(name, momentum, **options):
    """Each rank has as many rows as the others, which the package says it asks for."""

    def cases(draw, ranks):
        dims, channels = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        return dict(
            inputs=(ranks * draw(st.integers(1, 2)), channels, *[2] * dims),
            dims=dims,
            channels=channels,
            momentum=momentum,
            frozen=0,
            rounding=1e-9,  # variances are taken as E[x²] - E[x]²
        )

    return al.subject.parallel(
        Normalized,
        parallelize,
        data_parallel="mean",
        prepare=torch.sin,
        one_batch_size=True,
        name=f"pytorchvideo.{name}",
        **options,
    )(cases)


norms = check("batch_norm", 0.0)
running = check("batch_norm.running", 0.1, ranks=(2,))
