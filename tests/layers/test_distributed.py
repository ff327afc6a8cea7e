"""Properties of all layers: inputs that are checked on every rank, sequential modules, copies, conversions."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from adjointlab.core.partition import Partition
from adjointlab.layers.batch_norm import BatchNorm2d, BatchNormalisation
from adjointlab.layers.convolution import Conv1d, Conv2d, Convolution
from adjointlab.layers.distributed import DistributedModule
from adjointlab.layers.linear import Linear
from adjointlab.layers.pooling import AveragePooling, AvgPool1d, AvgPool2d, MaxPool1d, MaxPool2d, MaxPooling
from adjointlab.layers.torch_modules import uninitialised_copy
from adjointlab.layers.windows import local_window
from adjointlab.worlds.forward_mode import dual_level
from adjointlab.worlds.run import Raised
from adjointlab.worlds.world import World

from .derivative_assertions import assert_second_derivatives_match, assert_tangent_matches
from .twin_assertions import assert_matches_twin, error_of_every_rank, run_on_ranks, sines

DOUBLE = torch.float64

Make = Callable[[Any], DistributedModule]

LAYERS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "Linear": (lambda comm: Linear(comm, Partition((1, 1, 2)), (3, 4), 4, 5, dtype=DOUBLE), (3, 4)),
    "Conv1d": (
        lambda comm: Conv1d(comm, Partition((1, 1, 1, 2)), (1, 2, 8), 2, 3, 3, dtype=DOUBLE),
        (1, 2, 8),
    ),
    "MaxPool1d": (lambda comm: MaxPool1d(comm, Partition((1, 1, 2)), (1, 2, 9), 2, dtype=DOUBLE), (1, 2, 9)),
    "AvgPool1d": (lambda comm: AvgPool1d(comm, Partition((1, 1, 2)), (1, 2, 9), 3, dtype=DOUBLE), (1, 2, 9)),
}
"""Over two workers, of which both have something; other ranks are idle."""

each_layer = pytest.mark.parametrize(("make", "shape"), LAYERS.values(), ids=LAYERS)


def ranks_of(world: World) -> int:
    """Two workers, and an idle one where there is a third rank."""
    if world.ranks < 2:
        pytest.skip("needs 2 ranks")
    return min(world.ranks, 3)


def local(layer: DistributedModule, x: torch.Tensor) -> torch.Tensor:
    return local_window(x, layer.domain.tensors[0].layout, layer.rank)


@each_layer
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x: x[..., 1:], "x: shape {short} on rank {rank}, but the layout"),
        (lambda x: x.float(), "x: float32 on rank {rank}, but the operator was made for float64"),
        (lambda x: x[..., None], "x: shape {batched} on rank {rank}, but the layout"),
        (lambda x: x[None], "x: shape {led} on rank {rank}, but the layout"),
    ],
    ids=["shape", "element type", "operator's batch", "leading dimension"],
)
def test_a_wrong_input_on_one_rank_is_the_same_error_on_every_rank(
    adjointlab_world: World, make: Make, shape: tuple[int, ...], rank: int, wrong: Any, message: str
) -> None:
    seen = []

    def body(comm: Any) -> None:
        layer = make(comm)
        x = local(layer, sines(*shape))
        local_shape = layer.domain.tensors[0].layout.local_shape(rank)
        seen.append(
            {
                "short": (*local_shape[:-1], local_shape[-1] - 1),
                "batched": (*local_shape, 1),
                "led": (1, *local_shape),
                "rank": rank,
            }
        )
        layer(wrong(x) if comm.Get_rank() == rank else x)

    raised = error_of_every_rank(adjointlab_world, ranks_of(adjointlab_world), body)
    # A process beyond the ranks of the run has seen nothing, and hears of the error.
    assert not seen or raised.startswith(message.format(**seen[0]))


@each_layer
def test_mpi4pys_own_communicator_will_do(
    adjointlab_world: World, make: Make, shape: tuple[int, ...]
) -> None:
    if adjointlab_world.name == "simulated":
        pytest.skip("needs mpiexec")
    ranks_of(adjointlab_world)
    from mpi4py import MPI

    layer = make(MPI.COMM_WORLD)
    layer(local(layer, sines(*shape))).sum().backward()
    with pytest.raises(ValueError, match="float32 on rank 0"):
        layer(local(layer, sines(*shape)).float())


@each_layer
def test_elements_on_an_idle_rank_are_the_same_error_on_every_rank(
    adjointlab_world: World, make: Make, shape: tuple[int, ...]
) -> None:
    if adjointlab_world.ranks < 3:
        pytest.skip("needs 3 ranks")

    def body(comm: Any) -> None:
        layer = make(comm)
        layer(torch.zeros(2) if comm.Get_rank() == 2 else local(layer, sines(*shape)))

    raised = error_of_every_rank(adjointlab_world, 3, body)
    assert raised.startswith("x: shape (2,) on rank 2, which is inactive in the partition")


@each_layer
def test_what_is_no_tensor_on_one_rank_is_a_type_error_on_every_rank(
    adjointlab_world: World, make: Make, shape: tuple[int, ...]
) -> None:
    def body(comm: Any) -> None:
        layer = make(comm)
        x = local(layer, sines(*shape))
        layer(x.numpy() if comm.Get_rank() == 1 else x)

    run = adjointlab_world.run(lambda context, _: body(context.comm), None, ranks_of(adjointlab_world))
    for outcome in run.outcomes:
        assert isinstance(outcome, Raised)
        assert (outcome.kind, outcome.message) == (
            "TypeError",
            "x: an ndarray on rank 1 is not a torch.Tensor",
        )


@each_layer
@pytest.mark.parametrize(
    "empty",
    [
        torch.zeros(0),
        torch.zeros(3, 0, dtype=DOUBLE),
        torch.zeros(0, 0, 0, 7, dtype=DOUBLE),
        torch.zeros(0, 3, dtype=torch.int64),
        torch.zeros(0, 0, 3, dtype=DOUBLE),
    ],
    ids=lambda empty: f"{empty.dtype} {tuple(empty.shape)}",
)
def test_an_idle_rank_may_have_any_tensor_of_zero_volume(
    adjointlab_world: World, make: Make, shape: tuple[int, ...], empty: torch.Tensor
) -> None:
    if adjointlab_world.ranks < 3:
        pytest.skip("needs 3 ranks")

    def body(comm: Any) -> None:
        torch.manual_seed(1)
        layer = make(comm)
        x = empty.clone() if comm.Get_rank() == 2 else local(layer, sines(*shape))
        x.requires_grad_(x.is_floating_point())
        y = layer(x)
        y.sum().backward()
        assert tuple(y.shape) == layer.codomain.tensors[0].layout.local_shape(comm.Get_rank())
        assert not x.is_floating_point() or (x.grad is not None and x.grad.shape == x.shape)

    run_on_ranks(adjointlab_world, 3, body)


def test_what_an_idle_rank_has_is_no_batch_to_those_that_get_the_input(adjointlab_world: World) -> None:
    # The input lies on one worker, which sends it to the other: as an operator's argument (0, 0, 5) would be a batch of 5.
    def body(comm: Any) -> None:
        torch.manual_seed(1)
        layer = Linear(comm, Partition((1, 2, 1)), (3, 4), 4, 5, dtype=DOUBLE)
        x = local(layer, sines(3, 4)) if comm.Get_rank() == 0 else torch.zeros(0, 0, 5)
        y = layer(x)
        want = layer.to_sequential()(sines(3, 4))
        assert torch.allclose(y, local_window(want, layer.codomain.tensors[0].layout, comm.Get_rank()))

    run_on_ranks(adjointlab_world, ranks_of(adjointlab_world), body)


@each_layer
def test_inputs_are_checked_under_no_grad_checkpoints_functional_calls_and_forward_mode(
    adjointlab_world: World, make: Make, shape: tuple[int, ...]
) -> None:
    def body(comm: Any) -> None:
        torch.manual_seed(1)
        layer = make(comm)
        twin = layer.to_sequential()
        assert_tangent_matches(comm, layer, twin, sines(*shape))
        x = local(layer, sines(*shape)).requires_grad_()
        with torch.no_grad():
            want = layer(x)
        parameters = dict(layer.named_parameters())

        def function(parameters: Any, x: torch.Tensor) -> Any:
            result = torch.func.functional_call(layer, parameters, (x,))
            return (result**2).sum(), result

        (layer(x) ** 2).sum().backward()
        gradient, got = torch.func.grad(function, argnums=1, has_aux=True)(parameters, x.detach())
        assert torch.equal(got, want)
        assert torch.equal(gradient, x.grad)
        again = x.detach().clone().requires_grad_()
        (checkpoint(layer, again, use_reentrant=False) ** 2).sum().backward()  # type: ignore[no-untyped-call]
        assert torch.equal(again.grad, x.grad)  # type: ignore[arg-type]

    # Opened before they begin: the ranks find it so.
    with dual_level():
        run_on_ranks(adjointlab_world, ranks_of(adjointlab_world), body)


class Standardised(nn.Conv2d):
    """A convolution of another weight."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv2d(input, self.weight - self.weight.mean())


