"""ColossalAI 0.5.0: the mean of `cross_entropy_1d` leaves out rows whose loss is exactly zero, and is NaN if all are.

It counts losses that are not zero, where it should count targets that are not ignored. In float32 a loss is zero as soon as all other words
together have a probability below 6e-8.
"""

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).parents[1]))

from parts_of_packages import without_init

without_init("colossalai", "colossalai.pipeline", "colossalai.shardformer", "colossalai.shardformer.layer")
sys.modules["colossalai.shardformer.shard"] = SimpleNamespace(ShardConfig=object)


def main(rank, store, ranks=2):
    from colossalai.shardformer.layer.loss import cross_entropy_1d

    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
    targets = torch.tensor([0, 0])
    for name, second in (("one certain row", 0.0), ("two", 30.0)):
        logits = torch.tensor([[30.0, 0.0, 0.0, 0.0], [second, 0.0, 0.0, 0.0]])
        loss = cross_entropy_1d(
            logits.chunk(ranks, 1)[rank].contiguous(),
            targets,
            process_group=dist.group.WORLD,
            dtype=torch.float32,
        )
        should = torch.nn.functional.cross_entropy(logits, targets)
        print(f"rank {rank}, {name}: {loss.item():.4f}, should be {should.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
