from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.primitives.send_receive import SendReceive

LAYOUT = Layout([3], Partition([1], [2]))
I, O = np.eye(3), np.zeros((3, 3))  # noqa: E741


@pytest.mark.parametrize(("form", "blocks"), [("copy", [[I], [I]]), ("move", [[I]])])
def test_a_send_receive_is_a_copy_or_a_move_out_of_place(form: Any, blocks: Any, spmd: Any) -> None:
    """Eqs. 11 and 14 with a and b on different workers."""

    def body(comm: Any) -> Any:
        operator = SendReceive(comm, LAYOUT, 0, form=form)
        return operator.matrix(), operator.H.matrix()

    for forward, adjoint in spmd(3, body):
        np.testing.assert_array_equal(forward, np.block(blocks))
        np.testing.assert_array_equal(adjoint, np.block(blocks).T)


def test_the_adjoint_of_a_move_is_the_move_back(spmd: Any) -> None:
    """Eq. 15."""

    def body(comm: Any) -> Any:
        there = SendReceive(comm, LAYOUT, 0, form="move")
        back = SendReceive(comm, there.codomain.tensors[0].layout, 2, form="move")
        assert (back.domain, back.codomain) == (there.codomain, there.domain)
        return there.H.matrix(), back.matrix()

    for adjoint, back in spmd(3, body):
        np.testing.assert_array_equal(adjoint, back)


def test_several_sources_an_unknown_form_and_a_missing_rank_are_refused(spmd: Any) -> None:
    with pytest.raises(ValueError, match="layout: lies over the 2 workers"):
        spmd(2, lambda comm: SendReceive(comm, Layout([3], Partition([2])), 0))
    with pytest.raises(ValueError, match="form: 'swap' is neither"):
        spmd(3, lambda comm: SendReceive(comm, LAYOUT, 0, form="swap"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^destination: 3 is not a rank"):
        spmd(3, lambda comm: SendReceive(comm, LAYOUT, 3))


def test_the_two_cotangents_of_a_copy_come_in_one_batch(spmd: Any) -> None:
    def body(comm: Any) -> None:
        adjoint = SendReceive(comm, Layout([3], Partition([1])), 0).adjoint
        for x, y in ((np.ones(3), np.ones((3, 3))), (np.ones((3, 3)), np.ones(3))):
            with pytest.raises(ValueError, match=r"^y: shape .* but x has .* one batch, or none does"):
                adjoint(x, y)
        with pytest.raises(ValueError, match=r"^arguments: 1 on rank 0, but the operator takes 2: x, y"):
            adjoint(np.ones(3))

    spmd(1, body)