class Named(nn.Conv2d):
    """torch's convolution under another name."""


OTHERS: list[tuple[Any, int, tuple[int, ...], nn.Module, str]] = [
    (
        Conv2d,
        5,
        (1, 2, 6, 6),
        nn.ConvTranspose2d(2, 2, 3),
        "ConvTranspose2d, but Conv2d is made from torch.nn.Conv2d",
    ),
    (Conv1d, 4, (1, 2, 6), nn.Conv2d(2, 2, 3), "Conv2d, but Conv1d is made from torch.nn.Conv1d"),
    (
        Conv2d,
        5,
        (1, 2, 6, 6),
        Standardised(2, 2, 3),
        "Standardised has a forward of its own, but Conv2d computes what torch.nn.Conv2d does",
    ),
    (Linear, 3, (1, 2), nn.Bilinear(2, 2, 3), "Bilinear, but Linear is made from torch.nn.Linear"),
    (
        MaxPool2d,
        4,
        (1, 2, 6, 6),
        nn.LPPool2d(2, 2),
        "LPPool2d, but MaxPool2d is made from torch.nn.MaxPool2d",
    ),
    (AvgPool2d, 4, (1, 2, 6, 6), nn.MaxPool2d(2), "MaxPool2d, but AvgPool2d is made from torch.nn.AvgPool2d"),
]
"""Layer, order of the partition, shape, module, and the error."""


