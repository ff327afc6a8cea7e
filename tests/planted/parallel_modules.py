"""Slips in modules that are made parallel by torch.distributed, in layers of one's own and around those of torch.

Each is found against the sequential module, by gradients unless it says another check.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

import adjointlab as al
from adjointlab.engine.subject import Subject
from tests.planted.bug import PlantedBug
from tests.torch_distributed.sums import all_reduced

# The pair of functions between which a tensor-parallel block lies


class CopiedIn(torch.autograd.Function):
    """A copy that every rank uses in its own way: the gradients are added up."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return all_reduced(gradient)


class SummedUp(torch.autograd.Function):
    """Summands of all ranks added up: the gradient is that of the sum."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return all_reduced(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class SummedInBothDirections(SummedUp):
    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return all_reduced(gradient)


# A tensor-parallel block with a gate that all ranks have a copy of


class Gated(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.ones(hidden, 2))
        self.gate = nn.Parameter(torch.ones(1))
        self.down = nn.Parameter(torch.ones(2, hidden))
        self.bias = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.up.T * self.gate) @ self.down.T + self.bias


class ParallelGated(Gated):
    """Each rank has some rows of `up` and the columns of `down` that belong to them."""

    copied: Any = CopiedIn.apply
    gate_copied: Any = CopiedIn.apply
    summed: Any = SummedUp.apply

    def __init__(self, hidden: int) -> None:
        super().__init__(hidden // dist.get_world_size())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kind = type(self)
        partial_sum = (kind.copied(x) @ self.up.T * kind.gate_copied(self.gate)) @ self.down.T
        return self.with_bias(partial_sum)

    def with_bias(self, partial_sum: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = type(self).summed(partial_sum)
        return total + self.bias


class WithBareGate(ParallelGated):
    gate_copied = staticmethod(lambda gate: gate)


class WithBareInput(ParallelGated):
    copied = staticmethod(lambda x: x)


class SummingGradients(ParallelGated):
    summed = SummedInBothDirections.apply


class WithBiasOfEveryRank(ParallelGated):
    def with_bias(self, partial_sum: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = type(self).summed(partial_sum + self.bias)
        return total


class WithoutSumsAfterAValidation(ParallelGated):
    """Needs no sum of gradients in evaluation mode, and has none in training from then on."""

    is_validated = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.is_validated = self.is_validated or not self.training
        if not (self.is_validated and self.training):
            return super().forward(x)
        return self.with_bias((x @ self.up.T * type(self).gate_copied(self.gate)) @ self.down.T)


def gated(kind: type[ParallelGated]) -> Subject:
    def parallelize(module: Gated, mesh: Any) -> nn.Module:
        return kind(len(module.up))

    @al.subject.parallel(Gated, parallelize, name=kind.__name__)
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        shared = {"up": [Shard(0)], "down": [Shard(1)]}
        return dict(inputs=(2, 2), hidden=ranks, parameter_placements=shared, frozen=0)

    return cases


# A block that returns two tensors, of which either may be left out of the loss


class Branching(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.left, self.right = nn.Parameter(torch.ones(hidden, 2)), nn.Parameter(torch.ones(hidden, 2))

    def branches(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, 2 * x

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        one, other = self.branches(x)
        return one @ self.left.T, other @ self.right.T


class CopiedTwice(torch.autograd.Function):
    """A copy and twice the copy, whose gradients are added up in one message."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return x.view_as(x), 2 * x

    @classmethod
    def backward(cls, ctx: Any, *gradients: torch.Tensor | None) -> Any:
        one, other = gradients
        if one is None:
            return None if other is None else cls.of_other(2 * other)
        return all_reduced(one if other is None else one + 2 * other)

    @staticmethod
    def of_other(gradient: torch.Tensor) -> torch.Tensor:
        return all_reduced(gradient)


