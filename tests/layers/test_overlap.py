"""Convolutions that overlap with their exchange: equal results and messages, and an interior that needs no halo."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.layers.convolution import Conv1d, Conv2d
from adjointlab.layers.output_parts import parts_of_outputs
from adjointlab.layers.windows import local_window
from adjointlab.primitives.halo_exchange import OverlappedHaloExchange
from adjointlab.worlds.world import World

from .twin_assertions import assert_matches_twin, integer_cotangent, run_on_ranks

DOUBLE = torch.float64
SHAPE = (2, 2, 9, 8)


@given(st.data())
def test_every_output_is_in_one_part_and_the_interior_reads_own_cells_alone(data: st.DataObject) -> None:
    dims = data.draw(st.integers(1, 3))
    sizes = [[data.draw(st.integers(least, 4)) for _ in range(dims)] for least in (1, 1, 1)]
    outputs, reach, stride = sizes
    lengths = [(n - 1) * s + r for n, s, r in zip(outputs, stride, reach, strict=True)]
    own = [(data.draw(st.integers(0, length)), data.draw(st.integers(0, length))) for length in lengths]
    interior, rim = parts_of_outputs(outputs, own, reach, stride)
    met = Counter(
        index
        for part in (*rim, *([] if interior is None else [interior]))
        for index in product(*(range(each.start, each.stop) for each in part.outputs))
    )
    assert met == Counter(product(*map(range, outputs)))
    if interior is not None:
        assert all(
            a <= cells.start and cells.stop <= b for cells, (a, b) in zip(interior.inputs, own, strict=True)
        )
    for part in rim:
        for cells, values, s, r in zip(part.inputs, part.outputs, stride, reach, strict=True):
            assert (cells.start, cells.stop) == (values.start * s, (values.stop - 1) * s + r)


def both(comm: Any, sides: tuple[int, int], **named: Any) -> tuple[Conv2d, Conv2d, nn.Module]:
    """A convolution without overlap, one with it, and their twin, with small integers as parameters."""
    twin = nn.Conv2d(2, 3, 3, padding=1, dtype=DOUBLE, **named)
    for parameter in twin.parameters():
        parameter.data = integer_cotangent(parameter)
    over = Partition((1, 1, 1, *sides))
    return *(Conv2d(comm, over, SHAPE, twin, overlap=overlap) for overlap in (False, True)), twin  # type: ignore[return-value]


@pytest.mark.parametrize(
    "named", [{}, {"padding_mode": "circular"}, {"stride": 2, "dilation": 2, "bias": False}]
)
def test_results_are_equal_with_overlap_and_without(adjointlab_world: World, named: dict[str, Any]) -> None:
    if adjointlab_world.ranks < 4:
        pytest.skip("needs 4 ranks")
    whole = torch.arange(2 * 2 * 9 * 8, dtype=DOUBLE).reshape(SHAPE) % 7 - 3

    def body(comm: Any) -> None:
        results = []
        *layers, twin = both(comm, (2, 2), **named)
        assert layers[1].overlapped is not None
        # Else there are too few cells.
        assert named.get("stride") or layers[1].overlapped.interior is not None
        for layer in layers:
            local = local_window(whole, layer.domain.tensors[0].layout, comm.Get_rank())
            with torch.inference_mode():  # a first call that leaves nothing behind
                layer(local)
            x = local.clone().requires_grad_()
            y = checkpoint(layer, x, use_reentrant=False)
            y.backward(integer_cotangent(y))
            results.append([y.detach(), x.grad, *(p.grad.detach() for p in layer.parameters())])
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
        layers[1].zero_grad()
        assert_matches_twin(comm, layers[1], twin, whole)

    run_on_ranks(adjointlab_world, 4, body)


def test_under_autocast_one_rank_may_leave_the_overlap_out(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 2)

    def body(comm: Any) -> None:
        _, layer, twin = both(comm, (ranks, 1))
        x = local_window(torch.ones(SHAPE, dtype=DOUBLE), layer.domain.tensors[0].layout, comm.Get_rank())
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=comm.Get_rank() == 0):
            y = layer(x.requires_grad_())
        want = local_window(
            twin(torch.ones(SHAPE, dtype=DOUBLE)), layer.codomain.tensors[0].layout, comm.Get_rank()
        )
        assert torch.equal(y, want)
        y.sum().backward()

    run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("wanted", ["weight", "bias", "x"])
def test_a_gradient_in_a_part_of_the_leaves_is_taken_where_some_rank_has_no_outputs(
    adjointlab_world: World, wanted: str, overlap: bool
) -> None:
    """Only ranks with outputs overlap, and torch leaves out what does not lead to a leaf; a second derivative too."""
    ranks, shape = min(adjointlab_world.ranks, 3), (1, 2, 4)
    twin = nn.Conv1d(2, 3, 3, dtype=DOUBLE)
    whole = torch.arange(8, dtype=DOUBLE).reshape(shape)

    def body(comm: Any) -> None:
        layer = Conv1d(comm, Partition((1, 1, 1, ranks)), shape, twin, overlap=overlap)
        local = local_window(whole, layer.domain.tensors[0].layout, comm.Get_rank())
        first: dict[str, Any] = {"weight": layer.weight, "bias": layer.bias, "x": local.requires_grad_()}
        leaf = first[wanted]
        (gradient,) = torch.autograd.grad((layer(local) ** 2).sum(), leaf, create_graph=True)
        torch.autograd.grad((gradient**2).sum(), leaf)
        y = layer(local if wanted == "x" else local.detach())
        (again,) = torch.autograd.grad((y**2).sum(), leaf)
        assert torch.equal(again, gradient)

    run_on_ranks(adjointlab_world, ranks, body)


def test_an_error_while_messages_travel_leaves_none_of_them_behind(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 3)
    over = Partition((ranks,))
    bulk = Layout((3 * ranks,), over)
    windows = Layout((3 * ranks,), over, [[(3 * r - 1, 3 * r + 4) for r in range(ranks)]])

    def fails(*_: object) -> None:
        raise ArithmeticError

    def body(comm: Any) -> None:
        exchange = OverlappedHaloExchange(comm, bulk, windows)
        x = local_window(torch.arange(3.0 * ranks, dtype=DOUBLE), bulk, comm.Get_rank())
        for run in (exchange.forward_while, exchange.adjoint_while):
            argument = x if run == exchange.forward_while else torch.ones(5, dtype=DOUBLE)
            with pytest.raises(ArithmeticError):
                run(argument, fails)  # type: ignore[operator]
        y = exchange.forward(x)
        start, stop = windows.windows[0][comm.Get_rank()]
        want = [i if 0 <= i < 3 * ranks else 0 for i in range(start, stop)]
        assert y.tolist() == want

    run_on_ranks(adjointlab_world, ranks, body)