@pytest.mark.parametrize("constructor", ["from_sequential", "class"])
@pytest.mark.parametrize(("layer", "order", "shape", "module", "message"), OTHERS, ids=lambda value: "")
def test_a_module_of_another_class_is_the_same_error_on_every_rank(
    adjointlab_world: World, constructor: str, layer: Any, order: int, shape: Any, module: Any, message: str
) -> None:
    ranks, partition = min(adjointlab_world.ranks, 2), Partition((1,) * order)

    def make(comm: Any) -> DistributedModule:
        if constructor == "class":
            return layer(comm, partition, shape, module)  # type: ignore[no-any-return]
        return layer.from_sequential(module, comm, partition, shape)  # type: ignore[no-any-return]

    assert error_of_every_rank(adjointlab_world, ranks, make) == f"module: {message}"


def test_the_constructor_takes_a_module_of_any_number_of_dimensions(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 2)

    def body(comm: Any) -> None:
        for dims, sides in enumerate(((6,), (6, 5), (6, 5, 4)), start=1):
            for kind, name, given, lead in (
                (Convolution, f"Conv{dims}d", (2, 2, 2), (1, 1, 1)),
                (MaxPooling, f"MaxPool{dims}d", (2,), (1, 1)),
                (AveragePooling, f"AvgPool{dims}d", (2,), (1, 1)),
                (BatchNormalisation, f"BatchNorm{dims}d", (2,), (1, 1)),
            ):
                torch.manual_seed(1)
                module = getattr(nn, name)(*given)
                partition = Partition((*lead, ranks, *(1,) * (dims - 1)))
                layer = kind(comm, partition, (2, 2, *sides), module.double().eval(), dtype=DOUBLE)
                assert_matches_twin(comm, layer, module, sines(2, 2, *sides), relative=1e-13)

    run_on_ranks(adjointlab_world, ranks, body)