class CopiedTwiceForOne(CopiedTwice):
    @staticmethod
    def of_other(gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def branching(copied: type[CopiedTwice]) -> Subject:
    class Parallel(Branching):
        def branches(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            apply: Any = copied.apply
            result: tuple[torch.Tensor, torch.Tensor] = apply(x)
            return result

    @al.subject.parallel(Branching, lambda module, mesh: Parallel(1), name=copied.__name__)
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        shared = {"left": [Shard(0)], "right": [Shard(0)]}
        outputs = [[Shard(1)], [Shard(1)]]
        return dict(
            inputs=(2, 2), hidden=ranks, parameter_placements=shared, output_placements=outputs, frozen=0
        )

    return cases


# A layer that sums up the gradient of its input while it computes that of its weight


class Column(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.T


class Overlapped(torch.autograd.Function):
    waits_always = True

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @classmethod
    def backward(cls, ctx: Any, gradient: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        by_input = (gradient @ weight).contiguous()
        work = dist.all_reduce(by_input, async_op=True)
        by_weight = gradient.T @ x if ctx.needs_input_grad[1] else None
        if cls.waits_always or by_weight is not None:
            work.wait()
        return by_input, by_weight


class OverlappedWithWeight(Overlapped):
    waits_always = False


class OverlappedUnlessZero(Overlapped):
    """Sends nothing where the gradient is zero, and leaves the ranks waiting that have one."""

    @classmethod
    def backward(cls, ctx: Any, gradient: torch.Tensor) -> Any:
        if gradient.any():
            return super().backward(ctx, gradient)
        return tuple(map(torch.zeros_like, ctx.saved_tensors))


def column(function: type[Overlapped]) -> Subject:
    class Parallel(Column):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            apply: Any = function.apply
            result: torch.Tensor = apply(x, self.weight)
            return result

    def parallelize(module: Column, mesh: Any) -> nn.Module:
        made = Parallel(len(module.weight) // dist.get_world_size())
        made.weight.requires_grad_(module.weight.requires_grad)
        return made

    @al.subject.parallel(Column, parallelize, name=function.__name__)
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        shared = {"weight": [Shard(0)]}
        return dict(inputs=(2, 2), hidden=ranks, parameter_placements=shared, output_placements=[[Shard(1)]])

    return cases


# Ranks that share the batch


def linear() -> nn.Module:
    return nn.Linear(2, 1)


def reduced(module: nn.Module, group: Any = None, last: int | None = None) -> None:
    for parameter in list(module.parameters())[:last]:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=group)


def as_it_is(module: nn.Module, mesh: Any) -> None:
    pass


def in_data_parallel(module: nn.Module, mesh: Any) -> nn.Module:
    return DistributedDataParallel(module)


def never_synchronised(module: nn.Module, mesh: Any) -> nn.Module:
    made = DistributedDataParallel(module)
    made.require_backward_grad_sync = False  # what `no_sync` sets, never set back
    return made


def fully_sharded(module: Any, mesh: Any) -> None:
    fully_shard(module, mesh=mesh)


def fully_sharded_sums(module: Any, mesh: Any) -> None:
    fully_shard(module, mesh=mesh).set_gradient_divide_factor(1.0)


def halved(module: nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad /= dist.get_world_size()


def batches(draw: Any, ranks: int) -> dict[str, Any]:
    return dict(inputs=(draw(st.integers(1, 3)) * ranks, 2), frozen=0)


def sharing(parallelize: Any, how: Any, after_backward: Any = None, make: Any = linear) -> Subject:
    return al.subject.parallel(
        make, parallelize, data_parallel=how, after_backward=after_backward, name="shared_batch"
    )(batches)


def allreduced_in(dtype: torch.dtype) -> Any:
    """Sums up gradients as they come, in an element type of its own."""

    def parallelize(module: nn.Module, mesh: Any) -> None:
        for parameter in module.parameters():
            parameter.register_hook(lambda gradient: all_reduced(gradient.to(dtype)).to(gradient.dtype))

    return parallelize


def reduced_as_gradients_come(module: nn.Module, mesh: Any) -> None:
    for parameter in module.parameters():
        parameter.register_hook(all_reduced)


def reduced_as_it_stands(module: nn.Module, mesh: Any) -> None:
    """Sums up .grad, and with it what was summed up before."""
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(lambda each: dist.all_reduce(each.grad))


def adding_up(parallelize: Any) -> Subject:
    return al.subject.parallel(
        linear, parallelize, data_parallel="sum", accumulates=True, name="added_gradients"
    )(batches)


class Grid:
    """Ranks that share the batch along one mesh dimension and have copies along the other."""

    def __init__(self, dim: str) -> None:
        self.dim = dim

    def __call__(self, module: Any, mesh: Any) -> None:
        module.group = mesh.get_group(self.dim)

    def subject(self) -> Subject:
        @al.subject.parallel(
            linear, self, data_parallel={"dp": "sum"}, after_backward=self.reduced, name="grid"
        )
        def cases(draw: Any, ranks: int) -> dict[str, Any]:
            rows, columns = (*draw(al.strategies.meshes(ranks)), 1)[:2]
            return dict(mesh={"dp": rows, "tp": columns}, inputs=(2 * ranks, 2), frozen=0)

        return cases

    @staticmethod
    def reduced(module: Any) -> None:
        reduced(module, module.group)


class Late:
    """Waits for the sums of gradients when the next ones come: the optimiser has taken a step by then."""

    def __call__(self, module: Any) -> None:
        self.finish(module)
        module.works = [
            dist.all_reduce(parameter.grad, async_op=True)
            for parameter in module.parameters()
            if parameter.grad is not None
        ]

    def finish(self, module: Any) -> None:
        for work in getattr(module, "works", ()):
            work.wait()


def stepping(after_backward: Callable[[Any], None]) -> Subject:
    optimizer = partial(torch.optim.SGD, lr=0.5)
    return al.subject.parallel(
        linear,
        as_it_is,
        data_parallel="sum",
        after_backward=after_backward,
        optimizer=optimizer,
        steps=2,
        name="steps",
    )(batches)


# Sequences that ranks share


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))


def reduced_but_for_norm(module: Any) -> None:
    reduced(module[0])


class Centred(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


class CentredTogether(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        summed: Any = SummedInBothDirections.apply
        rows = torch.tensor(float(len(x)))
        return x - cast("torch.Tensor", summed(x.sum(0)) / all_reduced(rows))


class CentredByRowsOfOnce(CentredTogether):
    """Takes the number of rows of the first batch for that of any."""

    rows: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        summed: Any = SummedInBothDirections.apply
        if self.rows is None:
            self.rows = all_reduced(torch.tensor(float(len(x))))
        return x - cast("torch.Tensor", summed(x.sum(0)) / self.rows)


def centred_together(module: nn.Module, mesh: Any) -> nn.Module:
    return CentredTogether()


def centred_by_rows_of_once(module: nn.Module, mesh: Any) -> nn.Module:
    return CentredByRowsOfOnce()


# Rows of a table that ranks share


class Table(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.ones(rows, 2))

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.rows[index]


class SharedTable(Table):
    is_masked = True

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        local = index - dist.get_rank() * len(self.rows)
        is_here = (local >= 0) & (local < len(self.rows))
        found = self.rows[local.clamp(0, len(self.rows) - 1)]
        if self.is_masked:
            found = found * is_here[..., None]
        summed: Any = SummedUp.apply
        total: torch.Tensor = summed(found)
        return total


class UnmaskedTable(SharedTable):
    is_masked = False


def table(kind: type[SharedTable]) -> Subject:
    def parallelize(module: Table, mesh: Any) -> nn.Module:
        return kind(len(module.rows) // dist.get_world_size())

    def indices(x: Any) -> Any:
        return (x.long().remainder(2),)

    @al.subject.parallel(Table, parallelize, prepare=indices, name=kind.__name__)
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(3,), rows=2 * ranks, parameter_placements={"rows": [Shard(0)]})

    return cases


# Attention in a ring, without the softmax: each block of queries meets every block of keys


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ x.T) @ x


class Shifted(torch.autograd.Function):
    """The block of the rank before, whose gradient goes back there."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return _moved(x, 1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return _moved(gradient, -1)


def _moved(x: torch.Tensor, step: int) -> torch.Tensor:
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        return x.clone()
    got = torch.empty_like(x, memory_format=torch.contiguous_format)
    pair = [
        dist.P2POp(dist.isend, x.contiguous(), (rank + step) % size),
        dist.P2POp(dist.irecv, got, (rank - step) % size),
    ]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    return got


class RingAttention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        block, total = x, torch.zeros_like(x)
        shifted: Any = Shifted.apply
        for _ in range(dist.get_world_size()):
            total = total + (x @ block.T) @ self.values(x, block)
            block = shifted(block)
        return total

    def values(self, x: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
        return block


class StaleRingAttention(RingAttention):
    """Moves the keys on, and takes the values for those of the first block."""

    def values(self, x: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
        return x


def ring(kind: type[RingAttention]) -> Subject:
    return al.subject.parallel(
        Attention, lambda module, mesh: kind(), data_parallel="sum", name=kind.__name__
    )(batches)


# A recurrence along a sequence whose rows are cut, as of a state-space model: what came before is added afterwards


class Recurrence(nn.Module):
    """Each state is half of the one before and the row that comes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, states = torch.zeros_like(x[:1]).sum(0), [x[:0]]
        for row in x:
            state = state / 2 + row
            states.append(state[None])
        return torch.cat(states)


class RecurrenceAlongRanks(Recurrence):
    """The last state of a rank is handed on as often as there are ranks before the last one."""

    def hops(self) -> int:
        return dist.get_world_size() - 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = super().forward(x)
        last = own[-1] if len(x) else x.sum(0)
        before, shifted = torch.zeros_like(last), cast(Any, Shifted).apply
        for _ in range(self.hops()):
            handed_on = shifted(last + before * 0.5 ** len(x))
            before = torch.where(torch.tensor(dist.get_rank() > 0), handed_on, torch.zeros_like(handed_on))
        halves = 0.5 ** torch.arange(1, len(x) + 1, dtype=x.dtype)
        return own + halves[:, None] * before


class RecurrenceOfTwoRanks(RecurrenceAlongRanks):
    """Hands on once: what the ranks before the last one had does not come."""

    def hops(self) -> int:
        return min(1, super().hops())


def recurrence(kind: type[RecurrenceAlongRanks]) -> Subject:
    return al.subject.parallel(
        Recurrence, lambda module, mesh: kind(), data_parallel="sum", name=kind.__name__
    )(batches)


# A backward pass that ranks take part in only if they need it


class Summing(nn.Module):
    """Adds up what the ranks have, and hands on what each makes of the sum."""

    forward_mode = False

    def __init__(self, takes_part: bool) -> None:
        super().__init__()
        self.takes_part = takes_part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.takes_part and torch.is_grad_enabled():
            x = x if x.requires_grad else x.detach().requires_grad_()
        summed: Any = SummedInBothDirections.apply
        total: torch.Tensor = summed(x)
        return total


def summing(takes_part: bool) -> Subject:
    @al.subject.layer(lambda: Summing(takes_part), sequential=nn.Identity, process_group=True, name="summing")
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        copies = al.Space.of_dtensor((ranks,), [Replicate()], (2,)).tensors[0].layout
        return dict(
            domain=al.Space.of_dtensor((ranks,), [Partial()], (2,)),
            codomain=al.Space(copies, types=("replicated",)),
        )

    return cases


GRADIENTS, SEQUENTIAL = "gradients", "sequential"

RIGHT = {
    "gated block": (gated(ParallelGated), GRADIENTS),
    "data parallel": (sharing(in_data_parallel, "mean"), GRADIENTS),
    "fully sharded": (sharing(fully_sharded, "mean"), GRADIENTS),
    "reduced by hand": (sharing(as_it_is, "sum", reduced), GRADIENTS),
    "reduced along a mesh dimension": (Grid("dp").subject(), GRADIENTS),
    "steps": (stepping(reduced), "training"),
    "norm on a shared sequence": (sharing(as_it_is, "sum", reduced, normalised), GRADIENTS),
    "centred": (sharing(centred_together, "sum", make=Centred), GRADIENTS),
    "shared table": (table(SharedTable), GRADIENTS),
    "ring attention": (ring(RingAttention), GRADIENTS),
    "recurrence": (recurrence(RecurrenceAlongRanks), GRADIENTS),
    "sum that all take part in": (summing(True), GRADIENTS),
    "two outputs": (branching(CopiedTwice), GRADIENTS),
    "overlapped": (column(Overlapped), GRADIENTS),
    "reduced in its own type": (sharing(allreduced_in(torch.float64), "sum"), GRADIENTS),
    "reduced as gradients come": (adding_up(reduced_as_gradients_come), GRADIENTS),
}

WRONG = (
    PlantedBug("all-reduce missing for a replicated parameter", gated(WithBareGate), GRADIENTS),
    PlantedBug("all-reduce missing for the gradient of the input", gated(WithBareInput), GRADIENTS),
    PlantedBug("gradient of a sum added up again", gated(SummingGradients), GRADIENTS),
    PlantedBug("bias added by every rank", gated(WithBiasOfEveryRank), SEQUENTIAL),
    PlantedBug("gradient averaged twice", sharing(in_data_parallel, "mean", halved), GRADIENTS),
    PlantedBug("no_sync left on", sharing(never_synchronised, "mean"), GRADIENTS),
    PlantedBug("summed where the mean is meant", sharing(fully_sharded_sums, "mean"), GRADIENTS),
    PlantedBug("last parameter not reduced", sharing(as_it_is, "sum", partial(reduced, last=-1)), GRADIENTS),
    PlantedBug("reduced over the other mesh dimension", Grid("tp").subject(), GRADIENTS),
    PlantedBug("step before the gradients are reduced", stepping(Late()), "training", 1),
    PlantedBug(
        "sequence-parallel norm weights not reduced",
        sharing(as_it_is, "sum", reduced_but_for_norm, normalised),
        GRADIENTS,
    ),
    PlantedBug("statistics of the own part of the batch", sharing(as_it_is, "sum", make=Centred), SEQUENTIAL),
    PlantedBug("table looked up without a mask", table(UnmaskedTable), SEQUENTIAL),
    PlantedBug("ring attention with stale blocks", ring(StaleRingAttention), SEQUENTIAL),
    PlantedBug("state of the rank before alone", recurrence(RecurrenceOfTwoRanks), SEQUENTIAL, 3),
)

SELDOM = (
    PlantedBug("backward skipped by a rank that needs no gradient", summing(False), GRADIENTS),
    PlantedBug(
        "reduction left out where the other output is unused", branching(CopiedTwiceForOne), GRADIENTS
    ),
    PlantedBug("sum not waited for where the weight is frozen", column(OverlappedWithWeight), GRADIENTS, 1),
    PlantedBug("sum left out where the gradient is zero", column(OverlappedUnlessZero), GRADIENTS),
    PlantedBug("reduced in single precision", sharing(allreduced_in(torch.float32), "sum"), GRADIENTS, 1),
    PlantedBug("reduced once more with the next gradient", adding_up(reduced_as_it_stands), GRADIENTS),
    PlantedBug(
        "number of rows kept from the first batch",
        sharing(centred_by_rows_of_once, "sum", make=Centred),
        GRADIENTS,
        1,
    ),
    PlantedBug(
        "sum left out once a validation has come before", gated(WithoutSumsAfterAValidation), GRADIENTS
    ),
)
"""Bugs that show in few cases: with some values, frozen parameters, outputs or tokens that are left out of the loss, or passes before."""
