"""verl 0.9.1: the functions of Ulysses, and what is computed of a cut vocabulary.

adjointlab check examples/released/released_verl.py --check adjoint --check sequential --check gradients
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.distributed as dist
from cut_vocabulary import OfCutVocabulary
from exchanges import exchange
from hypothesis import strategies as st
from megatron.core import parallel_state
from parts_of_packages import with_modules, without_init
from torch import nn
from torch.distributed.tensor import Replicate, Shard

import adjointlab as al

parts = ("utils", "utils.megatron", "trainer", "trainer.distillation", "trainer.distillation.megatron")
without_init("verl", *(f"verl.{part}" for part in parts))
of_callers = {
    "verl.models.mcore.util": SimpleNamespace(preprocess_bshd_engine=None, preprocess_thd_engine=None),
    "verl.workers.config": SimpleNamespace(DistillationConfig=None, DistillationLossConfig=None),
}
with with_modules(of_callers):
    from verl.trainer.distillation.megatron.losses import _VocabParallelKLDivergence

from verl.utils import ulysses  # noqa: E402
from verl.utils.megatron import tensor_parallel  # noqa: E402

# It calls the compiler in every forward pass.
tensor_parallel.torch = SimpleNamespace(**vars(torch))
tensor_parallel.torch.compile = lambda **options: lambda function: function

SEQUENCE, HEADS = 1, 2


def group():
    return dist.group.WORLD


def multiples(draw, ranks):
    return [ranks * draw(st.integers(1, 2)) for _ in range(3)]


exchanges = exchange(
    "verl.exchange",
    lambda x, scatter, gather: ulysses.SeqAllToAll.apply(group(), x, scatter, gather),
    multiples,
    range(3),
)


def padded(draw, ranks):
    """A sequence of any length, and the least multiple of the ranks that holds it."""
    length = draw(st.integers(1, 2 * ranks))
    return length, -(-length // ranks) * ranks


def to_heads(x, length):
    return ulysses.gather_seq_scatter_heads(x, SEQUENCE, HEADS, length, group())


def to_sequences(x):
    return ulysses.gather_heads_scatter_seq(x, HEADS, SEQUENCE, group())


def space(ranks, dim, *shape):
    return al.Space.of_dtensor((ranks,), [Shard(dim)], shape)


@al.subject.autograd(
    to_heads, process_group=True, reference=lambda x, length: x[:, :length], name="verl.to_heads"
)
def head_cases(draw, ranks):
    length, whole = padded(draw, ranks)
    heads = ranks * draw(st.integers(1, 2))
    return dict(
        length=length,
        gain=1,
        domain=space(ranks, SEQUENCE, 2, whole, heads),
        codomain=space(ranks, HEADS, 2, length, heads),
    )


def with_zeros(x, missing):
    return nn.functional.pad(x, (0, 0, 0, missing))


@al.subject.autograd(
    lambda x, missing: to_sequences(x), process_group=True, reference=with_zeros, name="verl.to_sequences"
)
def sequence_cases(draw, ranks):
    length, whole = padded(draw, ranks)
    heads = ranks * draw(st.integers(1, 2))
    return dict(
        missing=whole - length,
        gain=1,
        domain=space(ranks, HEADS, 2, length, heads),
        codomain=space(ranks, SEQUENCE, 2, whole, heads),
    )


def gathered(x, length):
    missing = x.shape[SEQUENCE] * dist.get_world_size() - length
    return ulysses.gather_outputs_and_unpad(x, SEQUENCE, SEQUENCE, missing, grad_scaler=False, group=group())


@al.subject.autograd(
    gathered,
    process_group=True,
    reference=lambda x, length: x[:, :length],
    orders=("row-major",),
    name="verl.gather",
)
def gather_cases(draw, ranks):
    length, whole = padded(draw, ranks)
    return dict(
        length=length,
        gain=ranks,
        domain=space(ranks, SEQUENCE, 2, whole),
        codomain=al.Space.of_dtensor((ranks,), [Replicate()], (2, length)),
    )


def check_slice(name, function):
    def cases(draw, ranks):
        length, whole = padded(draw, ranks)
        return dict(
            missing=whole - length,
            gain=1,
            domain=al.Space.of_dtensor((ranks,), ["replicated"], (2, length)),
            codomain=space(ranks, SEQUENCE, 2, whole),
        )

    return al.subject.autograd(
        function,
        process_group=True,
        rank_local=("verl.utils.ulysses",),
        reference=lambda x, missing: nn.functional.pad(x, (0, missing)),
        name=f"verl.{name}",
    )(cases)


def sliced(x, missing):
    ulysses.set_ulysses_sequence_parallel_group(group())
    return ulysses.slice_input_tensor(x, SEQUENCE)


slices = check_slice("slice", sliced)
slices_of_group = check_slice(
    "slice.group", lambda x, missing: ulysses.slice_input_tensor(x, SEQUENCE, group=group())
)


class Entropy(nn.Module):
    def forward(self, logits):
        logarithms = logits.log_softmax(-1)
        return -(logarithms.exp() * logarithms).sum(-1)


BOUND = -2.0


class Divergence(nn.Module):
    """Of the probabilities of some words, from a teacher, with the logarithms of both bounded from below."""

    def forward(self, logits, of_teacher, words):
        logarithms = logits.log_softmax(-1).gather(-1, words)
        of_teacher, logarithms = (x.clamp_min(BOUND) for x in (of_teacher.detach(), logarithms))
        return (of_teacher.exp() * (of_teacher - logarithms)).sum(-1)


def check(name, sequential, function, cases, prepare=torch.sin, **options):
    def parallelize(module, mesh):
        parallel_state.initialize_model_parallel(dist.get_world_size())
        return OfCutVocabulary(function)

    return al.subject.parallel(
        sequential,
        parallelize,
        name=f"verl.{name}",
        rank_local=("megatron.core",),
        prepare=prepare,
        **options,
    )(cases)


def logits(dims):
    def cases(draw, ranks):
        shape = [draw(st.integers(1, 3)) for _ in range(dims - 1)]
        return dict(
            inputs=(*shape, ranks * draw(st.integers(1, 3))),
            input_placements=[[Shard(dims - 1)]],
            output_placements=[[Replicate()]],
            rounding="float32",
        )

    return cases


def in_chunks(x):
    return tensor_parallel.vocab_parallel_entropy_with_chunking(x, chunk_size=2)


def entropy(x):
    return tensor_parallel.vocab_parallel_entropy(x.clone())


entropies = check("entropy", Entropy, entropy, logits(2))
entropies_in_place = check(
    "entropy.in_place", Entropy, tensor_parallel.vocab_parallel_entropy, logits(2), ranks=(2,)
)
chunks = check("entropy.chunks", Entropy, lambda x: in_chunks(x.clone()), logits(3), ranks=(1,))
chunks_of_rows = check("entropy.chunks.rows", Entropy, in_chunks, logits(2), ranks=(1,))


def divergence(*inputs):
    return _VocabParallelKLDivergence.apply(*(x.contiguous() for x in inputs), BOUND)[0]


def of_teacher(logits, logarithms, words):
    return logits.sin() * 2, -logarithms.abs(), words.abs() % logits.shape[-1]


def words(draw, ranks):
    rows, number = (draw(st.integers(1, 2)), draw(st.integers(1, 3))), draw(st.integers(1, 2))
    return dict(
        inputs=[(*rows, ranks * draw(st.integers(2, 3))), (*rows, number), (*rows, number)],
        input_dtypes=["float32", "float32", "int64"],
        dtype="float32",
        input_placements=[[Shard(2)], [Replicate()], [Replicate()]],
        output_placements=[[Replicate()]],
    )


divergences = check("divergence", Divergence, divergence, words, of_teacher)
