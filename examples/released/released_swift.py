"""ms-swift 4.6.0: logarithms of probabilities, entropies and divergences of a cut vocabulary, and the exchange of Ulysses.

adjointlab check examples/released/released_swift.py --check adjoint --check gradients
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from cut_vocabulary import OfCutVocabulary
from exchanges import exchange
from hypothesis import strategies as st
from megatron.core import parallel_state
from parts_of_packages import without_init
from torch import nn
from torch.distributed.tensor import Replicate, Shard

import adjointlab as al

parts = ("megatron", "megatron.trainers", "sequence_parallel")
without_init("swift", *(f"swift.{part}" for part in parts))
from swift.megatron.trainers import vocab_parallel_utils as functions  # noqa: E402
from swift.sequence_parallel.ulysses import _SeqAllToAll  # noqa: E402


def exchanged(x, scatter, gather):
    return _SeqAllToAll.apply(dist.group.WORLD, x, scatter, gather)


def sequences_and_heads(draw, ranks):
    return 2, ranks * draw(st.integers(1, 2)), ranks * draw(st.integers(1, 2)), 2


exchanges = exchange("swift.exchange", exchanged, sequences_and_heads, (1, 2))


class Logarithms(nn.Module):
    def forward(self, logits):
        return logits.log_softmax(-1)


class Entropy(nn.Module):
    def forward(self, logits):
        logarithms = logits.log_softmax(-1)
        return -(logarithms.exp() * logarithms).sum(-1)


class Divergence(nn.Module):
    def forward(self, logits, of_teacher):
        logarithms, of_teacher = (x.log_softmax(-1) for x in (logits, of_teacher))
        return (of_teacher.exp() * (of_teacher - logarithms)).sum(-1)


class OfWords(nn.Module):
    """The logarithms of the probabilities of words, 0 for those that are left out."""

    def forward(self, logits, words):
        chosen = logits.log_softmax(-1).gather(-1, words.clamp_min(0)[..., None])[..., 0]
        return chosen * (words != -100)


def check(name, sequential, function, second=None, cut=Replicate, **options):
    """Of logits, and of another tensor, whose type and whether it is cut too is `second`."""

    def parallelize(module, mesh):
        parallel_state.initialize_model_parallel(dist.get_world_size())
        return OfCutVocabulary(function)

    def cases(draw, ranks):
        rows = draw(st.integers(1, 2)), draw(st.integers(1, 3))
        logits = (*rows, ranks * draw(st.integers(1, 3)))
        inputs = [logits] + {None: [], "logits": [logits], "words": [rows]}[second]
        cuts = [[Shard(2)]] + {None: [], "logits": [[Shard(2)]], "words": [[Replicate()]]}[second]
        return dict(
            inputs=inputs,
            input_dtypes=["float32", "int64" if second == "words" else "float32"][: len(inputs)],
            dtype="float32",
            input_placements=cuts,
            output_placements=[[cut()]],
        )

    return al.subject.parallel(
        sequential,
        parallelize,
        name=f"swift.{name}",
        rank_local=("megatron.core",),
        **options,
    )(cases)


def moderate(*inputs):
    return [x.sin() for x in inputs]


def with_some_left_out(logits, words):
    words = words.abs() % logits.shape[-1]
    return logits.sin(), torch.where(words == 1, -100, words)


def entropy(logits):
    return functions.vocab_parallel_entropy(
        functions.vocab_parallel_log_softmax(logits).contiguous(), chunk_size=2
    )


def divergence(logits, of_teacher):
    return functions.vocab_parallel_kl_div(*map(functions.vocab_parallel_log_softmax, (logits, of_teacher)))


logarithms = check(
    "log_softmax", Logarithms, functions.vocab_parallel_log_softmax, cut=lambda: Shard(2), prepare=torch.sin
)
entropies = check("entropy", Entropy, entropy, prepare=torch.sin)
divergences = check("divergence", Divergence, divergence, "logits", prepare=moderate)
chosen = check(
    "words",
    OfWords,
    lambda logits, words: functions.vocab_parallel_gather_logps(
        logits.clone(memory_format=torch.contiguous_format), words.contiguous()
    ),
    "words",
    prepare=with_some_left_out,
)
