"""deepinv 0.5.0: stacks of linear operators whose parts the ranks share, and networks whose patches they share.

adjointlab check examples/released/released_deepinv.py --check gradients
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from deepinv.distributed import DistributedContext, distribute
from deepinv.distributed.framework import DistributedProcessing
from deepinv.physics import LinearPhysics, StackedLinearPhysics
from hypothesis import strategies as st
from torch import nn

import adjointlab as al

WIDTH = 3


def matrix(index, dtype):
    return torch.arange((index + 1) * WIDTH, dtype=dtype).reshape(index + 1, WIDTH) % 5 - index


def physics(index):
    return LinearPhysics(
        A=lambda x: x @ matrix(index, x.dtype).T, A_adjoint=lambda y: y @ matrix(index, y.dtype)
    )


class Stack(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.stack = StackedLinearPhysics([physics(index) for index in range(count)])

    def forward(self, x):
        return list(self.stack.A(x))


class DistributedStack(nn.Module):
    """The stack, of contiguous tensors: where a rank has no operator, the memory order of its gradient is another than that of others."""

    def __init__(self, stack, **options):
        super().__init__()
        context = DistributedContext(device_mode="cpu").__enter__()
        self.stack = distribute(stack.stack, context, **options)

    def forward(self, x):
        return list(self.stack.A(x.contiguous()))


class Normal(Stack):
    def forward(self, x):
        return self.stack.A_adjoint(self.stack.A(x))


class DistributedNormal(DistributedStack):
    def forward(self, x):
        return self.stack.A_adjoint(self.stack.A(x.contiguous()))


def check(name, sequential, parallelize, cases, **options):
    return al.subject.parallel(
        sequential, lambda module, mesh: parallelize(module), name=f"deepinv.{name}", **options
    )(cases)


def check_stack(name, sequential, parallel, fewest=1, ranks=(1, 2, 3, 4), **options):
    def cases(draw, ranks):
        count = ranks if fewest is None else fewest
        return dict(inputs=(draw(st.integers(1, 2)), WIDTH), count=draw(st.integers(count, count + 3)))

    def parallelize(module):
        return parallel(module, dtype=torch.float64, **options)

    return check(name, sequential, parallelize, cases, ranks=ranks)


gathered = check_stack("stack", Stack, DistributedStack)
gathered_by_broadcasts = check_stack(
    "stack.broadcast", Stack, DistributedStack, gather_strategy="broadcast", ranks=(2,)
)
gathered_as_objects = check_stack("stack.naive", Stack, DistributedStack, gather_strategy="naive", ranks=(1,))
normal = check_stack("normal", Normal, DistributedNormal, fewest=None)
normal_of_few = check_stack("normal.few", Normal, DistributedNormal, ranks=(4,))


class Pointwise(nn.Module):
    """A network that may be applied to patches."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(1, 1, 1)

    def forward(self, x, sigma=None):
        return self.layer(x).tanh()


class Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(total := gradient.contiguous().clone())
        return total / dist.get_world_size()


class Patches(nn.Module):
    """The patches of an image, which the ranks share. Its input gradient is one of which the mean over the ranks is to be taken."""

    def __init__(self, whole):
        super().__init__()
        self.layer = whole.layer
        context = DistributedContext(device_mode="cpu").__enter__()
        options = dict(patch_size=2, overlap=1)
        self.of_patches = [DistributedProcessing(context, whole, strategy_kwargs=options)]

    def forward(self, x):
        return self.of_patches[0](Mean.apply(x))


def check_patches(name, **options):
    def cases(draw, ranks):
        return dict(inputs=(1, 1, draw(st.integers(3, 5)), draw(st.integers(3, 5))))

    return check(name, Pointwise, Patches, cases, **options)


patches = check_patches("patches")
