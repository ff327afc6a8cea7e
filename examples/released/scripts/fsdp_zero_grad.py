"""FullyShardedDataParallel with SHARD_GRAD_OP adds new gradients to those that zero_grad() has cleared after the forward pass."""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP):
        kind = dict(use_orig_params=True, device_id=torch.device("cpu"), sharding_strategy=strategy)
        model = FullyShardedDataParallel(
            nn.Sequential(FullyShardedDataParallel(nn.Linear(1, 2), **kind)), **kind
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for step in (1, 2):
            loss = model(torch.ones(1, 1)).sum()
            optimizer.zero_grad()
            loss.backward()
            for name, parameter in model.named_parameters():
                if parameter.grad is not None and "weight" in name:
                    print(f"{strategy.name}, step {step}, gradient {parameter.grad.tolist()}, and 1 is right")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
