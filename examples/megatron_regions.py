"""The two functions of Megatron's tensor parallelism, f and g, checked by the names of what they lead into and out of.

adjointlab check examples/megatron_regions.py
"""

import torch
import torch.distributed as dist

import adjointlab as al
from adjointlab.adapters.regions import region


def summed(x):
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x)
    return x


class CopyToRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return summed(gradient)


class ReduceFromRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return summed(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@al.subject.autograd(CopyToRegion, process_group=True)
def copies(draw, ranks):
    return region("copy", draw(al.strategies.shapes(2)), ranks)


@al.subject.autograd(ReduceFromRegion, process_group=True)
def sums(draw, ranks):
    return region("reduce", draw(al.strategies.shapes(2)), ranks)


TestCopies = al.coherence_tests(copies)
TestSums = al.coherence_tests(sums)
