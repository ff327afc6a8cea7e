"""Code of torch.distributed under the lab, unchanged: it calls ``dist.*`` and DTensor, and never hears of the lab or of MPI.

The first is an autograd function of sequence parallelism; its backward pass must add up what all ranks did to their copies. The
second moves a DTensor between any two placements on meshes of one and two dimensions, uneven shards included.
"""

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, init_device_mesh

import adjointlab as al


class GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient):
        parts = list(gradient.contiguous().chunk(dist.get_world_size()))
        own = torch.empty_like(parts[0])
        dist.reduce_scatter(own, parts)
        return own


@al.subject.autograd(GatherRows, process_group=True)
def gathers(draw, ranks):
    rows, columns = draw(al.strategies.shapes(2))
    cut = al.Layout((rows * ranks, columns), al.Partition((ranks, 1)))
    copies = al.Layout((rows * ranks, columns), al.Partition((ranks,)), axes=(None, None))
    return dict(domain=al.Space(cut), codomain=al.Space(copies, types=("replicated",)))


def redistribute(local, mesh, source, target, shape):
    mesh = init_device_mesh("cpu", mesh)
    stride = (shape[1], 1)
    x = DTensor.from_local(local, mesh, source, shape=torch.Size(shape), stride=stride)
    return x.redistribute(placements=target).to_local()


@al.subject.autograd(redistribute, process_group=True)
def redistributions(draw, ranks):
    mesh, shape = draw(al.strategies.meshes(ranks)), draw(al.strategies.shapes(2))
    source = draw(al.strategies.placements(mesh, 2, partial=True))
    target = draw(al.strategies.placements(mesh, 2))
    return dict(
        domain=al.Space.of_dtensor(mesh, source, shape),
        codomain=al.Space.of_dtensor(mesh, target, shape),
        mesh=mesh,
        source=source,
        target=target,
        shape=shape,
    )


TestGathers = al.coherence_tests(gathers)
TestRedistributions = al.coherence_tests(redistributions)
