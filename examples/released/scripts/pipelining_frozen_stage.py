"""Pipelining by a zero-bubble schedule: the stage behind a frozen one gets no gradients."""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.nn.functional import mse_loss


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=1)
    for name in ("ScheduleInterleaved1F1B", "ScheduleInterleavedZeroBubble", "ScheduleZBVZeroBubble"):
        model, x = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), torch.ones(1, 2)
        model[0].requires_grad_(False)
        stages = [PipelineStage(model[k], k, 2, torch.device("cpu")) for k in range(2)]
        getattr(schedules, name)(stages, 1, loss_fn=mse_loss).step(x, target=x)
        print(f"{name}: the gradient of the last weight is {model[1].weight.grad}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=1)
