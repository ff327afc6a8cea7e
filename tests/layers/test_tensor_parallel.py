"""Column- and row-parallel linear layers: torch's numbers for the pair of them, whatever the cut, and Megatron's refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from adjointlab.core.partition import Partition
from adjointlab.layers.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from adjointlab.layers.windows import local_window
from adjointlab.worlds.world import World

from .twin_assertions import assert_matches_twin, error_of_every_rank, run_on_ranks, sines

DOUBLE = torch.float64


def line(ranks: int) -> Partition:
    """The last rank first."""
    return Partition((ranks,), range(ranks - 1, -1, -1))


class Pair(nn.Sequential):
    """A row-parallel layer after a column-parallel one, the hidden features cut unevenly where there are several workers."""

    def __init__(self, comm: Any, ranks: int, twin: nn.Sequential, sequence_parallel: bool) -> None:
        over, cut = line(ranks), [0, *([1] * (ranks - 1)), 7]
        options = {"sequence_parallel": sequence_parallel, "cut": cut}
        first = ColumnParallelLinear(comm, over, (5, 2, 3), twin[0], **options)
        second = RowParallelLinear(comm, over, (5, 2, 7), twin[2], **options)
        super().__init__(first, nn.Tanh(), second)
        self.domain, self.codomain = first.domain, second.codomain


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_the_pair_is_the_sequential_network(adjointlab_world: World, sequence_parallel: bool) -> None:
    ranks, x = min(adjointlab_world.ranks, 3), sines(5, 2, 3)

    def body(comm: Any) -> None:
        torch.manual_seed(2)
        twin = nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 4)).double()
        pair = Pair(comm, ranks, twin, sequence_parallel)
        assert_matches_twin(comm, pair, twin, x, relative=1e-13)
        for layer, sequential in ((pair[0], twin[0]), (pair[2], twin[2])):
            assert isinstance(layer, ColumnParallelLinear | RowParallelLinear)
            for tensor in layer.parameter_space.tensors:
                local, whole = layer.get_parameter(tensor.name), sequential.get_parameter(tensor.name)
                assert local.grad is not None
                assert whole.grad is not None
                want = local_window(whole.grad, tensor.layout, comm.Get_rank())
                torch.testing.assert_close(local.grad.detach(), want)
            state, back = sequential.state_dict(), layer.to_sequential()
            assert repr(back) == repr(sequential)
            assert all(torch.equal(value, state[name]) for name, value in back.state_dict().items())

    run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize(("bias", "sequence_parallel"), [(True, False), (True, True), (False, False)])
def test_a_bias_that_is_returned_can_be_added_later(
    adjointlab_world: World, bias: bool, sequence_parallel: bool
) -> None:
    ranks, x = min(adjointlab_world.ranks, 3), sines(4, 5)

    def body(comm: Any) -> None:
        torch.manual_seed(2)
        twin = nn.Linear(5, 3, bias, dtype=DOUBLE)
        layer = RowParallelLinear(
            comm, line(ranks), (4, 5), twin, skip_bias_add=True, sequence_parallel=sequence_parallel
        )
        local = local_window(x, layer.domain.tensors[0].layout, comm.Get_rank())
        y, beside = layer(local)
        layout = layer.codomain.tensors[0].layout
        want = local_window(functional.linear(x, twin.weight).detach(), layout, comm.Get_rank())
        torch.testing.assert_close(y.detach(), want)
        assert (beside is None) is not bias
        if bias:
            (y + beside).sum().backward()
            gradient = layer.bias.grad
            # Once for each of the rows, however many workers have added it.
            assert comm.Get_rank() != ranks - 1 or torch.equal(gradient, torch.full_like(gradient, 4.0))

    run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize(
    ("kind", "named", "message"),
    [
        (ColumnParallelLinear, {"gather_output": True, "sequence_parallel": True}, "gather_output: not together"),
        (RowParallelLinear, {"input_is_parallel": False, "sequence_parallel": True}, "input_is_parallel: to enable"),
        (ColumnParallelLinear, {"cut": (0, 1)}, "cut: (0, 1) do not cover dimension 1"),
        (RowParallelLinear, {"input_shape": (2, 4)}, "input_shape: (2, 4) does not end in in_features = 5"),
        (RowParallelLinear, {"input_shape": (5,), "sequence_parallel": True}, "sequence_parallel: an input (5,) has no"),
        (ColumnParallelLinear, {"partition": Partition((1, 1))}, "partition: of order 2"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_the_same_error_on_every_rank(
    adjointlab_world: World, kind: Any, named: dict[str, Any], message: str
) -> None:
    ranks = min(adjointlab_world.ranks, 2)
    given = {"partition": line(ranks), "input_shape": (2, 5), **named}
    told = error_of_every_rank(
        adjointlab_world,
        ranks,
        lambda comm: kind(
            comm, given["partition"], given["input_shape"], 5, 3,
            **{name: value for name, value in given.items() if name not in ("partition", "input_shape")},
        ),
    )  # fmt: skip
    assert told.startswith(message)
