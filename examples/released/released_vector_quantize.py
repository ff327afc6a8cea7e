"""vector-quantize-pytorch 1.32.0: a codebook that the ranks of a batch learn together, and a loss of the codes of all ranks.

adjointlab check examples/released/released_vector_quantize.py --check gradients --check sequential
"""

from __future__ import annotations

import torch.distributed as dist
from hypothesis import strategies as st
from torch import nn
from torch.distributed.tensor import Partial, Shard
from vector_quantize_pytorch import LFQ, VectorQuantize

import adjointlab as al

DIM = 3


class Quantized(nn.Module):
    def __init__(self, is_synchronised=False, **options):
        super().__init__()
        self.options = options
        if "affine_param" in options:
            options = options | dict(sync_affine_param=is_synchronised)
        self.quantize = VectorQuantize(
            DIM, codebook_size=4, decay=0.75, sync_codebook=is_synchronised, **options
        )

    def forward(self, x):
        return self.quantize(x)[:2]


def parallelize(module, mesh):
    parallel = Quantized(is_synchronised=True, **module.options)
    parallel.load_state_dict(module.state_dict())
    return parallel


def check(name, **options):
    def cases(draw, ranks):
        return dict(inputs=(draw(st.integers(1, 5)), draw(st.integers(1, 3)), DIM), dtype="float32")

    return al.subject.parallel(
        lambda: Quantized(**options),
        parallelize,
        data_parallel="mean",
        prepare=lambda x: x.sin(),
        name=f"vector_quantize.{name}",
    )(cases)


averages = check("averages")
cosines = check("cosines", use_cosine_sim=True)
affine = check("affine", affine_param=True)


class Entropy(nn.Module):
    """The entropy of the codes of each sample, less that of the codes of all."""

    def __init__(self):
        super().__init__()
        self.quantize = LFQ(dim=DIM, codebook_size=2**DIM)

    def forward(self, x):
        return self.quantize(x).entropy_aux_loss


class EntropyOfAllRanks(Entropy):
    """Returns the loss of its rows, of which DistributedDataParallel takes the mean, as it does of the gradients."""

    def forward(self, x):
        return super().forward(x) / dist.get_world_size()


def rows(draw, ranks):
    return dict(
        inputs=(2 * ranks, 2, DIM),
        dtype="float32",
        input_placements=[[Shard(0)]],
        output_placements=[[Partial()]],
    )


entropies = al.subject.parallel(
    Entropy,
    lambda module, mesh: EntropyOfAllRanks(),
    prepare=lambda x: x.sin(),
    rank_local=("vector_quantize_pytorch",),
    ranks=(2,),
    name="vector_quantize.entropy",
)(rows)
