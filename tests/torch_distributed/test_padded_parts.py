"""Of a vocabulary that is padded to a multiple of the ranks, each rank holds as many rows, those behind the last word among them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.nn import functional as F

import adjointlab as al
from adjointlab.core.padded import Padded
from adjointlab.torch_distributed.dtensors import tensor_on
from adjointlab.torch_distributed.held_parts import HeldPart, as_held
from tests.planted.parallel_modules import CopiedIn, SummedUp

pytestmark = pytest.mark.mpi_skip

WORDS = 5


class Scores(nn.Module):
    """The scores of all words after a word, with one weight for both."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.embedding(words).tanh() @ self.embedding.weight.T


class Gathered(torch.autograd.Function):
    """The scores of all ranks' words, which they use alike."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own.contiguous())
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient.chunk(dist.get_world_size(), -1)[dist.get_rank()]


class PaddedScores(nn.Module):
    def __init__(self, whole: Scores, rows: int, *, is_masked: bool = True) -> None:
        super().__init__()
        self.embedding, self.rows, self.is_masked = whole.embedding, rows, is_masked
        weight, ranks = whole.embedding.weight, dist.get_world_size()
        padded = F.pad(weight.detach(), (0, 0, 0, ranks * rows - len(weight)))
        self.embedding.weight = nn.Parameter(
            padded.chunk(ranks)[dist.get_rank()].clone(), weight.requires_grad
        )

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        own = words - dist.get_rank() * self.rows
        others = (own < 0) | (own >= self.rows)
        vectors = F.embedding(own.masked_fill(others, 0), self.embedding.weight)
        if self.is_masked:
            vectors = vectors.masked_fill(others[..., None], 0)
        hidden = SummedUp.apply(vectors).tanh()
        return Gathered.apply(CopiedIn.apply(hidden) @ self.embedding.weight.T)[..., :WORDS]


def cases(draw: Any, ranks: int) -> dict[str, Any]:
    return dict(inputs=(4,), parameter_placements={"embedding.weight": [Shard(0)]})


def word(numbers: torch.Tensor) -> torch.Tensor:
    return (2 * numbers.long()) % WORDS


@pytest.mark.parametrize(("ranks", "rows"), [(1, 8), (2, 3), (3, 2), (3, 4)])
def test_rows_that_pad_a_vocabulary_are_no_part_of_it(ranks: int, rows: int) -> None:
    adam: Any = partial(torch.optim.Adam, lr=0.1)
    given: Any = dict(mesh=(ranks,), prepare=word, optimizer=adam, steps=2, cases=6)
    al.check_parallel(Scores, lambda module, mesh: PaddedScores(module, rows), cases, **given)


@pytest.mark.parametrize("rows", [3, 4])
def test_a_fault_of_a_padded_vocabulary_is_found(rows: int) -> None:
    with pytest.raises(AssertionError, match="the layer's outputs are not the sequential ones"):
        al.check_parallel(
            Scores,
            lambda module, mesh: PaddedScores(module, rows, is_masked=False),
            cases,
            mesh=(2,),
            prepare=word,
            cases=6,
        )


@pytest.mark.parametrize(
    ("lengths", "cut", "own"),
    [
        ((4, 4, 4, 4), ((0, 4), (4, 7)), Padded(0, 3, 4)),
        ((9, 9, 9, 9), ((0, 7), (7, 7)), Padded(0, 0, 9)),
        # Copies of the whole, and parts of other lengths.
        ((7, 7, 7, 7), ((0, 4), (4, 7)), None),
        ((5, 5, 4, 4), ((0, 4), (4, 7)), None),
    ],
)
def test_parts_of_one_length_that_are_longer_than_the_whole_together_are_padded(
    lengths: Any, cut: Any, own: Padded | None
) -> None:
    tensor = tensor_on(al.Partition((2, 2)), [Shard(0), Replicate()], (7, 2), "float64", "w")
    placements = (Shard(0), Replicate())
    parts = {
        rank: HeldPart(placements, (7, 2), (length, 2), "float64") for rank, length in enumerate(lengths)
    }
    found, padding = as_held(tensor, parts, rank=3)
    assert (found.layout.windows[0], padding) == (cut, own)


def test_what_is_padded_is_so_with_zeros() -> None:
    padded = Padded(1, 2, 3)
    whole = torch.arange(4.0).view(2, 2)
    joined = padded.joined(whole, (2, 3))
    assert joined.tolist() == [[0, 1, 0], [2, 3, 0]]
    assert padded.apart(joined).equal(whole)
    assert padded.apart(whole) is padded.joined(whole, (2, 2)) is whole
