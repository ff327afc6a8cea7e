"""REDUCESCATTER [Dryden19, section 2.3.5, ◦ ← Σ̃ *]: sums the local tensors of a segment, and leaves each worker a part.

    S = D_{k} Π_{r,s ∈ {k}} S_{s[r]→r} A_{k}

for the workers {k} of each segment, s[r] being the part of worker s's local tensor that worker r is left with. The adjoint
adds the other way, S* = D_{k} Π S_{r→s[r]} A_{k}: an all-gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from adjointlab.core.layout import Layout
from adjointlab.core.space import LocalType
from adjointlab.primitives import segments
from adjointlab.primitives.segmented_collectives import ALL_GATHER, REDUCE_SCATTER, SegmentedOperator
from adjointlab.primitives.validation import check_layout
from adjointlab.typing import Communicator

__all__ = ["ReduceScatter"]


class ReduceScatter(SegmentedOperator):
    """Sums x along dimension `along` of its partition and cuts dimension `dim` of the sum along it.

    `layout` lays x over its partition: every worker holds dimension `dim` whole, and the workers along `along` hold the
    same windows. They are copies with different values (`summands` "varying") or summands of one tensor ("partial").
    y has the layout of x, with dimension `dim` cut along `along` at `cut`, the boundaries, which may be uneven and leave empty
    parts (default: balanced).

    `types` are the local types of y, for each dimension of the partition; x has the same along all but `along`.
    For forward, adjoint and errors see :class:`SegmentedOperator`. Also raises `ValueError` for a dimension that is not whole, for workers
    along `along` that hold different windows, and for boundaries that do not cut the dimension.
    """

    symbol = "ReduceScatter"

    def __init__(
        self,
        comm: Communicator,
        layout: Layout,
        dim: int,
        along: int,
        *,
        cut: Sequence[int] | None = None,
        dtype: str = "float64",
        types: Sequence[LocalType | str] = (),
        summands: Literal["varying", "partial"] = "varying",
    ) -> None:
        check_layout("layout", layout, comm)
        narrow = segments.narrow_layout(layout, dim, along, cut)
        wide_type = segments.local_type("summands", summands, ("varying", "partial"))
        super().__init__(
            comm, narrow, layout, dim, along, dtype, types, wide_type, (REDUCE_SCATTER, ALL_GATHER)
        )
