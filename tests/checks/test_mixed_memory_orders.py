"""Memory is passed on as it lies only where it lies alike on all ranks, and cases are drawn in which it does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.check import check_named
from adjointlab.checks.context import InputSetting
from adjointlab.checks.memory_orders import MIXED_ORDERS, ORDERS, mixed, order_on, unmixed
from adjointlab.checks.verdict import Verdict
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget

pytestmark = pytest.mark.mpi_skip


@pytest.mark.parametrize("order", ORDERS)
def test_odd_ranks_have_row_major_memory_where_an_order_is_that_of_even_ranks(order: str) -> None:
    assert [order_on(rank, order) for rank in range(3)] == [order] * 3
    assert [order_on(rank, mixed(order)) for rank in range(3)] == [order, "row-major", order]
    assert unmixed(mixed(order)) == unmixed(order) == order
    assert (mixed(order) in MIXED_ORDERS) == (order != "row-major")
    assert mixed(mixed(order)) == mixed(order)


def moved(comm: Any, x: np.ndarray[Any, Any], step: int, order: Any) -> np.ndarray[Any, Any]:
    """The array of the rank `step` before this one, as its memory has it."""
    rank, size = comm.Get_rank(), comm.Get_size()
    sent = x.copy(order=order)
    received = np.empty_like(sent)
    comm.Sendrecv(sent, (rank + step) % size, 0, received, (rank - step) % size, 0)
    return received


def rings(order: str) -> Verdict:
    def forward(comm: Any, x: Any) -> Any:
        return moved(comm, x, 1, order)

    def adjoint(comm: Any, y: Any) -> Any:
        return moved(comm, y, -1, order)

    # Column-major as a whole or not at all: other views are copied to either order.
    @al.subject.pair(forward, adjoint, orders=["row-major", "column-major"])
    def copies(draw: Any, ranks: int) -> dict[str, Any]:
        whole = al.Layout((2, 3), al.Partition((ranks,)), axes=[None, None])
        space = al.Space(whole, types=("varying",))
        return dict(domain=space, codomain=space)

    return investigate(al.SimulatedWorld(3), copies, "purity", Budget(50, seed=1, shrinking=0)).verdict


def test_an_array_that_is_sent_as_it_lies_is_wrong_where_the_receiver_lays_it_out_otherwise() -> None:
    assert rings("C").is_coherent
    wrong = rings("K")
    assert not wrong.is_coherent
    assert wrong.headline.endswith("depends on where its argument lies in memory")
    assert any(label.startswith("column-major on even ranks argument") for label, _ in wrong.lines)


def test_a_setting_of_mixed_orders_is_plainer_with_one_order_and_plainest_in_row_major_memory() -> None:
    setting = InputSetting(5, "numpy", "offset on even ranks", "row-major")
    (one, uniform), (other, plainest) = check_named("adjoint").plainer_settings(setting)
    assert (uniform.primal_order, uniform.dual_order) == ("offset", "row-major")
    assert (plainest.primal_order, plainest.dual_order) == ("row-major", "row-major")
    assert one.kind == other.kind
    assert (
        "in one order, and wrong where they are offset on even ranks and row-major on the others" in one.text
    )


def test_tensors_of_torch_lie_in_mixed_orders_where_a_subject_names_one() -> None:
    torch: Any = pytest.importorskip("torch")
    dist: Any = torch.distributed

    class Summed(torch.autograd.Function):
        """Its clones have the memory order of what is cloned."""

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            total = x.clone()
            dist.all_reduce(total)
            return total

        backward = forward

    def verdict(**options: Any) -> Verdict:
        @al.subject.autograd(Summed, process_group=True, **options)
        def copies(draw: Any, ranks: int) -> dict[str, Any]:
            space = al.Space(al.Layout((2, 3), al.Partition((ranks,)), axes=[None, None]))
            return dict(domain=space, codomain=space)

        return investigate(al.SimulatedWorld(3), copies, "adjoint", Budget(40, seed=1, shrinking=0)).verdict

    assert verdict().is_coherent
    wrong = verdict(orders=["row-major", "column-major on even ranks"])
    assert wrong.headline == "mismatched collective"