def test_a_module_with_further_arguments_or_none_where_torch_has_several_is_refused(
    adjointlab_world: World,
) -> None:
    def body(comm: Any) -> None:
        partition, shape = Partition((1,) * 5), (1, 2, 6, 6)
        with pytest.raises(TypeError, match="a module or the arguments of one"):
            Conv2d(comm, partition, shape, nn.Conv2d(2, 3, 3), stride=2)
        with pytest.raises(TypeError, match=r"made from torch\.nn\.Conv1d or .*, but was given none"):
            Convolution(comm, partition, shape, 2, 3, 3)
        with pytest.raises(ValueError, match=r"dtype: torch\.float64, but the parameters .* torch\.float32"):
            Conv2d(comm, partition, shape, nn.Conv2d(2, 3, 3), dtype=DOUBLE)
        with pytest.raises(ValueError, match=r"dtype: torch\.float64, but the running statistics"):
            BatchNorm2d(comm, Partition((1,) * 4), shape, nn.BatchNorm2d(2, affine=False), dtype=DOUBLE)
        extended = nn.Conv2d(2, 3, 3)
        extended.gain = nn.Parameter(torch.ones(1))
        with pytest.raises(ValueError, match="has gain, unlike torch's own class"):
            Conv2d(comm, partition, shape, extended)

    run_on_ranks(adjointlab_world, 1, body)


def test_hooks_of_the_sequential_module_are_refused_and_in_no_copy_of_it(adjointlab_world: World) -> None:
    def body(comm: Any) -> None:
        twin, calls = nn.Conv1d(2, 3, 3, dtype=DOUBLE), []
        layer = Conv1d(comm, Partition((1, 1, 1, 2)), (1, 2, 8), twin)
        twin.register_forward_hook(lambda *_: calls.append(comm))
        with pytest.raises(ValueError, match="module: the module itself has forward hooks"):
            Conv1d(comm, Partition((1, 1, 1, 2)), (1, 2, 8), twin)
        layer.to_sequential()(sines(1, 2, 8))
        layer(local(layer, sines(1, 2, 8)))
        uninitialised_copy(twin, torch.device("cpu"))(sines(1, 2, 8))
        assert not calls
        assert len(twin._forward_hooks) == 1

    run_on_ranks(adjointlab_world, ranks_of(adjointlab_world), body)


def test_a_subclass_that_computes_the_same_is_as_good(adjointlab_world: World) -> None:
    def body(comm: Any) -> None:
        torch.manual_seed(1)
        twin = Named(2, 3, 3, dtype=DOUBLE)
        layer = Conv2d.from_sequential(twin, comm, Partition((1, 1, 1, 2, 1)), (1, 2, 6, 6))
        assert_matches_twin(comm, layer, twin, sines(1, 2, 6, 6), relative=1e-13)

    run_on_ranks(adjointlab_world, ranks_of(adjointlab_world), body)


def test_a_sequential_modules_mode_and_what_of_it_is_frozen_are_taken_over(adjointlab_world: World) -> None:
    cases: list[tuple[Any, nn.Module, tuple[int, ...], tuple[int, ...]]] = [
        (Conv2d, nn.Conv2d(2, 2, 3), (1, 1, 1, 2, 1), (1, 2, 6, 6)),
        (BatchNorm2d, nn.BatchNorm2d(2), (1, 1, 2, 1), (1, 2, 6, 6)),
        (Linear, nn.Linear(4, 3), (1, 2, 1), (2, 4)),
        (AvgPool2d, nn.AvgPool2d(2), (1, 1, 2, 1), (1, 2, 6, 6)),
    ]
    for layer, twin, partition, shape in cases:
        twin.eval()
        if hasattr(twin, "weight"):
            twin.get_parameter("weight").requires_grad_(False)
        frozen = {name: parameter.requires_grad for name, parameter in twin.named_parameters()}

        def body(comm: Any, case: Any = (layer, twin, partition, shape), frozen: Any = frozen) -> None:
            layer, twin, partition, shape = case
            made = layer.from_sequential(twin, comm, Partition(partition), shape)
            for module in (made, made.to_sequential(), copy.deepcopy(made)):
                assert not module.training
                assert {name: p.requires_grad for name, p in module.named_parameters()} == frozen

        run_on_ranks(adjointlab_world, ranks_of(adjointlab_world), body)


