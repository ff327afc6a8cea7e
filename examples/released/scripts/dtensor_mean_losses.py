"""DTensor: losses with reduction="mean" over sharded rows.

On 2 ranks. Of 3 rows (uneven) the value is the mean of the local means; of 2 rows and more, the gradient is N times too large, because
the backward pass divides by the number of local elements.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

LOSSES = (
    F.mse_loss,
    F.l1_loss,
    F.smooth_l1_loss,
    F.huber_loss,
    F.soft_margin_loss,
    F.binary_cross_entropy_with_logits,
)


def loss_and_gradient(loss, x, y):
    x = x.detach().requires_grad_()
    value = loss(x, y)
    value.backward()
    return value, x.grad


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    for rows in (2, 3):
        x, y = torch.arange(rows) / 4.0, torch.ones(rows)
        for loss in LOSSES:
            expected = loss_and_gradient(loss, x, y)
            try:
                found = loss_and_gradient(loss, *(distribute_tensor(t, mesh, [Shard(0)]) for t in (x, y)))
            except Exception as error:
                if rank == 0:
                    print(
                        f"{rows} rows, {loss.__name__}: {type(error).__name__}: {str(error).splitlines()[0]}"
                    )
                continue
            found = [t.full_tensor() for t in found]
            for what, one, other in zip(("value", "gradient"), found, expected, strict=True):
                if rank == 0 and not torch.allclose(one, other):
                    print(f"{rows} rows, {loss.__name__}: {what} {one.tolist()}, should be {other.tolist()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
