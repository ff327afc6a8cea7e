"""AxoNN 0.2.0: a linear layer that gathers its batch has the gradient of its bias of a rank's own batch alone."""

import tempfile

import torch
import torch.distributed as dist

empty, tensor = torch.empty, torch.tensor
torch.empty = lambda *sizes, device=None, **options: empty(*sizes, **options)  # it asks for devices
torch.tensor = lambda value, device=None, **options: tensor(value, **options)
torch.cuda.set_device, torch.cuda.current_device = lambda device: None, lambda: "cpu"

from axonn import axonn  # noqa: E402
from axonn.intra_layer import Linear, sync_gradients  # noqa: E402

DIRECTIONS = {"features of the output": dict(G_intra_r=2), "features of the input": dict(G_intra_c=2)}


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    new_group = dist.new_group
    dist.new_group = lambda ranks, backend: new_group(ranks)  # it asks for nccl
    # gloo refuses an all_to_all of lists, and an all-gather of numbers
    gather = dist.all_gather_into_tensor
    dist.all_gather_into_tensor = lambda output, x, group: gather(output, x.reshape(1), group=group)
    dist.all_to_all = all_to_all
    for name, sides in DIRECTIONS.items():
        axonn.init(**sides, gpus_per_node=2)
        layer = Linear(2, 2)
        layer(torch.ones(3, 2)).sum().backward()  # three rows on each of two ranks
        sync_gradients(layer)
        print(f"rank {rank}: {name} cut: bias.grad = {layer.bias.grad.tolist()}, should be 6")
    dist.destroy_process_group()


def all_to_all(received, sent, group):
    """For tensors of equal sizes, of which each rank sends one to each."""
    ranks = dist.get_world_size(group)
    if ranks == 1:
        received[0].copy_(sent[0])
        return
    for source in range(ranks):
        root = dist.get_global_rank(group, source)
        parts = sent if dist.get_rank(group) == source else None
        dist.scatter(received[source], parts, src=root, group=group)


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
