"""A pipeline of torch.distributed.pipelining, by any of its schedules, against the module whose layers its stages are.

Drawn are the schedule, the number of microbatches, and how many layers each stage has. Without pytest it is one call:
``al.check_pipeline(model, pipeline, torch.randn(8, 3), loss=mse_loss, ...)``, with a `pipeline` that takes the module alone.
"""

import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.nn.functional import mse_loss

import adjointlab as al


def model(layers=4):
    return nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(layers)))


def pipeline(model, schedule, cuts, microbatches):
    rank, size, count = dist.get_rank(), dist.get_world_size(), len(cuts) - 1
    mine = [rank, count - 1 - rank] if "V" in schedule else range(rank, count, size)
    parts = {k: model[cuts[k] : cuts[k + 1]] for k in mine}
    stages = [PipelineStage(part, k, count, torch.device("cpu")) for k, part in parts.items()]
    made = getattr(schedules, schedule)
    several = issubclass(made, schedules.PipelineScheduleMulti)
    return made(stages if several else stages[0], microbatches, loss_fn=mse_loss)


@al.subject.pipeline(model, pipeline, loss=mse_loss)
def pipelines(draw, ranks):
    drawn = draw(al.strategies.pipelines(ranks))
    rows = drawn["microbatches"] * draw(st.integers(1, 2))
    return dict(inputs=(rows, 3), layers=drawn["cuts"][-1], pipeline=drawn)


TestPipelines = al.coherence_tests(pipelines)
