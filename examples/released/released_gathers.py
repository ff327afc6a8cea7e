"""Functions of four packages that gather the parts of all ranks: lightning-fabric 2.6.6, solo-learn 1.0.2, torchmetrics 1.9.0 and x-clip 0.14.4.

adjointlab check examples/released/released_gathers.py --check adjoint --check sequential
"""

from __future__ import annotations

from itertools import accumulate

import torch
from hypothesis import strategies as st
from lightning_fabric.utilities.distributed import _all_gather_ddp_if_available
from parts_of_packages import without_init
from torch.distributed.tensor import Replicate
from torchmetrics.utilities.distributed import gather_all_tensors

import adjointlab as al

without_init("solo", "solo.utils", "x_clip")
from solo.utils.misc import gather  # noqa: E402
from x_clip.distributed import all_gather  # noqa: E402


def check(name, function, result, is_even=True, **options):
    """A function of rows, which returns all rows; copies of them that ranks go on to use differently are "replicated"."""

    def cases(draw, ranks):
        counts = [draw(st.integers(1, 3)) for _ in range(ranks)]
        if is_even:
            counts = counts[:1] * ranks
        shape = sum(counts), draw(st.integers(1, 2))
        return dict(
            gain=ranks,
            domain=al.Space(al.Layout.cut(shape, (ranks, 1), [[0, *accumulate(counts)], None])),
            codomain=al.Space.of_dtensor((ranks,), [result], shape),
        )

    return al.subject.autograd(function, process_group=True, reference=lambda x: x, name=name, **options)(
        cases
    )


def of_fabric(x):
    return _all_gather_ddp_if_available(x, sync_grads=True).flatten(0, 1)


synchronised = check("lightning_fabric.gather", of_fabric, "replicated", orders=("row-major",))
views = check("solo.gather", gather, Replicate(), orders=("row-major",))
metrics = check("torchmetrics.gather", lambda x: torch.cat(gather_all_tensors(x)), Replicate(), is_even=False)
latents = check("x_clip.gather", lambda x: all_gather(x, 0, None)[0], Replicate(), ranks=(2,))
