"""Pipelining: `eval` of a schedule ends in an assertion where a rank has two consecutive stages, as ZBV has them on its last one."""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.nn.functional import mse_loss


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=1)
    model, x = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), torch.ones(1, 2)
    stages = [PipelineStage(model[k], k, 2, torch.device("cpu")) for k in range(2)]
    schedule = schedules.ScheduleZBVZeroBubble(stages, 1, loss_fn=mse_loss)
    try:
        print(f"eval: {schedule.eval(x, target=x)}")
    except AssertionError as error:
        print(f"eval: {error}")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=1)
