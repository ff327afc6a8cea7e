"""Your own torch.nn.Module under the lab: a linear layer whose weight is cut by rows, checked against torch.nn.Linear.

pytest examples/my_own_layer.py, or mpiexec -n 4 python -m pytest examples/my_own_layer.py
"""

import torch

import adjointlab as al


class CopyToAll(torch.autograd.Function):
    """A tensor that every worker has a copy of and uses: its gradient is the sum over the workers."""

    @staticmethod
    def forward(ctx, x, comm, anchor):
        ctx.comm = comm
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        parts = ctx.comm.allgather(gradient.contiguous().numpy())
        return sum(torch.from_numpy(part) for part in parts), None, None


class ColumnParallelLinear(torch.nn.Module):
    """Each worker computes some of the output features, from the whole input."""

    forward_mode = False  # CopyToAll has no jvp

    def __init__(self, comm, in_features, out_features):
        super().__init__()
        self.comm, rank, size = comm, comm.Get_rank(), comm.Get_size()
        rows = out_features // size + (rank < out_features % size)
        self.weight = torch.nn.Parameter(torch.randn(rows, in_features, dtype=torch.float64))
        self.bias = torch.nn.Parameter(torch.zeros(rows, dtype=torch.float64))

    def forward(self, x):
        # The anchor lets backward communicate on every worker, whatever requires a gradient there.
        x = CopyToAll.apply(x, self.comm, torch.zeros(0, requires_grad=True))
        return torch.nn.functional.linear(x, self.weight, self.bias)


# That was the layer. The rest is for the lab: the sequential twin, how cases are drawn, and where tensors lie.


def linear(in_features, out_features):
    return torch.nn.Linear(in_features, out_features, dtype=torch.float64)


@al.subject.layer(ColumnParallelLinear, linear)
def column_parallel(draw, ranks):
    batch, inputs, outputs = (max(1, side) for side in draw(al.strategies.shapes(3)))
    workers = al.Partition((ranks,))
    x = al.Layout((batch, inputs), workers, axes=(None, None))  # whole on every worker, and
    weight = al.Layout((outputs, inputs), workers, axes=(0, None))
    bias = al.Layout((outputs,), workers, axes=(0,))
    return dict(
        in_features=inputs,
        out_features=outputs,
        domain=al.Space(x, types=("invariant",)),  # the same everywhere
        codomain=al.Space(al.Layout((batch, outputs), workers, axes=(None, 0)), name="y"),
        parameter_space=al.Space(al.Tensor(weight, name="weight"), al.Tensor(bias, name="bias")),
    )


TestColumnParallel = al.coherence_tests(column_parallel)  # pytest collects one test for each check
