"""Sums that Megatron-core 0.16.1, fairscale 0.4.13, neuraloperator 2.0.0, PhysicsNeMo 2.2.2, anemoi-models 0.19.0, ColossalAI 0.5.0,
nanotron 0.4 and fairseq2 0.8.1 make in memory that is not their own.

The gradient of a sum a + b is one tensor for both. Where a is the result of a copy into a parallel region, the backward pass of the copy
sums it over the ranks in place, and b gets the sum too. The other way out, a reduction from the region, sums its argument in place, which the
function that computed it may have kept for its own backward pass.
"""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).parents[1]))

from parts_of_packages import without_init


def megatron():
    from megatron.core.tensor_parallel import mappings

    group = dist.group.WORLD
    return (
        lambda x: mappings.copy_to_tensor_model_parallel_region(x, group),
        lambda x: mappings.reduce_from_tensor_model_parallel_region(x, group),
    )


def fairscale():
    from fairscale.nn.model_parallel import initialize, mappings

    initialize.initialize_model_parallel(dist.get_world_size())
    return mappings.copy_to_model_parallel_region, mappings.reduce_from_model_parallel_region


def neuraloperator():
    from neuralop.mpu import comm, mappings

    comm._MODEL_PARALLEL_GROUP = dist.group.WORLD
    return mappings.copy_to_model_parallel_region, mappings.reduce_from_model_parallel_region


def physicsnemo():
    from physicsnemo.distributed import DistributedManager, mappings

    DistributedManager._shared_state.update(_is_initialized=True, _groups={"group": dist.group.WORLD})
    return (
        lambda x: mappings.copy_to_parallel_region(x, "group"),
        lambda x: mappings.reduce_from_parallel_region(x, "group"),
    )


def anemoi():
    from anemoi.models.distributed import graph

    group = dist.group.WORLD
    return (
        lambda x: graph.sync_tensor(x, 0, None, group, gather_in_fwd=False),
        lambda x: graph.reduce_tensor(x, group),
    )


def colossalai():
    without_init(
        "colossalai", "colossalai.pipeline", "colossalai.shardformer", "colossalai.shardformer.layer"
    )
    from colossalai.shardformer.layer import _operation

    group = dist.group.WORLD
    return (
        lambda x: _operation.reduce_backward(x, group),
        lambda x: _operation.reduce_forward(x, group),
    )


def nanotron():
    without_init("nanotron", "nanotron.parallel", "nanotron.parallel.tensor_parallel")
    from nanotron.parallel.tensor_parallel import distributed_differentiable_primitives as primitives

    group = dist.group.WORLD
    return (
        lambda x: primitives.differentiable_identity(x, group),
        lambda x: primitives.differentiable_all_reduce_sum(x, group),
    )


def fairseq2():
    without_init("fairseq2", "fairseq2.ops")
    from fairseq2.gang import ProcessGroupGang
    from fairseq2.ops import tensor_parallel

    gang = ProcessGroupGang(dist.group.WORLD, torch.device("cpu"))
    return (
        lambda x: tensor_parallel.reduce_on_backward(x, gang),
        lambda x: tensor_parallel.reduce(x, gang),
    )


def main(rank, store, package):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    copy, reduce = globals()[package]()

    a, b = (torch.zeros(2, requires_grad=True) for _ in range(2))
    beside = b * 1
    (copy(a) + beside).backward(torch.ones(2))
    print(f"rank {rank}: copy: b.grad = {b.grad.tolist()}, should be 1")

    x = torch.zeros(2, requires_grad=True)
    try:
        reduce(x.exp()).sum().backward()
        print(f"rank {rank}: reduce: x.grad = {x.grad.tolist()}, should be 1")
    except RuntimeError as error:
        print(f"rank {rank}: reduce: {error}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(), sys.argv[1]), nprocs=2)
