"""Of a fused weight, such as gate and up in one, each rank holds its part of every piece."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.nn import functional as F

import adjointlab as al
from adjointlab.core.pieces import Pieces, UnequalPieces
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.torch_distributed.fused import pieces_apart
from tests.planted.parallel_modules import CopiedIn, SummedUp

pytestmark = pytest.mark.mpi_skip

TWO = _StridedShard(0, split_factor=2)


class Gated(nn.Module):
    """A perceptron whose gate is in one weight with what it lets through."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.up = nn.Linear(3, 2 * width, bias=False)
        self.down = nn.Linear(width, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, through = self.up(x).chunk(2, -1)
        return self.down(F.silu(gate) * through)


def own(weight: torch.Tensor, dim: int) -> torch.Tensor:
    parts = weight.chunk(dist.get_world_size(), dim)
    return parts[dist.get_rank()] if dist.get_rank() < len(parts) else weight.narrow(dim, 0, 0)


def of_each_piece(weight: torch.Tensor) -> torch.Tensor:
    return torch.cat([own(piece, 0) for piece in weight.chunk(2)])


class ParallelGated(nn.Module):
    def __init__(self, whole: Gated, cut: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        for name, part in (("up", cut(whole.up.weight.data)), ("down", own(whole.down.weight.data, 1))):
            linear = nn.Linear(1, 1, bias=False)
            linear.weight = nn.Parameter(part.clone(), getattr(whole, name).weight.requires_grad)
            self.add_module(name, linear)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, through = self.up(CopiedIn.apply(x)).chunk(2, -1)
        return SummedUp.apply(self.down(F.silu(gate) * through))


class WithoutSum(ParallelGated):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, through = self.up(x).chunk(2, -1)
        return SummedUp.apply(self.down(F.silu(gate) * through))


def subject(
    made: type[ParallelGated] = ParallelGated,
    cut: Callable[[torch.Tensor], torch.Tensor] = of_each_piece,
    placement: Placement = TWO,
    width: int = 5,
) -> Any:
    adam = partial(torch.optim.Adam, lr=0.1)

    @al.subject.parallel(Gated, lambda module, mesh: made(module, cut), optimizer=adam, steps=2)
    def perceptrons(draw: Any, ranks: int) -> dict[str, Any]:
        placements = {"up.weight": [placement], "down.weight": [Shard(1)]}
        return dict(inputs=(4, 3), mesh=(ranks,), width=width, parameter_placements=placements)

    return perceptrons


def judged(of: Any, check: str, ranks: int = 3) -> Any:
    return investigate(al.SimulatedWorld(ranks), of, check, Budget(12, seed=1)).verdict


@pytest.mark.parametrize("check", ["sequential", "gradients", "training", "jacobian"])
def test_a_weight_of_which_each_rank_holds_its_part_of_every_piece_is_compared(check: str) -> None:
    assert judged(subject(), check).is_coherent


def test_a_gradient_that_is_not_summed_is_found_beside_fused_weights() -> None:
    verdict = judged(subject(WithoutSum), "gradients")
    assert "input gradient is not the sequential one" in verdict.headline


@pytest.mark.parametrize(("placement", "advises"), [(TWO, False), (Shard(0), True)])
def test_parts_of_other_pieces_are_found(placement: Placement, advises: bool) -> None:
    cut = partial(own, dim=0) if placement == TWO else of_each_piece
    verdict = judged(subject(cut=cut, placement=placement, width=4), "sequential", ranks=2)
    (text,) = [text for _, text in verdict.lines if "values of other elements" in text]
    assert ("declare it as _StridedShard(0, split_factor=2)" in text) == advises


def test_a_part_that_is_not_of_so_many_pieces_is_told_the_shape_that_it_should_have() -> None:
    verdict = judged(subject(cut=partial(own, dim=0)), "sequential", ranks=2)
    (text,) = [text for _, text in verdict.lines if "up.weight has shape" in text]
    assert "shape (5, 3) on rank 0, but the layout" in text
    assert text.endswith("gives it (2, 3, 3)")


class Sharded(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held: Any = self.weight
        whole = held.full_tensor() if isinstance(held, DTensor) else held
        return x @ whole


def test_dtensors_that_are_shared_piece_by_piece_say_so_themselves() -> None:
    def parallelize(module: nn.Module, mesh: Any) -> nn.Module:
        whole: Any = module.weight
        part = DTensor.from_local(
            of_each_piece(whole.data), mesh, [TWO], run_check=False, shape=whole.shape, stride=whole.stride()
        )
        return Sharded(nn.Parameter(part, whole.requires_grad))

    @al.subject.parallel(lambda: Sharded(nn.Parameter(torch.zeros(8, 3))), parallelize, ranks=(2,))
    def products(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(4, 8), mesh=(ranks,))

    for check in ("sequential", "gradients"):
        assert judged(products, check, ranks=2).is_coherent


@pytest.mark.parametrize(
    ("placements", "shape", "pieces", "apart"),
    [
        ([TWO], (4, 3), Pieces(0, 2), [Shard(1)]),
        ([Replicate(), _StridedShard(-1, split_factor=3)], (4, 6), Pieces(1, 3), [Replicate(), Shard(2)]),
        ([Shard(0), _StridedShard(1, split_factor=3)], (4, 6), Pieces(1, 3), [Shard(0), Shard(2)]),
        ([Shard(1), TWO], (4, 6), Pieces(0, 2), [Shard(2), Shard(1)]),
        ([Shard(0)], (4,), None, [Shard(0)]),
        ([_StridedShard(0, split_factor=1)], (4,), None, [_StridedShard(0, split_factor=1)]),
        ([TWO, Shard(0)], (4,), None, [TWO, Shard(0)]),
        ([Replicate()], (), None, [Replicate()]),
    ],
)
def test_pieces_get_a_dimension_of_their_own(
    placements: list[Placement], shape: tuple[int, ...], pieces: Pieces | None, apart: list[Placement]
) -> None:
    assert pieces_apart(placements, shape) == (pieces, apart)


def test_pieces_that_are_not_equal_are_refused() -> None:
    with pytest.raises(ValueError, match="of 2 pieces, which do not divide the side 5"):
        pieces_apart([TWO], (5, 3))


def test_pieces_apart_keep_the_order_of_their_elements() -> None:
    fused = torch.arange(24).reshape(3, 4, 2)
    apart = Pieces(1, 2).apart(fused)
    assert apart.shape == (3, 2, 2, 2)
    assert torch.equal(torch.cat([apart[:, 0], apart[:, 1]], 1), fused)


# Pieces of different sizes.

SIZES = (12, 6, 6)
"""Rows of q, k and v, of two queries for each key."""


class Attending(nn.Module):
    """Queries that share keys and values, with all three in one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(3, sum(SIZES))
        self.out = nn.Linear(SIZES[0], 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.qkv(x)
        half = rows.shape[-1] // 4
        q, k, v = rows.split((2 * half, half, half), -1)
        keys, values = (each.repeat_interleave(2, -1) for each in (k, v))
        return self.out(q * torch.tanh(keys) + values)


def of_each_size(weight: torch.Tensor) -> torch.Tensor:
    return torch.cat([own(piece, 0) for piece in weight.split(SIZES)])


class ParallelAttending(Attending):
    def __init__(self, whole: Attending, cut: Callable[[torch.Tensor], torch.Tensor]) -> None:
        nn.Module.__init__(self)
        self.qkv, self.out = nn.Linear(1, 1), nn.Linear(1, 1, bias=False)
        for linear, name, part in (
            (self.qkv, "weight", cut(whole.qkv.weight.data)),
            (self.qkv, "bias", cut(whole.qkv.bias.data)),
            (self.out, "weight", own(whole.out.weight.data, 1)),
        ):
            of_whole = getattr(whole.qkv if linear is self.qkv else whole.out, name)
            setattr(linear, name, nn.Parameter(part.clone(), of_whole.requires_grad))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return SummedUp.apply(super().forward(CopiedIn.apply(x)))


def attending(
    cut: Callable[[torch.Tensor], torch.Tensor] = of_each_size, sizes: Any = SIZES, **more: Any
) -> Any:
    adam = partial(torch.optim.Adam, lr=0.1)

    @al.subject.parallel(
        Attending,
        lambda module, mesh: ParallelAttending(module, cut),
        optimizer=adam,
        steps=2,
        ranks=(1, 2, 3),
    )
    def attentions(draw: Any, ranks: int) -> dict[str, Any]:
        fused = ("qkv.weight", "qkv.bias")
        placements = {**{name: [Shard(0)] for name in fused}, "out.weight": [Shard(1)]}
        pieces = dict.fromkeys(fused, sizes)
        return dict(
            inputs=(4, 3), mesh=(ranks,), parameter_placements=placements, parameter_pieces=pieces, **more
        )

    return attentions


@pytest.mark.parametrize("check", ["sequential", "gradients", "training", "jacobian"])
def test_a_weight_of_pieces_of_different_sizes_is_compared(check: str) -> None:
    assert judged(attending(), check).is_coherent


def test_a_weight_of_pieces_that_is_cut_as_one_is_found() -> None:
    verdict = judged(attending(partial(own, dim=0)), "sequential", ranks=2)
    assert any("values of other elements" in text for _, text in verdict.lines)


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ((12, 6), r"pieces of 12, 6 are 18 together, and dimension 0 has 24"),
        ((13, 6, 5), r"a piece of 13 has no equal parts on 2 ranks"),
        ((12, 0, 12), r"\(12, 0, 12\) is not a list of sizes"),
        (24, r"24 is not a list of sizes"),
    ],
)
def test_sizes_that_cannot_be_those_of_pieces_are_refused(sizes: Any, told: str) -> None:
    verdict = judged(attending(sizes=sizes), "sequential", ranks=2)
    assert re.search(told, str(verdict)), verdict


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("dim", [0, 1])
def test_the_parts_of_a_rank_are_one_behind_the_other(ranks: int, dim: int) -> None:
    pieces, fused = (
        UnequalPieces(dim, SIZES, ranks),
        torch.arange(48).reshape((24, 2) if dim == 0 else (2, 24)),
    )
    apart = pieces.apart(fused)
    parts = [
        torch.cat([piece.chunk(ranks, dim)[rank] for piece in fused.split(SIZES, dim)], dim)
        for rank in range(ranks)
    ]
    assert torch.equal(apart, torch.cat(parts, dim))
    assert torch.equal(pieces.joined(apart, fused.shape), fused)
    assert ranks == 1 or pieces.apart(parts[0]) is parts[0]
