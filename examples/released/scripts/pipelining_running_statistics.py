"""Pipelining: the first step of a schedule puts made-up data through the stages, and running statistics take them in."""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.functional import mse_loss


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), torch.ones(4, 2)
    schedule = ScheduleGPipe(PipelineStage(model[rank], rank, 2, torch.device("cpu")), 1, loss_fn=mse_loss)
    schedule.step(**({"target": x} if rank else {}), **({} if rank else {"input": x}))
    if rank:
        sequential = nn.BatchNorm1d(2)
        sequential(model[0](x))
        print("batches seen:", model[1].num_batches_tracked.item(), "and not 1")
        print("running mean:", model[1].running_mean.tolist(), "and not", sequential.running_mean.tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
