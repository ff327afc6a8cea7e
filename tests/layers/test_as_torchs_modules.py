"""Corners in which a layer is what torch's module is, or says that it is not: found by comparing the two by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.func import functional_call  # noqa: E402

import adjointlab as al  # noqa: E402
from adjointlab.core.layout import Layout  # noqa: E402
from adjointlab.core.partition import Partition  # noqa: E402
from adjointlab.layers import (  # noqa: E402
    AdaptiveAvgPool2d,
    BatchNorm1d,
    Concatenation,
    ConstantPad1d,
    CrossEntropyLoss,
    Dropout,
    Embedding,
    Linear,
    MaxUnpool1d,
    MSELoss,
    MultiheadAttention,
    Pointwise,
    Softmax,
    clip_grad_norm_,
    from_sequential,
    get_total_norm,
    local_window,
)
from tests.layers.twin_assertions import sines  # noqa: E402

pytestmark = pytest.mark.mpi_skip


def on_ranks(ranks: int, body: Callable[[Any], Any]) -> list[Any]:
    world = al.SimulatedWorld(ranks)
    run = world.run(lambda context, _: body(context.comm))
    world.close()
    assert run.completed, run
    return list(run.values)


def refusal(body: Callable[[Any], Any]) -> str:
    world = al.SimulatedWorld(1)
    run = world.run(lambda context, _: body(context.comm))
    world.close()
    return str(run.outcomes[0])


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_what_an_idle_rank_gives_attention_does_not_matter(need_weights: bool, dtype: Any) -> None:
    torch.manual_seed(0)
    module, x = nn.MultiheadAttention(4, 2, dtype=torch.float64), sines(3, 2, 4)
    want, _ = module(x, x, x)

    def body(comm: Any) -> Any:
        layer = MultiheadAttention(comm, (1, 2, 1), (3, 2, 4), module)
        part = x if comm.Get_rank() == 0 else torch.empty(0, dtype=dtype)
        return layer(part, part, part, need_weights=need_weights)[0].detach()

    torch.testing.assert_close(on_ranks(2, body)[0], want.detach())


def test_an_average_of_many_elements_has_a_graph_as_small_as_one_of_few() -> None:
    def body(comm: Any) -> list[int]:
        sizes = []
        for side in (4, 64):
            x = torch.ones(1, 1, side, side, requires_grad=True)
            nodes, seen = [AdaptiveAvgPool2d(comm, (1, 1, 1, 1), tuple(x.shape), 1)(x).grad_fn], set[Any]()
            while nodes:
                node = nodes.pop()
                if node is not None and node not in seen:
                    seen.add(node)
                    nodes += [each for each, _ in node.next_functions]
            sizes.append(len(seen))
        return sizes

    few, many = on_ranks(1, body)[0]
    assert many == few


class Standardised(nn.Conv1d):
    def _conv_forward(self, x: Any, weight: Any, bias: Any) -> Any:
        return super()._conv_forward(x, weight - weight.mean(), bias)


class Called(nn.Linear):
    def __call__(self, x: Any) -> Any:
        return 2 * super().__call__(x)


class Frozen(nn.BatchNorm1d):
    def train(self, mode: bool = True) -> Any:
        return super().train(False)


@pytest.mark.parametrize(
    ("module", "shape", "method"),
    [
        (Standardised(2, 3, 3), (1, 2, 5), "_conv_forward"),
        (Called(4, 3), (2, 4), "__call__"),
        (Frozen(3), (2, 3), "train"),
    ],
)
def test_a_subclass_that_computes_something_else_is_not_taken_for_torchs_class(
    module: Any, shape: tuple[int, ...], method: str
) -> None:
    told = refusal(lambda comm: from_sequential(nn.Sequential(module), comm, (1,) * len(shape), shape))
    assert f"has a {method} of its own" in told


def test_a_loss_that_is_elsewhere_is_no_number_when_it_is_summed_or_averaged() -> None:
    def body(comm: Any) -> list[bool]:
        loss = MSELoss(comm, (2,), (4,))(torch.ones(2, requires_grad=True), torch.zeros(2))
        results = [loss.sum(), loss.mean(), torch.sum(loss), torch.mean(loss)]
        (results[0] * 2).backward()
        return [each.numel() == 1 for each in results]

    assert on_ranks(2, body) == [[True] * 4, [False] * 4]


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda comm: BatchNorm1d(comm, (1, 1), (3, 2), nn.BatchNorm1d(2).eval()).eval(), (3, 2)),
        (
            lambda comm: nn.Sequential(
                Dropout(comm, (1, 1), (3, 2), 0.5), Linear(comm, (1, 1, 1), (3, 2), nn.Linear(2, 2))
            ),
            (3, 2),
        ),
    ],
    ids=["normalisation", "dropout before a linear layer"],
)
def test_transforms_differentiate_by_parameters_alone(make: Any, shape: tuple[int, ...]) -> None:
    def body(comm: Any) -> None:
        layer, x = make(comm), sines(*shape).float()
        parameters = {name: each.detach().clone() for name, each in layer.named_parameters()}
        gradients = torch.func.grad(lambda given: functional_call(layer, given, (x,)).pow(2).sum())(
            parameters
        )
        assert all(bool(each.any()) for each in gradients.values())

    on_ranks(1, body)


@pytest.mark.parametrize(
    "make",
    [
        lambda comm: Softmax(comm, (1, 2), (3, 4), 1, dtype=torch.float64),
        lambda comm: CrossEntropyLoss(comm, (1, 2), (3, 4), dtype=torch.float64),
        lambda comm: MaxUnpool1d(comm, (1, 1, 2), (1, 1, 4), 1, 1, dtype=torch.float64),
        lambda comm: Embedding(comm, (1, 2, 1), (3,), 4, 2, dtype=torch.float64),
    ],
    ids=["softmax", "cross-entropy", "unpooling", "embedding"],
)
def test_transforms_go_through_layers_that_send_indices_or_the_largest_elements(make: Any) -> None:
    def body(comm: Any) -> None:
        layer = make(comm)
        inputs = []
        for tensor in layer.domain.tensors:
            shape = tensor.layout.shape
            indices = torch.arange(torch.Size(shape).numel()).reshape(shape)
            whole = indices if tensor.dtype == "int64" else sines(*shape)
            inputs.append(local_window(whole, tensor.layout, comm.Get_rank()))
        parameters = {name: each.detach().clone() for name, each in layer.named_parameters()}
        differentiated = [each for each in inputs if each.is_floating_point()]

        def value(given: Any, differentiated: Any, inputs: Any) -> Any:
            indices = [each for each in inputs if not each.is_floating_point()]
            return functional_call(layer, given, (*differentiated, *indices)).pow(2).sum()

        got = torch.func.grad(value, (0, 1))(parameters, differentiated, inputs)
        leaves = [each.requires_grad_() for each in (*parameters.values(), *differentiated)]
        value(parameters, differentiated, inputs).backward()
        for each, want in zip((*got[0].values(), *got[1]), leaves, strict=True):
            torch.testing.assert_close(each, want.grad)

    on_ranks(2, body)


def test_a_parameter_that_functional_call_is_given_stays_its_callers() -> None:
    def body(comm: Any) -> None:
        layer = Linear(comm, (1, 1, 1), (2, 2), nn.Linear(2, 2))
        mine = nn.Parameter(torch.ones(2, 2))
        functional_call(layer, {"weight": mine}, (torch.ones(2, 2),))
        assert type(mine) is nn.Parameter
        layer.weight = mine  # now it is the layer's
        assert type(layer.weight) is not nn.Parameter
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        try:
            layer._apply(lambda tensor: tensor.clone())
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(False)
        assert layer.weight is not mine
        with pytest.raises(ValueError, match=r"^weight: "):
            nn.init.xavier_uniform_(layer.weight)

    on_ranks(1, body)


@pytest.mark.parametrize("records", [True, False])
def test_a_function_gets_the_sign_of_zero_whether_gradients_are_recorded_or_not(records: bool) -> None:
    def body(comm: Any) -> Any:
        layer = Pointwise(comm, Layout((2,), Partition((1,))), torch.reciprocal)
        with torch.set_grad_enabled(records):
            return layer(torch.tensor([-0.0, 0.0])).detach()

    assert on_ranks(1, body)[0].tolist() == [-torch.inf, torch.inf]


def test_norms_of_complex_gradients_are_real_as_torchs_are() -> None:
    def body(comm: Any) -> None:
        module = nn.Linear(2, 2, dtype=torch.complex64)
        layer = Linear(comm, (1, 1, 1), (2, 2), module)
        for each in (module, layer):
            (each(torch.ones(2, 2, dtype=torch.complex64)).abs() ** 2).sum().backward()
        want = nn.utils.get_total_norm([each.grad for each in module.parameters()])
        torch.testing.assert_close(get_total_norm(layer), want)
        torch.testing.assert_close(
            clip_grad_norm_(layer, 0.5), nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        )
        torch.testing.assert_close(layer.weight.grad, module.weight.grad)

    on_ranks(1, body)


def test_a_chain_whose_types_do_not_fit_is_refused_when_it_is_made() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Embedding(4, 2))
    told = refusal(lambda comm: from_sequential(network, comm, (1, 1, 1), (2, 1, 2)))
    assert "network: 1 (Embedding) takes int64, and gets float32 from what comes before it" in told


def test_a_largest_norm_of_zero_is_refused_as_any_other_is() -> None:
    told = refusal(lambda comm: Embedding(comm, (1, 1, 1), (2,), nn.Embedding(4, 2, max_norm=0.0)))
    assert "max_norm: 0.0 is not supported" in told


def test_padding_of_nothing_is_the_constant() -> None:
    def body(comm: Any) -> Any:
        layer = ConstantPad1d(comm, (1, 1, 1), (1, 1, 0), (1, 1), 2.0)
        return layer(local_window(torch.empty(1, 1, 0), layer.domain.tensors[0].layout, 0))

    assert on_ranks(1, body)[0].tolist() == [[[2.0, 2.0]]]


def test_inputs_of_another_number_are_counted() -> None:
    told = refusal(lambda comm: Concatenation(comm, (1, 1), [(2, 2), (2, 2)])(torch.ones(2, 2)))
    assert "arguments: 1 on rank 0, but" in told
    assert "the layer takes 2: x0, x1" in told


def test_a_function_over_integers_is_refused_by_the_name_of_the_argument() -> None:
    layout = Layout((2,), Partition((1,)))
    told = refusal(lambda comm: Pointwise(comm, layout, torch.abs, dtype=torch.int64))
    assert "dtype: torch.int64" in told
