"""SCATTER [Hewett21, sections 2.2 and 3.2.4]: cuts the tensor of one worker up among the workers of a partition.

    Scatter_{a→P_y} = T_{P_1→P_y},    Scatter*_{a→P_y} = T_{P_y→P_1}, the gather

with P_1 = 1 × ... × 1, the worker a.
"""

from __future__ import annotations

from collections.abc import Sequence

from adjointlab.core.layout import Layout
from adjointlab.core.space import LocalType
from adjointlab.primitives.repartition import Repartition
from adjointlab.primitives.validation import arguments_renamed, check_layout, single_worker
from adjointlab.typing import Communicator

__all__ = ["Scatter"]


class Scatter(Repartition):
    """The repartition from the worker `root`, which holds all of x, to `layout`, over which y lies.

    `types` are the local types of y. For forward, adjoint and errors see :class:`Repartition`.
    """

    symbol = "Scatter"

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
        with arguments_renamed(target_types="types"):
            super().__init__(comm, Layout(layout.shape, one), layout, dtype=dtype, target_types=types)
