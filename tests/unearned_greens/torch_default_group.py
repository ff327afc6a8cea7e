"""The operator sums over torch's default process group, which has one process, past the communicator that it is handed."""

import tempfile

import numpy as np
import torch
import torch.distributed as dist

import adjointlab as al
from tests.unearned_greens.common import Copying, blocks

store = dist.FileStore(tempfile.mktemp(), 1)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)


class Summing(Copying):
    def forward(self, x):
        total = torch.tensor(np.array(x))
        dist.all_reduce(total)
        return total.numpy()

    adjoint = forward


@al.subject(Summing)
def subject(draw, ranks):
    return blocks(draw, ranks)