@each_layer
def test_a_deep_copy_has_its_own_parameters_and_shares_the_operators(
    adjointlab_world: World, make: Make, shape: tuple[int, ...]
) -> None:
    def body(comm: Any) -> None:
        torch.manual_seed(1)
        layer = make(comm)
        layer.register_forward_hook(lambda *_: None)
        twin = copy.deepcopy(layer)
        assert type(twin) is type(layer)
        assert twin.comm is layer.comm
        assert twin.domain is layer.domain
        before = layer.sequential_state_dict()
        for name, parameter in twin.named_parameters():
            assert parameter is not layer.get_parameter(name)
            assert torch.equal(parameter, layer.get_parameter(name))
            with torch.no_grad():
                parameter.mul_(2)
        assert all(torch.equal(value, before[name]) for name, value in layer.sequential_state_dict().items())
        twin.register_forward_hook(lambda *_: None)
        assert (len(layer._forward_hooks), len(twin._forward_hooks)) == (1, 2)
        for module in (layer, twin):
            assert_second_derivatives_match(
                comm, module, module.to_sequential(), sines(*shape), power=2, wanted=["x"]
            )

    run_on_ranks(adjointlab_world, ranks_of(adjointlab_world), body)


def test_an_average_of_models_is_that_of_the_sequential_ones(adjointlab_world: World) -> None:
    x = sines(3, 4)

    def body(comm: Any) -> None:
        torch.manual_seed(1)
        layer = Linear(comm, Partition((1, 1, 2)), (3, 4), 4, 5, dtype=DOUBLE)
        model = nn.Sequential(layer)
        averaged = AveragedModel(model)
        whole = layer.to_sequential()
        want = AveragedModel(whole)
        for step in range(3):
            for module in (model, whole):
                with torch.no_grad():
                    for parameter in module.parameters():
                        parameter.mul_(step + 1)
            averaged.update_parameters(model)
            want.update_parameters(whole)
        y = averaged(local(layer, x))
        torch.testing.assert_close(
            y,
            local_window(want(x), layer.codomain.tensors[0].layout, comm.Get_rank()),
            rtol=1e-14,
            atol=1e-14,
        )

    run_on_ranks(adjointlab_world, ranks_of(adjointlab_world), body)


@each_layer
def test_to_pickle_a_layer_is_the_same_error_on_every_rank(
    adjointlab_world: World, make: Make, shape: tuple[int, ...]
) -> None:
    def body(comm: Any) -> str:
        with pytest.raises(TypeError, match="a distributed layer cannot be pickled") as error:
            pickle.dumps(make(comm))
        return str(error.value)

    messages = run_on_ranks(adjointlab_world, ranks_of(adjointlab_world), body)
    assert len(set(messages)) == 1


@pytest.mark.parametrize("name", ["Linear", "Conv1d", "AvgPool1d"])
@pytest.mark.parametrize(
    "convert",
    [
        lambda layer: layer.float(),
        lambda layer: layer.half(),
        lambda layer: layer.to(torch.bfloat16),
        lambda layer: layer.type(torch.float32),
        lambda layer: nn.Sequential(layer).float(),
    ],
    ids=["float", "half", "to", "type", "inside"],
)
def test_to_change_the_element_type_is_the_same_error_on_every_rank_and_changes_nothing(
    adjointlab_world: World, name: str, convert: Any
) -> None:
    make, shape = LAYERS[name]

    def body(comm: Any) -> str:
        torch.manual_seed(1)
        layer = make(comm)
        with pytest.raises(ValueError, match=r"made for float64; make the layer with dtype=\.\.\.") as error:
            convert(layer)
        layer(local(layer, sines(*shape)))
        return str(error.value)

    assert len(set(run_on_ranks(adjointlab_world, ranks_of(adjointlab_world), body))) == 1


@each_layer
def test_conversions_that_keep_the_element_type_go_through(
    adjointlab_world: World, make: Make, shape: tuple[int, ...]
) -> None:
    def body(comm: Any) -> None:
        torch.manual_seed(1)
        layer = make(comm)
        before = layer(local(layer, sines(*shape)))
        kept = layer.double().to("cpu").to(torch.float64).to(memory_format=torch.channels_last).cpu()
        assert kept.share_memory() is layer  # type: ignore[no-untyped-call]
        assert torch.equal(layer(local(layer, sines(*shape))), before)

    run_on_ranks(adjointlab_world, ranks_of(adjointlab_world), body)
