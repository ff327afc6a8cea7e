"""A tensor that has no memory to send, on one rank or all, is refused on every rank in the same words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # only where there is torch

import adjointlab as al  # noqa: E402
from adjointlab.core.agreement import CheckedOperator  # noqa: E402
from adjointlab.layers import Conv1d  # noqa: E402
from adjointlab.primitives.repartition import Repartition  # noqa: E402

KINDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "sparse": (
        lambda x: x.to_sparse(),
        "x: on rank 1 it has the layout torch.sparse_coo; give it as tensor.to_dense()",
    ),
    "meta": (lambda x: x.to("meta"), "x: on rank 1 it lies on the device meta, which has no values"),
}


def of_layer(comm: Any, change: Callable[[Any], Any]) -> str:
    layer = Conv1d(comm, (1, 1, 1, 2), (1, 1, 6), nn.Conv1d(1, 1, 3))
    x = torch.ones(1, 1, 3)
    with pytest.raises(ValueError, match=r"^x: on rank 1") as raised:
        layer(change(x) if comm.Get_rank() == 1 else x)
    return str(raised.value)


def of_operator(comm: Any, change: Callable[[Any], Any]) -> str:
    operator = CheckedOperator(Repartition(comm, al.Layout((4,), (2,)), al.Layout((4,), (1,))))
    x = torch.ones(2, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"^x: on rank 1") as raised:
        operator.forward(change(x) if comm.Get_rank() == 1 else x)
    return str(raised.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", [of_layer, of_operator])
def test_every_rank_is_told_of_a_tensor_without_memory(
    adjointlab_world: Any, kind: str, call: Callable[..., str]
) -> None:
    if adjointlab_world.ranks < 2:
        pytest.skip("needs 2 ranks")
    change, text = KINDS[kind]
    run = adjointlab_world.run(lambda context, _: call(context.comm, change), None, 2)
    if adjointlab_world.is_leader:
        assert run.completed, str(run)
        assert set(run.values) == {text}
