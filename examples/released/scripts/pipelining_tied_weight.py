"""Pipelining by ZBV: the gradient of a weight that the first and the last stage share is divided once for each of them."""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.nn.functional import mse_loss


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=1)
    model, x = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), torch.ones(2, 2)
    model[1].weight = model[0].weight
    stages = [PipelineStage(model[k], k, 2, torch.device("cpu")) for k in range(2)]
    schedules.ScheduleZBVZeroBubble(stages, 2, loss_fn=mse_loss).step(x, target=x)
    found, model[0].weight.grad = model[0].weight.grad, None
    mse_loss(model(x), x).backward()
    print("the gradient is", found.tolist(), "and not", model[0].weight.grad.tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=1)
