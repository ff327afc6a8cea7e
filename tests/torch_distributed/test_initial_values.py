"""Values that `parallelize` finds become shards of parameters, and copies of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard

import adjointlab as al
from adjointlab.checks.layers.sensitivity import measured
from adjointlab.checks.verdict import Status, Verdict
from adjointlab.core.declaration import SubjectError
from adjointlab.core.layout import Layout
from adjointlab.core.operator import ParameterMisplaced
from adjointlab.core.partition import Partition
from adjointlab.core.space import Space, Tensor
from adjointlab.engine.initial_values import give_initial_values, has_its_parts
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget

pytestmark = pytest.mark.mpi_skip


class Gated(nn.Module):
    """Two maps that a fused implementation keeps in one matrix."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(2, width, bias=False)
        self.up = nn.Linear(2, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gate(x) + 2 * self.up(x)


class LocallyGated(Gated):
    """The rows of this rank, from the weights of the whole module."""

    forward_mode = False

    def __init__(self, gate: torch.Tensor, up: torch.Tensor, like: Gated) -> None:
        super().__init__(1)
        for name, rows in (("gate", gate), ("up", up)):
            trained = like.get_parameter(f"{name}.weight").requires_grad
            self.get_submodule(name).weight = nn.Parameter(rows.detach().clone(), trained)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.gate.weight.T + 2 * (x @ self.up.weight.T)


class FourBits(torch.Tensor):
    """A tensor that wraps another and takes no values, as some quantised ones do."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func is torch.ops.aten.detach.default else NotImplemented


def test_a_parameter_that_takes_no_values_is_refused_with_what_to_hold_instead() -> None:
    module = nn.Module()
    module.weight = nn.Parameter(FourBits(torch.ones(2, 3)), requires_grad=False)
    with pytest.raises(
        SubjectError,
        match=r"^the parameter weight, a FourBits, cannot take .* a buffer with persistent=False",
    ):
        give_initial_values(module)


def own(whole: torch.Tensor) -> torch.Tensor:
    return whole.chunk(dist.get_world_size())[dist.get_rank()]


def each_apart(module: Gated, mesh: Any) -> nn.Module:
    return LocallyGated(own(module.gate.weight), own(module.up.weight), module)


def as_one_block(module: Gated, mesh: Any) -> nn.Module:
    gate, up = own(torch.cat([module.gate.weight, module.up.weight])).chunk(2)
    return LocallyGated(gate, up, module)


def verdict_of(
    world: al.SimulatedWorld, check: str, make: Callable[..., nn.Module], parallelize: Any, **case: Any
) -> Verdict:
    options = {name: case.pop(name) for name in ("data_parallel", "optimizer", "steps") if name in case}

    @al.subject.parallel(make, parallelize, **options)
    def subject(draw: Any, ranks: int) -> dict[str, Any]:
        return case

    return investigate(world, subject, check, Budget(3, ranks=2, seed=1)).verdict


def gated(world: al.SimulatedWorld, parallelize: Any) -> Verdict:
    halves = {"gate.weight": [Shard(0)], "up.weight": [Shard(0)]}
    return verdict_of(
        world, "sequential", lambda: Gated(8), parallelize, inputs=(3, 2), parameter_placements=halves,
        output_placements=[[Shard(1)]],
    )  # fmt: skip


def test_a_weight_that_is_cut_as_one_block_with_another_is_found_and_not_one_that_is_cut_apart() -> None:
    assert gated(al.SimulatedWorld(2), each_apart).is_coherent
    verdict = gated(al.SimulatedWorld(2), as_one_block)
    assert verdict.status is Status.INCOHERENT
    assert verdict.headline == "a rank has elements of a parameter that are not its part"
    assert "but values of other elements of the sequential module" in str(verdict.lines)


def master_weights(module: nn.Module, mesh: Any) -> None:
    for held in module.parameters():
        held.master = held.detach().clone()  # type: ignore[attr-defined]


class MasterSGD(torch.optim.Optimizer):
    def __init__(self, held: Any) -> None:
        super().__init__(held, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for held in self.param_groups[0]["params"]:
            held.master -= 0.25 * held.grad
            held.copy_(held.master)


class SequentialSGD(torch.optim.SGD):
    def __init__(self, held: Any) -> None:
        super().__init__(held, 0.25)


def test_master_weights_that_are_cloned_when_the_module_is_wrapped_are_right() -> None:
    def optimizer(held: list[Any]) -> torch.optim.Optimizer:
        return (MasterSGD if hasattr(held[0], "master") else SequentialSGD)(held)

    verdict = verdict_of(
        al.SimulatedWorld(2), "training", lambda: nn.Linear(2, 2), master_weights, inputs=(4, 2),
        optimizer=optimizer, steps=2,
    )  # fmt: skip
    assert verdict.is_coherent, verdict


class Packed(nn.Module):
    """Keeps the transpose of a frozen weight."""

    forward_mode = False

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach().clone(), requires_grad=False)
        self.packed = self.weight.T.contiguous()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.packed


def frozen_linear() -> nn.Linear:
    linear = nn.Linear(2, 3, bias=False)
    linear.weight.requires_grad_(False)
    return linear


@pytest.mark.parametrize("check", ["sequential", "gradients"])
def test_what_is_derived_from_a_frozen_weight_stays_right(check: str) -> None:
    verdict = verdict_of(
        al.SimulatedWorld(2), check, frozen_linear, lambda module, mesh: Packed(module), inputs=(4, 2)
    )
    assert verdict.is_coherent, verdict


def space_of(ranks: int) -> Space:
    return Space(Tensor(Layout((4,), Partition((ranks,))), name="weight"))


class Held(nn.Module):
    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(values, dtype=torch.float64))


WHOLE = {"weight": np.array([1.0, 2.0, 3.0, -1.0])}


def test_a_frozen_parameter_that_a_call_changes_is_that_of_the_sequential_module_in_the_next_call() -> None:
    class Columns(nn.Module):
        """The columns of this rank of a table whose rows are made no longer than `largest` when they are looked up."""

        def __init__(self, table: nn.Embedding, largest: float) -> None:
            super().__init__()
            self.weight, self.largest = nn.Parameter(own(table.weight.T).T.clone(), False), largest

        def forward(self, indices: torch.Tensor) -> torch.Tensor:
            rows = indices.unique()
            squares = self.weight.data[rows].square().sum(1, keepdim=True)
            dist.all_reduce(squares)
            norms = squares.sqrt()
            # torch renormalises by this formula.
            factors = torch.where(norms > self.largest, self.largest / (norms + 1e-7), 1)
            self.weight.data[rows] *= factors
            return self.weight[indices]

    def columns(largest: float) -> None:
        def cases(draw: Any, ranks: int) -> dict[str, Any]:
            cut = {"parameter_placements": {"weight": [Shard(1)]}, "output_placements": [Shard(1)]}
            return dict(inputs=(8,), input_dtypes=["int64"], width=2 * ranks, frozen=["weight"], **cut)

        al.check_parallel(
            lambda width: nn.Embedding(6, width, max_norm=1.0),
            lambda module, mesh: Columns(module, largest),
            cases,
            prepare=lambda indices: indices * 7 % 6,
        )

    columns(1.0)
    with pytest.raises(AssertionError, match="are not the sequential ones"):
        columns(0.5)


def test_a_part_is_compared_with_its_place_and_fresh_values_are_none_of_the_sequential_ones() -> None:
    assert has_its_parts(Held([3.0, -1.0]), space_of(2), 1, WHOLE, {})
    for fresh in ([0.25, 0.5], [0.0, 0.0], [1.0, 1.0], [1.0, 2.0]):
        assert not has_its_parts(Held(fresh), space_of(2), 1, WHOLE, {})


def test_three_values_of_other_elements_are_a_misplaced_parameter() -> None:
    space = space_of(1)
    with pytest.raises(
        ParameterMisplaced, match=r"its local element \[0\] is 2 as parallelize leaves it, and should be 1"
    ):
        has_its_parts(Held([2.0, 1.0, 3.0, -1.0]), space, 0, WHOLE, {})


def test_parameters_without_memory_get_no_values() -> None:
    on_meta, lazy = nn.Linear(2, 2, device="meta"), nn.LazyLinear(2)
    assert [give_initial_values(each) for each in (on_meta, lazy)] == [None] * 2


def test_parameters_of_integers_keep_their_values() -> None:
    counts = nn.Linear(2, 2)
    counts.register_parameter("counts", nn.Parameter(torch.tensor([7, 9]), requires_grad=False))
    given = give_initial_values(counts)
    assert given is not None
    assert given["counts"].tolist() == counts.get_parameter("counts").tolist() == [7, 9]
    assert set(given) == {"weight", "bias", "counts"}


def test_the_values_are_multiples_of_a_power_of_two_other_than_zero_and_the_same_on_every_rank() -> None:
    modules = [nn.Linear(3, 2), nn.Linear(3, 2)]
    one, other = (give_initial_values(module) for module in modules)
    assert one is not None
    assert other is not None
    for name, values in one.items():
        assert np.array_equal(values, other[name])
        unit = {"weight": 0.25, "bias": 0.5}[name]
        assert set(np.abs(values / unit).ravel()) <= {1, 2, 3, 4}
        assert np.array_equal(values, modules[0].get_parameter(name).detach().numpy())


@pytest.mark.parametrize("width", [1, 10, 100, 1000])
def test_outputs_are_about_as_large_as_inputs_whatever_the_width(width: int) -> None:
    linear = nn.Linear(width, 200, bias=False)
    give_initial_values(linear)
    torch.manual_seed(0)
    outputs = linear(torch.randn(200, width)).detach()
    assert 0.6 < float(outputs.std()) < 1.6


class Block(nn.Module):
    """One of a transformer, of a single head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.norm(x)
        x = x + nn.functional.scaled_dot_product_attention(self.q(seen), self.k(seen), self.v(seen))
        return x + self.down(torch.tanh(self.up(x)))  # type: ignore[no-any-return]


def transformer() -> nn.Module:
    return nn.Sequential(nn.Embedding(10, 8), *(Block(8) for _ in range(3)))


def perceptron() -> nn.Module:
    """Sums that are zero, of which there are some, lie at the kink of ReLU."""
    return nn.Sequential(nn.Embedding(10, 4), *(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(4)))


@pytest.mark.parametrize(
    ("make", "optimizer"),
    [(transformer, torch.optim.AdamW), (transformer, torch.optim.SGD), (perceptron, torch.optim.SGD)],
)
def test_steps_in_a_deep_network_are_compared_closely(
    make: Callable[[], nn.Module], optimizer: Callable[..., torch.optim.Optimizer]
) -> None:
    def run() -> dict[str, tuple[Any, ...]]:
        torch.manual_seed(0)
        module = make().double()
        give_initial_values(module)
        steps = optimizer(module.parameters(), lr=0.01)
        for _ in range(2):
            steps.zero_grad()
            outputs = module(torch.arange(30).reshape(3, 10) % 10)
            outputs.backward(torch.randint(-4, 5, outputs.shape).double())
            steps.step()
        return {"parameters": tuple(each.detach().numpy().copy() for each in module.parameters())}

    results, allowances = measured(run)
    for array, allowed in zip(results["parameters"], allowances.most["parameters"], strict=True):
        assert allowed < 1e-4 * np.abs(array).max()


class Quantised(nn.Module):
    """A layer whose weight is of integers, and is never trained."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Parameter(torch.arange(-6, 6, dtype=torch.int8).reshape(4, 3), requires_grad=False)
        self.b = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.b(x @ self.q.to(x.dtype).T)


@pytest.mark.filterwarnings("ignore:.*no rank communicated with another")
def test_parameters_of_integers_hide_no_misplaced_ones() -> None:
    inputs = torch.zeros(3, 3)
    al.check_parallel(Quantised, lambda module, mesh: None, inputs, cases=4)

    def reversed_columns(module: Any, mesh: Any) -> None:
        module.b.weight = nn.Parameter(module.b.weight.detach().flip(1))

    with pytest.raises(AssertionError, match="a rank has elements of a parameter that are not its part"):
        al.check_parallel(Quantised, reversed_columns, inputs, cases=4)


def test_parameters_of_integers_are_compared_as_they_are_made() -> None:
    def changed(module: Any, mesh: Any) -> None:
        module.q.data += 1

    with pytest.raises(AssertionError, match="outputs are not the sequential ones"):
        al.check_parallel(Quantised, changed, torch.zeros(3, 3), cases=4)
