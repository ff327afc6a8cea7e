"""fla-core 0.6.0: causal convolutions and token shifts of packed sequences, cut over the ranks of context parallelism.

adjointlab check examples/released/released_fla.py --check gradients --check sequential

Its kernels need a device, so the subjects give it formulas for the host.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from fla.modules import causal_conv1d, token_shift_cp
from fla.modules.causal_conv1d.cp import CausalConv1dFunctionCP
from fla.ops.cp import build_cp_context
from hypothesis import strategies as st
from torch import nn
from torch.distributed.tensor import Shard

import adjointlab as al

DIM = 2


def convolved(x, weight, before, ends):
    """The convolution of each sequence of x, which the last columns of `before` precede, or zeros."""
    width, parts = weight.shape[1], []
    for number, sequence in enumerate(x[0].tensor_split(ends[1:-1])):
        zeros = x.new_zeros(width - 1, x.shape[2])
        head = zeros if before is None else before[number, :, 1:].T
        parts.append((torch.cat([head, sequence]).unfold(0, width, 1) * weight).sum(-1))
    return torch.cat(parts)[None]


def forward(x, weight, bias, initial_state, cu_seqlens, **_):
    return convolved(x, weight, initial_state, cu_seqlens.tolist()), None


def backward(x, dy, weight, bias, initial_state, cu_seqlens, **_):
    leaves = [each.detach().requires_grad_() for each in (x, weight, initial_state) if each is not None]
    with torch.enable_grad():
        y = convolved(leaves[0], leaves[1], leaves[2] if len(leaves) > 2 else None, cu_seqlens.tolist())
    dx, dw, *dh = torch.autograd.grad(y, leaves, dy)
    return dx, dw, None, None, dh[0] if dh else None


def shifted(x, cache, ends):
    """The token before each, less the token."""
    weight = x.new_tensor([[1.0, -1.0]]).expand(x.shape[2], 2)
    before = None if cache is None else torch.stack([torch.zeros_like(cache), cache], 2)
    return convolved(x, weight, before, ends)


def shift_forward(x, cu_seqlens, cache, output_cache, chunk_indices):
    return shifted(x, cache, cu_seqlens.tolist()), len(cu_seqlens) - 1, x.shape[1], True, None


def shift_backward(dy, N, T, dcache, cu_seqlens, use_short_kernel, has_init_cache, chunk_indices):
    x = torch.zeros_like(dy).requires_grad_()
    cache = dy.new_zeros(N, dy.shape[2]).requires_grad_() if has_init_cache else None
    with torch.enable_grad():
        y = shifted(x, cache, cu_seqlens.tolist())
    gradients = torch.autograd.grad(y, [x] if cache is None else [x, cache], dy)
    return gradients[0], gradients[1] if has_init_cache else None


causal_conv1d.causal_conv1d_fwd, causal_conv1d.causal_conv1d_bwd = forward, backward
token_shift_cp.token_shift_fwd, token_shift_cp.token_shift_bwd = shift_forward, shift_backward


def zigzag(length, ranks):
    """The tokens in the order of the ranks, of which each has one part from either end."""
    parts = torch.arange(length).chunk(2 * ranks)
    return torch.cat([parts[n] for rank in range(ranks) for n in (rank, 2 * ranks - 1 - rank)])


class Convolution(nn.Module):
    def __init__(self, width, ends, layout, ranks):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(DIM, width))
        self.ends, self.layout, self.ranks = ends, layout, ranks

    def forward(self, x):
        if self.layout == "contiguous":
            return convolved(x, self.weight, None, self.ends)
        order = zigzag(x.shape[1], self.ranks)
        return convolved(x[:, order.argsort()], self.weight, None, self.ends)[:, order]


def context(ends, width, layout="contiguous"):
    return build_cp_context(torch.tensor(ends), dist.group.WORLD, conv1d_kernel_size=width, layout=layout)


class ParallelConvolution(Convolution):
    def forward(self, x):
        own = context(self.ends, self.weight.shape[1], self.layout)
        return CausalConv1dFunctionCP.apply(x, self.weight, None, None, None, own, None)


class Shift(nn.Module):
    def __init__(self, ends):
        super().__init__()
        self.ends = ends

    def forward(self, x):
        return shifted(x, None, self.ends)


class ParallelShift(Shift):
    def forward(self, x):
        return token_shift_cp.token_shift_cp(x, context(self.ends, 2))


def sum_gradients(module):
    for parameter in module.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)


def sequences(draw, length):
    cuts = draw(st.sets(st.integers(1, max(1, length - 1)), max_size=3)) if length > 1 else []
    return [0, *sorted(cuts), length]


def of_sequences(ends, **arguments):
    return dict(
        arguments,
        inputs=(1, ends[-1], DIM),
        ends=ends,
        input_placements=[[Shard(1)]],
        output_placements=[[Shard(1)]],
    )


def check(name, layout, **options):
    def cases(draw, ranks):
        width = draw(st.integers(2, 4))
        parts = ranks if layout == "contiguous" else 2 * ranks
        length = parts * draw(st.integers(width - 1, 5))
        ends = sequences(draw, length)
        return of_sequences(ends, width=width, layout=layout, ranks=ranks, frozen=0)

    return al.subject.parallel(
        Convolution,
        lambda module, mesh: parallel(module),
        after_backward=sum_gradients,
        name=f"fla.convolution.{name}",
        **options,
    )(cases)


def parallel(module):
    made = ParallelConvolution(module.weight.shape[1], module.ends, module.layout, module.ranks)
    made.weight = module.weight
    return made


contiguous = check("contiguous", "contiguous")
from_both_ends = check("zigzag", "zigzag")


@al.subject.parallel(Shift, lambda module, mesh: ParallelShift(module.ends), name="fla.token_shift")
def shifts(draw, ranks):
    return of_sequences(sequences(draw, ranks * draw(st.integers(1, 3))))
