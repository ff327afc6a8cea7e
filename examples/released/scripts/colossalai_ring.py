"""ColossalAI 0.5.0: with `seq_parallel_mode="ring"` the weight of a column-parallel linear layer gets a gradient of other inputs.

`_ring_as_gather` keeps for the backward pass the dictionary of what is sent, which later steps change, and in the last step what was sent and
not what was received: on two ranks each has its own part of the sequence twice.
"""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).parents[1]))

from parts_of_packages import without_init

without_init("colossalai", "colossalai.pipeline", "colossalai.shardformer", "colossalai.shardformer.layer")


def main(rank, store, ranks=2):
    from colossalai.shardformer.layer import _operation as functions

    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
    whole = torch.arange(1.0, 5.0).reshape(1, ranks, 2)
    for ring in (False, True):
        weight = torch.ones(1, 2, requires_grad=True)
        x = whole.chunk(ranks, 1)[rank].contiguous()
        functions.linear_gather_forward_reducescatter_backward(
            x, weight, None, dist.group.WORLD, True, 1, ring
        ).sum().backward()
        print(f"rank {rank}, ring={ring}: {weight.grad.tolist()}, should be {whole.sum(1).tolist()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
