"""Multi-head attention: torch's own values and parameters, whatever is cut, and what is refused is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.layers.multihead_attention import MultiheadAttention
from adjointlab.layers.separate_projections import SeparateProjections, separated
from adjointlab.layers.windows import local_window
from adjointlab.worlds.world import World

from .twin_assertions import error_of_every_rank, reversed_line, run_on_ranks, sines

DOUBLE = torch.float64


@pytest.mark.parametrize(("dim", "algorithm"), [(0, "ring"), (1, "ring"), (2, "ring"), (2, "all-to-all")])
@pytest.mark.parametrize("is_causal", [False, True])
def test_values_and_gradients_are_those_of_torchs_module(
    adjointlab_world: World, dim: int, algorithm: str, is_causal: bool
) -> None:
    ranks, x = min(adjointlab_world.ranks, 3), 2 * sines(5, 2, 6)
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1) if is_causal else None

    def body(comm: Any) -> None:
        torch.manual_seed(2)
        twin = nn.MultiheadAttention(6, 3, dtype=DOUBLE)
        nn.init.uniform_(twin.in_proj_bias)
        layer = MultiheadAttention(comm, reversed_line(ranks, dim, 3), (5, 2, 6), twin, algorithm=algorithm)
        whole = x.clone().requires_grad_()
        want, want_weights = twin(whole, whole, whole, attn_mask=mask)
        (layout,) = {tensor.layout for tensor in (*layer.domain.tensors, *layer.codomain.tensors)}
        local = local_window(x, layout, comm.Get_rank()).requires_grad_()
        y, weights = layer(local, local, local, need_weights=dim < 2, is_causal=is_causal)
        torch.testing.assert_close(y, local_window(want, layout, comm.Get_rank()))
        if dim < 2:
            over = layer.results().tensors[1].layout
            torch.testing.assert_close(weights, local_window(want_weights, over, comm.Get_rank()))
        want.pow(2).sum().backward()
        y.pow(2).sum().backward()
        torch.testing.assert_close(local.grad, local_window(whole.grad, layout, comm.Get_rank()))
        for tensor in layer.parameter_space.tensors:
            name = layer.sequential_name(tensor.name)
            gradient = twin.get_parameter(name).grad
            if name.startswith("in_proj"):
                gradient = gradient.chunk(3)["qkv".index(tensor.name[0])]
            own = layer.get_parameter(tensor.name).grad.detach()
            torch.testing.assert_close(own, local_window(gradient, tensor.layout, comm.Get_rank()))

    run_on_ranks(adjointlab_world, ranks, body)


def test_a_layer_takes_causal_calls_and_others_in_turn(adjointlab_world: World) -> None:
    ranks, x = min(adjointlab_world.ranks, 2), sines(5, 2, 6)

    def body(comm: Any) -> None:
        torch.manual_seed(2)
        twin = nn.MultiheadAttention(6, 3, dtype=DOUBLE)
        layer = MultiheadAttention(comm, reversed_line(ranks, 2, 3), (5, 2, 6), twin)
        (layout,) = {tensor.layout for tensor in (*layer.domain.tensors, *layer.codomain.tensors)}
        local = local_window(x, layout, comm.Get_rank())
        for is_causal in (True, False):
            mask = torch.ones(5, 5, dtype=torch.bool).triu(1) if is_causal else None
            want = local_window(twin(x, x, x, attn_mask=mask)[0], layout, comm.Get_rank())
            y, _ = layer(local, local, local, need_weights=False, is_causal=is_causal)
            torch.testing.assert_close(y, want)

    run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize("named", [{}, {"batch_first": True, "bias": False}, {"kdim": 2, "vdim": 5}])
def test_the_sequential_twin_is_torchs_module(named: dict[str, Any]) -> None:
    torch.manual_seed(2)
    module = nn.MultiheadAttention(6, 3, dtype=DOUBLE, **named)
    for parameter in module.parameters():
        nn.init.uniform_(parameter)
    q, k, v = (sines(4, 4, features) for features in (6, module.kdim, module.vdim))
    mask = torch.ones(4, 4, dtype=torch.bool).triu(1)
    for average in (True, False):
        want = module(q, k, v, attn_mask=mask, average_attn_weights=average)
        got = SeparateProjections(module)(q, k, v, average_attn_weights=average, is_causal=True)
        torch.testing.assert_close(got, want)


def test_a_joint_projection_that_does_not_split_into_three_is_refused() -> None:
    state = nn.MultiheadAttention(4, 2).state_dict()
    with pytest.raises(ValueError, match="state: in_proj_weight has 11 rows, but needs"):
        separated(state | {"in_proj_weight": state["in_proj_weight"][:11]})


@pytest.mark.parametrize("named", [{}, {"bias": False}, {"kdim": 2, "vdim": 5}])
def test_the_layer_goes_from_and_to_its_sequential_module(
    adjointlab_world: World, named: dict[str, Any]
) -> None:
    ranks = min(adjointlab_world.ranks, 3)

    def body(comm: Any) -> None:
        torch.manual_seed(7)
        twin = nn.MultiheadAttention(4, 2, **named).eval()
        frozen = "in_proj_weight" if "kdim" not in named else "k_proj_weight"
        twin.get_parameter(frozen).requires_grad_(False)
        layer = MultiheadAttention.from_sequential(twin, comm, reversed_line(ranks, 1, 3), (5, 2, 4))
        state = twin.state_dict()
        for _ in range(2):
            back = layer.to_sequential()
            assert (repr(back), back.training) == (repr(twin), False)
            assert {name: value.tolist() for name, value in back.state_dict().items()} == {
                name: value.tolist() for name, value in state.items()
            }
            assert {n for n, p in back.named_parameters() if not p.requires_grad} == {frozen}
            layer.load_sequential(back)
        torch.manual_seed(7)
        layer.reset_parameters()
        assert all(torch.equal(value, state[name]) for name, value in layer.sequential_state_dict().items())

    run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize(
    ("made", "called", "message"),
    [
        ({"add_bias_kv": True}, {}, "add_bias_kv: True is not supported"),
        ({"add_zero_attn": True}, {}, "add_zero_attn: True is not supported"),
        ({"algorithm": "star"}, {}, "algorithm: 'star' is not one of"),
        ({"keys": 0}, {}, "keys: there is none"),
        ({}, {}, "need_weights: no worker has the weights of all keys"),
        ({}, {"attn_mask": torch.zeros(3, 3)}, "attn_mask: no mask is supported but the causal one"),
        ({}, {"key_padding_mask": torch.zeros(2, 3)}, "key_padding_mask: no mask is supported"),
        ({"dropout": 0.5}, {"need_weights": False}, "dropout: 0.5 of the weights is not supported in training"),
        ({}, {"need_weights": False, "value": torch.zeros(3, 4, 4)}, "value: shape (3, 4, 4) on rank 0"),
    ],
)  # fmt: skip
def test_what_it_cannot_do_is_refused_by_name_on_every_rank(
    adjointlab_world: World, made: dict[str, Any], called: dict[str, Any], message: str
) -> None:
    if adjointlab_world.ranks < 2:
        pytest.skip("needs 2 ranks")

    def body(comm: Any) -> None:
        layer = MultiheadAttention(comm, Partition((1, 1, 2)), (4, 2, 4), 4, 2, **made)
        x = torch.zeros(layer.domain.tensors[0].layout.local_shape(comm.Get_rank()))
        layer(**{"query": x, "key": x, "value": x, **called})

    assert error_of_every_rank(adjointlab_world, 2, body).startswith(message)


def test_a_mask_on_one_rank_is_the_same_error_on_every_rank(adjointlab_world: World) -> None:
    """A rank without queries has no reason to pass one."""
    if adjointlab_world.ranks < 2:
        pytest.skip("needs 2 ranks")

    def body(comm: Any) -> None:
        layer = MultiheadAttention(comm, Partition((1, 2, 1)), (4, 2, 4), 4, 2)
        x = torch.zeros(layer.domain.tensors[0].layout.local_shape(comm.Get_rank()))
        layer(x, x, x, attn_mask=torch.zeros(4, 4) if comm.Get_rank() == 0 else None)

    assert error_of_every_rank(adjointlab_world, 2, body).startswith("attn_mask: no mask is supported")


@pytest.mark.parametrize("average", [True, False])
def test_under_autocast_all_results_are_of_the_layers_element_type(
    adjointlab_world: World, average: bool
) -> None:
    ranks = min(adjointlab_world.ranks, 2)

    def body(comm: Any) -> None:
        layer = MultiheadAttention(comm, Partition((1, ranks, 1)), (4, 2, 4), 4, 2)
        x = torch.ones(layer.domain.tensors[0].layout.local_shape(comm.Get_rank()))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            results = layer(x, x, x, average_attn_weights=average)
        wanted = [tensor.dtype for tensor in layer.results(average_attn_weights=average).tensors]
        assert [str(result.dtype) for result in results] == [f"torch.{dtype}" for dtype in wanted]

    run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize("batch_first", [False, True])
def test_the_output_partition_is_what_a_layer_without_heads_is_made_over(
    adjointlab_world: World, batch_first: bool
) -> None:
    if adjointlab_world.ranks < 4:
        pytest.skip("needs 4 ranks")

    def body(comm: Any) -> None:
        shape = (4, 6, 8) if batch_first else (6, 4, 8)
        layer = MultiheadAttention(comm, (2, 1, 2), shape, 8, 2, batch_first=batch_first)
        after = Layout(shape, layer.output_partition)
        assert layer.output_partition.shape == (2, 2, 1)
        assert after.partition.ranks == ((0, 1, 2, 3) if batch_first else (0, 2, 1, 3))
        assert all(after.window(r) == layer.codomain.tensors[0].layout.window(r) for r in range(4))

    run_on_ranks(adjointlab_world, 4, body)


@pytest.mark.parametrize("name", ["is_causal", "need_weights", "average_attn_weights"])
def test_an_argument_of_a_call_that_differs_by_rank_is_the_same_error_on_every_rank(
    adjointlab_world: World, name: str
) -> None:
    ranks = min(adjointlab_world.ranks, 3)
    if ranks < 2:
        pytest.skip("needs 2 ranks")

    def body(comm: Any) -> None:
        # The last rank is idle: it too gives what the others give.
        layer = MultiheadAttention(comm, Partition((1, ranks - 1, 1)), (4, 2, 4), 4, 2)
        x = torch.ones(layer.domain.tensors[0].layout.local_shape(comm.Get_rank()))
        layer(x, x, x, **{name: comm.Get_rank() == ranks - 1})

    assert error_of_every_rank(adjointlab_world, ranks, body) == (
        f"{name}: differs by rank: False on rank 0, True on rank {ranks - 1}; every rank gives the same"
    )


def test_an_argument_of_a_call_that_nobody_looks_at_may_differ_by_rank(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 2)

    def body(comm: Any) -> None:
        layer = MultiheadAttention(comm, Partition((1, ranks, 1)), (4, 2, 4), 4, 2)
        x = torch.ones(layer.domain.tensors[0].layout.local_shape(comm.Get_rank()))
        layer(x, x, x, need_weights=False, average_attn_weights=comm.Get_rank() == 0)

    run_on_ranks(adjointlab_world, ranks, body)
