"""diffusers 0.42.1: the gradients of keys and values by ring attention on three ranks are those of other ranks' keys and values.

Rank r works on the keys and values of rank r + i in step i, and passes the gradients that it has so far to rank r + 1, which works on those
of rank r + i + 2 next. On two ranks r + 1 is r - 1, to which they should go.
"""

import tempfile

import torch
import torch.distributed as dist
from diffusers.models._modeling_parallel import ContextParallelConfig, ParallelConfig
from diffusers.models.attention_dispatch import TemplatedRingAttention
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import scaled_dot_product_attention

LENGTH, FEATURES = 6, 2


def attend(ctx, query, key, value, *options, _save_ctx, _parallel_config):
    if _save_ctx:
        ctx.save_for_backward(query, key, value)
    scores = torch.einsum("bqhd,bkhd->bqhk", query, key) / FEATURES**0.5
    return torch.einsum("bqhk,bkhd->bqhd", scores.softmax(-1), value), scores.logsumexp(-1)


def gradients(ctx, gradient, query, key, value, out, lse):
    tensors = [x.detach().requires_grad_() for x in (query, key, value)]
    with torch.enable_grad():
        scores = torch.einsum("bqhd,bkhd->bqhk", *tensors[:2]) / FEATURES**0.5
        part = torch.einsum("bqhk,bkhd->bqhd", (scores - lse[..., None]).exp(), tensors[2])
        # The softmax of all scores, of which these are a part, depends on them by its denominator too.
        loss = (part * gradient).sum() - (
            (gradient * out).sum(-1) * (scores - lse[..., None]).exp().sum(-1)
        ).sum()
    return torch.autograd.grad(loss, tensors)


def main(rank, store, ranks):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks, 1), mesh_dim_names=("ring", "ulysses"))
    config = ParallelConfig(ContextParallelConfig(ranks, 1))
    config.setup(rank, ranks, torch.device("cpu"), mesh=mesh)
    torch.manual_seed(0)
    whole = [torch.randn(1, LENGTH, 1, FEATURES).requires_grad_() for _ in range(3)]
    y = scaled_dot_product_attention(*(x.transpose(1, 2) for x in whole)).transpose(1, 2)
    y.square().sum().backward()

    local = [x.detach().chunk(ranks, 1)[rank].clone().requires_grad_() for x in whole]
    TemplatedRingAttention.apply(
        *local, None, 0.0, False, None, False, False, attend, gradients, config
    ).square().sum().backward()
    for name, got, want in zip("qkv", local, whole, strict=True):
        should = want.grad.chunk(ranks, 1)[rank][0, 0, 0].tolist()
        print(f"{ranks} ranks, rank {rank}: {name}.grad = {got.grad[0, 0, 0].tolist()}, should be {should}")
    dist.destroy_process_group()


if __name__ == "__main__":
    for ranks in (2, 3):
        torch.multiprocessing.spawn(main, (tempfile.mktemp(), ranks), nprocs=ranks)
