"""A torch.autograd.Function under the lab: an all-gather whose backward sums what every worker did to the copies.

Returning one's own slice of the gradient instead, without the sum, is a fault that several libraries have had.
"""

import torch

import adjointlab as al


class AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, comm):
        parts = [torch.from_numpy(part) for part in comm.allgather(x.detach().numpy())]
        rank = comm.Get_rank()
        ctx.comm, ctx.start = comm, sum(len(part) for part in parts[:rank])
        ctx.stop = ctx.start + len(parts[rank])
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient):
        total = sum(torch.from_numpy(part) for part in ctx.comm.allgather(gradient.numpy()))
        return total[ctx.start : ctx.stop], None


def concatenated(x):
    return x  # what every worker should hold is the global tensor


@al.subject.autograd(AllGather, reference=concatenated)
def all_gathers(draw, ranks):
    n = draw(al.strategies.shapes(1))[0]
    cut = al.Layout.cut((n,), al.Partition((ranks,)), [draw(al.strategies.cuts(n, ranks))])
    copies = al.Layout((n,), al.Partition((ranks,)), axes=(None,))
    return dict(domain=al.Space(cut), codomain=al.Space(copies))


TestAllGather = al.coherence_tests(all_gathers)
