"""Distributed losses: torch's value and gradient, whatever the cut, with one worker or all of them to have the loss."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.layers import from_sequential
from adjointlab.layers.losses import BCEWithLogitsLoss, CrossEntropyLoss, KLDivLoss, MSELoss, SharedSum
from adjointlab.layers.windows import local_window
from adjointlab.worlds.world import World

from .twin_assertions import error_of_every_rank, reversed_line, run_on_ranks

DOUBLE = torch.float64


def drawn(*shape: int) -> torch.Tensor:
    """The same on every rank, without torch's generator."""
    return torch.sin(torch.arange(math.prod(shape), dtype=DOUBLE) * 1.7).reshape(shape)


def classes_of(count: int, *shape: int) -> torch.Tensor:
    return (torch.arange(math.prod(shape)) * 7 % 11 % count).reshape(shape)


def assert_loss(comm: Any, layer: Any, twin: nn.Module, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Assert that the loss is torch's wherever it is, and the gradients after ``backward`` on every rank; return the loss."""
    rank = comm.Get_rank()
    whole = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    local = [
        local_window(x.detach(), tensor.layout, rank).requires_grad_(x.is_floating_point())
        for x, tensor in zip(whole, layer.domain.tensors, strict=True)
    ]
    want, loss = twin(*whole), layer(*local)
    (space,) = layer.codomain.tensors
    if space.layout.partition.is_active(rank):
        window = local_window(want.detach(), space.layout, rank)
        torch.testing.assert_close(loss.detach(), window, rtol=2.0**-44, atol=2.0**-44, equal_nan=True)
    else:
        assert loss.numel() == 0
    want.backward(torch.ones_like(want))
    loss.backward(torch.ones_like(loss) if layer.reduction == "none" else None)  # on every rank
    for x, leaf, tensor in zip(whole, local, layer.domain.tensors, strict=True):
        if x.is_floating_point() and tensor.layout.partition.is_active(rank):
            assert x.grad is not None
            window = local_window(x.grad, tensor.layout, rank)
            torch.testing.assert_close(leaf.grad, window, rtol=2.0**-44, atol=2.0**-44, equal_nan=True)
    assert isinstance(loss, torch.Tensor)
    return loss.detach()


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("dim", range(3))
@pytest.mark.parametrize("all_reduce", [False, True], ids=["on the root", "everywhere"])
def test_cross_entropy_is_torchs_along_every_dimension(
    adjointlab_world: World, dim: int, reduction: str, all_reduce: bool
) -> None:
    ranks = min(adjointlab_world.ranks, 4)
    targets = classes_of(5, 5, 3)
    targets[1, 1] = targets[4, 2] = 3  # which is ignored, for other targets too

    def body(comm: Any) -> None:
        twin = nn.CrossEntropyLoss(
            torch.tensor([1.0, 0.25, 3.0, 2.0, 0.5], dtype=DOUBLE),
            ignore_index=3,
            reduction=reduction,
            label_smoothing=0.3,
        )
        layer = CrossEntropyLoss.from_sequential(
            twin, comm, reversed_line(ranks, dim, 3), (5, 5, 3), root=ranks - 1, all_reduce=all_reduce
        )
        assert_loss(comm, layer, twin, (4 * drawn(5, 5, 3), targets))

    run_on_ranks(adjointlab_world, ranks, body)


def test_a_mean_divides_by_the_weights_over_all_ranks_however_uneven_the_cut(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 3)
    cut = (0, *[1] * (ranks - 1), 7)  # one worker has one element, the last one the rest, and others none

    def body(comm: Any) -> None:
        partition = Partition((ranks, 1))
        weight = torch.tensor([1.0, 8.0, 0.5], dtype=DOUBLE)
        entropy = CrossEntropyLoss(comm, partition, (7, 3), weight, cuts=(cut, None))
        assert_loss(comm, entropy, nn.CrossEntropyLoss(weight), (drawn(7, 3), classes_of(3, 7)))
        error = MSELoss(comm, partition, (7, 3), dtype=DOUBLE, cuts=(cut, None))
        assert_loss(comm, error, nn.MSELoss(), (drawn(7, 3), drawn(3, 7).T))

    run_on_ranks(adjointlab_world, ranks, body)


def test_the_loss_is_on_the_root_alone_which_need_not_be_a_worker(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 4)

    def body(comm: Any) -> tuple[int, ...]:
        layer = MSELoss(comm, Partition((max(1, ranks - 1),)), (5,), root=ranks - 1, dtype=DOUBLE)
        return tuple(assert_loss(comm, layer, nn.MSELoss(), (drawn(5), drawn(10)[5:])).shape)

    assert run_on_ranks(adjointlab_world, ranks, body) == ((0,),) * (ranks - 1) + ((),)


def test_with_all_reduce_the_gradient_is_that_of_one_loss(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 4)

    def body(comm: Any) -> Any:
        layer = MSELoss(comm, Partition((ranks,)), (6,), "sum", all_reduce=True, dtype=DOUBLE)
        x = local_window(drawn(6), layer.domain.tensors[0].layout, comm.Get_rank()).requires_grad_()
        loss = layer(x, torch.zeros_like(x))
        loss.backward()  # as in a sequential script, on every rank
        assert x.grad is not None
        torch.testing.assert_close(x.grad, 2 * x.detach(), rtol=0, atol=0)
        return float(loss.detach())

    assert len(set(run_on_ranks(adjointlab_world, ranks, body))) == 1


@pytest.mark.parametrize("all_reduce", [False, True], ids=["on the root", "everywhere"])
def test_a_plain_backward_of_multiples_and_sums_of_losses_works_on_every_rank(
    adjointlab_world: World, all_reduce: bool
) -> None:
    ranks = min(adjointlab_world.ranks, 4)

    def body(comm: Any) -> None:
        workers = Partition((max(1, ranks - 1), 1))  # one rank is idle, and may be the root
        whole = drawn(6, 3).requires_grad_()
        options: dict[str, Any] = dict(root=ranks - 1, all_reduce=all_reduce, dtype=DOUBLE)
        squares = MSELoss(comm, workers, (6, 3), **options)
        entropy = CrossEntropyLoss(comm, workers, (6, 3), **options)
        rank, targets = comm.Get_rank(), classes_of(3, 6)
        x = local_window(whole.detach(), squares.domain.tensors[0].layout, rank).requires_grad_()
        at = local_window(targets, entropy.domain.tensors[1].layout, rank)
        for _ in range(2):  # gradients are added up
            (squares(x, torch.ones_like(x)) / 4 + 3 * entropy(x, at)).backward()
        want = 2 * (
            nn.functional.mse_loss(whole, torch.ones(6, 3, dtype=DOUBLE)) / 4
            + 3 * nn.functional.cross_entropy(whole, targets)
        )
        want.backward()
        assert whole.grad is not None
        wanted = local_window(whole.grad, squares.domain.tensors[0].layout, rank)
        torch.testing.assert_close(x.grad, wanted, rtol=2.0**-44, atol=2.0**-44)

    run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize("ignored", [False, True], ids=["nothing given", "all ignored"])
def test_a_mean_over_nothing_is_nan_and_its_gradient_zero(adjointlab_world: World, ignored: bool) -> None:
    ranks = min(adjointlab_world.ranks, 3)
    batch = 4 if ignored else 0

    def body(comm: Any) -> None:
        twin = nn.CrossEntropyLoss(label_smoothing=0.25)
        for dim in range(2):
            layer = CrossEntropyLoss.from_sequential(
                twin, comm, reversed_line(ranks, dim, 2), (batch, 3), dtype=DOUBLE, all_reduce=bool(dim)
            )
            loss = assert_loss(comm, layer, twin, (drawn(batch, 3), torch.full((batch,), -100)))
            assert loss.isnan().all()

    run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize("logits", [[1e15, 1e15 + 2, 1e15], [0.0, -math.inf, 2.0], [800.0, -800.0, 0.0]])
def test_large_logits_and_excluded_classes_are_as_in_torch(
    adjointlab_world: World, logits: list[float]
) -> None:
    ranks = min(adjointlab_world.ranks, 4)

    def body(comm: Any) -> None:
        twin = nn.CrossEntropyLoss(reduction="none")
        layer = CrossEntropyLoss.from_sequential(twin, comm, reversed_line(ranks, 1, 2), (2, 3), dtype=DOUBLE)
        x = torch.tensor([logits, logits[::-1]], dtype=DOUBLE)
        assert_loss(comm, layer, twin, (x, torch.tensor([2, 0])))

    run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize("wrong", [5, -3, 2**40])
@pytest.mark.parametrize("dim", range(2))
def test_a_class_out_of_range_on_one_rank_is_the_same_error_on_all(
    adjointlab_world: World, dim: int, wrong: int
) -> None:
    ranks = min(adjointlab_world.ranks, 4)

    def body(comm: Any) -> str:
        layer = CrossEntropyLoss(comm, reversed_line(ranks, dim, 2), (8, 5), dtype=DOUBLE)
        targets = classes_of(5, 8)
        targets[-1] = wrong
        logits, targets_layout = (tensor.layout for tensor in layer.domain.tensors)
        # Caught on each rank: the errors come after a reduction, which some ranks leave earlier than others.
        with pytest.raises(ValueError, match="out of bounds") as raised:
            layer(
                local_window(drawn(8, 5), logits, comm.Get_rank()),
                local_window(targets, targets_layout, comm.Get_rank()),
            )
        return str(raised.value)

    assert set(run_on_ranks(adjointlab_world, ranks, body)) == {f"Target {wrong} is out of bounds."}


def test_illegal_arguments_have_torchs_words(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 2)

    def error(kind: Any = CrossEntropyLoss, shape: tuple[int, ...] = (3, 5), **given: Any) -> str:
        partition = given.pop("partition", Partition((1,) * len(shape)))
        raised = "TypeError" if isinstance(given.get("root"), str) else "ValueError"
        return error_of_every_rank(
            adjointlab_world, ranks, lambda comm: kind(comm, partition, shape, **given), raised
        )

    assert error(reduction="avg") == "avg is not a valid value for reduction"
    assert error(MSELoss, reduction="avg") == "avg is not a valid value for reduction"
    assert error(label_smoothing=2.0) == "label_smoothing must be between 0.0 and 1.0. Got: 2"
    with pytest.raises(RuntimeError) as raised:
        functional.cross_entropy(drawn(3, 5), classes_of(5, 3), torch.ones(3, dtype=DOUBLE))
    assert error(weight=torch.ones(3)) == str(raised.value)
    assert error(root=ranks).startswith(f"root: {ranks} is none of the ranks")
    assert error(root="0") == "root: '0' is not a whole number"
    assert error(partition=Partition((1,))).startswith("partition: of order 1")
    assert error(shape=(3, 0)).startswith("input_shape: ")


def test_weights_go_from_and_to_the_sequential_module(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 3)

    def body(comm: Any) -> None:
        twin = nn.CrossEntropyLoss(torch.arange(5.0), ignore_index=2, label_smoothing=0.5, reduction="sum")
        layer = CrossEntropyLoss.from_sequential(twin, comm, reversed_line(ranks, 1, 2), (4, 5))
        back = layer.to_sequential()
        assert isinstance(back, nn.CrossEntropyLoss)
        assert back.weight is not None
        assert back.weight.equal(torch.arange(5.0))
        assert (back.ignore_index, back.label_smoothing, back.reduction) == (2, 0.5, "sum")
        layer.load_sequential_state_dict({"weight": torch.ones(5)})
        assert layer.sequential_state_dict()["weight"].equal(torch.ones(5))

    run_on_ranks(adjointlab_world, ranks, body)


def test_the_sequential_loss_has_the_weights_that_the_layer_has_now(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 3)

    def body(comm: Any) -> None:
        layer = CrossEntropyLoss(comm, reversed_line(ranks, 1, 2), (4, 5), torch.ones(5, dtype=DOUBLE))
        layer.load_sequential_state_dict({"weight": torch.arange(5.0)})
        loaded = layer.sequential().weight
        assert loaded is not None
        assert loaded.equal(torch.arange(5.0, dtype=DOUBLE))
        layer.load_state_dict({"weight": torch.arange(5.0) + 1})
        again = layer.sequential()
        assert again.weight is not None
        assert again.weight.equal(torch.arange(5.0, dtype=DOUBLE) + 1)
        assert_loss(comm, layer, again, (drawn(4, 5), classes_of(5, 4)))

    run_on_ranks(adjointlab_world, ranks, body)


def test_a_loss_is_made_from_its_own_sequential_class_and_keeps_its_mode(adjointlab_world: World) -> None:
    def made(comm: Any, kind: Any, module: nn.Module) -> Any:
        return kind.from_sequential(module, comm, Partition((1, 1)), (2, 3))

    for kind, other in ((CrossEntropyLoss, nn.NLLLoss()), (MSELoss, nn.L1Loss())):
        message = error_of_every_rank(adjointlab_world, 1, lambda comm, k=kind, o=other: made(comm, k, o))  # type: ignore[misc]
        assert message == (
            f"module: {type(other).__name__}, but {kind.__name__} is made from torch.nn.{kind.__name__}"
        )
    kept = run_on_ranks(adjointlab_world, 1, lambda comm: made(comm, MSELoss, nn.MSELoss().eval()).training)
    assert kept == (False,)


def test_the_shared_sum_moves_nothing_back_and_is_an_adjoint(adjointlab_world: World) -> None:
    ranks = min(adjointlab_world.ranks, 4)

    def body(comm: Any) -> Any:
        partition = Partition((ranks, 1), range(ranks - 1, -1, -1))
        operator = SharedSum(comm, Layout((2,), partition, [((0, 2),)], (None,)))
        # To an invariant value the matrix is that of the sum, and its transpose that of the copies.
        return operator.matrix().tolist(), operator.H.matrix().tolist()

    for forward, adjoint in run_on_ranks(adjointlab_world, ranks, body):
        assert torch.tensor(forward).equal(torch.eye(2).repeat(1, ranks).to(torch.tensor(forward).dtype))
        assert torch.tensor(adjoint).equal(torch.tensor(forward).T)


def test_weights_of_a_binary_cross_entropy_are_cut_with_the_input_and_come_back(
    adjointlab_world: World,
) -> None:
    ranks = min(adjointlab_world.ranks, 4)
    weight = torch.arange(1.0, 6.0, dtype=DOUBLE)

    def body(comm: Any) -> None:
        twin = nn.BCEWithLogitsLoss(weight.reshape(5, 1), pos_weight=torch.tensor(3.0, dtype=DOUBLE))
        layer = BCEWithLogitsLoss.from_sequential(twin, comm, reversed_line(ranks, 0, 2), (5, 3))
        assert_loss(comm, layer, twin, (drawn(5, 3), drawn(3, 5).T))
        for back in (layer.to_sequential(), layer.sequential()):
            assert torch.equal(back.get_buffer("weight"), twin.get_buffer("weight"))

    run_on_ranks(adjointlab_world, ranks, body)


@pytest.mark.parametrize(
    ("make", "shape", "message"),
    [
        (
            lambda *a: BCEWithLogitsLoss(*a, torch.ones(4)),
            (2, 3),
            "weight: shape (4,) cannot be broadcast to the input, which has shape (2, 3)",
        ),
        (
            lambda *a: BCEWithLogitsLoss(*a, torch.ones(5, 2, 3)),
            (2, 3),
            "weight: shape (5, 2, 3) cannot be broadcast",
        ),
        (lambda *a: KLDivLoss(*a, "batchmean"), (), "batchmean divides by the first dimension"),
    ],
)
def test_weights_and_means_that_do_not_fit_the_input_are_refused_on_every_rank(
    adjointlab_world: World, make: Any, shape: tuple[int, ...], message: str
) -> None:
    ranks = min(adjointlab_world.ranks, 2)
    partition = reversed_line(ranks, 0, len(shape)) if shape else Partition(())
    assert message in error_of_every_rank(adjointlab_world, ranks, lambda comm: make(comm, partition, shape))


def test_a_loss_takes_the_partition_of_the_layer_before_it(adjointlab_world: World) -> None:
    if adjointlab_world.ranks < 2:
        pytest.skip("needs 2 ranks")

    def body(comm: Any) -> None:
        torch.manual_seed(0)
        dense = from_sequential(
            nn.Sequential(nn.Linear(4, 5)), comm, (2, 1), (6, 4), partitions={"0": (1, 2, 1)}
        )
        before = dense.codomain.tensors[0].layout.partition
        assert before.shape == (1, 2, 1)
        for partition in (before, dense.output_partition):
            layer = CrossEntropyLoss(comm, partition, (6, 5), dtype=DOUBLE)
            assert layer.partition.shape == (1, 2)
            assert_loss(comm, layer, nn.CrossEntropyLoss(), (drawn(6, 5), classes_of(5, 6)))
        pixels = from_sequential(nn.Sequential(nn.Conv2d(1, 3, 1)), comm, (1, 1, 1, 2), (2, 1, 3, 4))
        layer = CrossEntropyLoss(comm, pixels.output_partition, (2, 3, 3, 4), dtype=DOUBLE)
        wanted, given = (space.tensors[0].layout for space in (layer.domain, pixels.codomain))
        assert [wanted.window(rank) for rank in range(2)] == [given.window(rank) for rank in range(2)]
        with pytest.raises(ValueError, match=r"partition: of order 4 \(1x1x1x2\), but the input \[6, 5\]"):
            CrossEntropyLoss(comm, (1, 1, 1, 2), (6, 5))

    run_on_ranks(adjointlab_world, 2, body)
