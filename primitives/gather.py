"""GATHER [Hewett21, sections 2.2 and 3.2.4]: brings a tensor that is cut up among workers to one of them.

    Gather_{P_x→a} = T_{P_x→P_1},    Gather*_{P_x→a} = T_{P_1→P_x}, the scatter

with P_1 = 1 × ... × 1, the worker a.
"""

from __future__ import annotations

from collections.abc import Sequence

from adjointlab.core.layout import Layout
from adjointlab.core.space import LocalType
from adjointlab.primitives.repartition import Repartition
from adjointlab.primitives.validation import check_layout, single_worker
from adjointlab.typing import Communicator

__all__ = ["Gather"]


class Gather(Repartition):
    """The repartition from `layout`, over which x lies, to the worker `root`, which gets all of y.

    `types` are the local types of x. For forward, adjoint and errors see :class:`Repartition`.
    """

    symbol = "Gather"

    def __init__(
        self,
        comm: Communicator,
        layout: Layout,
        root: int = 0,
        *,
        dtype: str = "float64",
        types: Sequence[LocalType | str] = (),
    ) -> None:
        check_layout("layout", layout, comm)
        one = single_worker("root", root, layout.order, comm)
        super().__init__(comm, layout, Layout(layout.shape, one), dtype=dtype, types=types)
