"""ALLGATHER [Dryden19, section 2.3.4, * ← ◦]: every worker of a segment gets the whole of a dimension that is cut.

    G = D_{k} Π_{r,s ∈ {k}} S_{r→s[r]} A_{k}

for the workers {k} of each segment, s[r] being the part of worker s's new local tensor that worker r holds. The adjoint
adds the other way, G* = D_{k} Π S_{s[r]→r} A_{k}: a reduce-scatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from adjointlab.core.layout import Layout
from adjointlab.core.space import LocalType
from adjointlab.primitives import segments
from adjointlab.primitives.segmented_collectives import ALL_GATHER, DISCARD, REDUCE_SCATTER, SegmentedOperator
from adjointlab.primitives.validation import check_layout
from adjointlab.typing import Communicator

__all__ = ["AllGather"]


class AllGather(SegmentedOperator):
    """Makes dimension `dim` of x whole on every worker of the segments along which it is cut.

    `layout` lays x over its partition; dimension `dim` is cut along one dimension p of the partition, in any widths,
    empty ones too. y has the layout of x, with that dimension whole. The workers along p then hold copies, of the local type
    `copies`:

    - "varying": each copy counts separately, as in [Hewett21], and the adjoint sums, which is a reduce-scatter;
    - "replicated": the same, and the adjoint sums the summands of one cotangent;
    - "invariant": the copies count once, and the adjoint keeps this worker's part of the cotangent, without a message.

    `types` are the local types of x, for each dimension of the partition; y has the same along all but p.
    For forward, adjoint and errors see :class:`SegmentedOperator`. Also raises `ValueError` for a dimension that is not cut.
    """

    symbol = "AllGather"

    def __init__(
        self,
        comm: Communicator,
        layout: Layout,
        dim: int,
        *,
        dtype: str = "float64",
        types: Sequence[LocalType | str] = (),
        copies: Literal["varying", "replicated", "invariant"] = "varying",
    ) -> None:
        check_layout("layout", layout, comm)
        along = segments.axis_of_cut(layout, dim)
        wide_type = segments.local_type("copies", copies, ("varying", "replicated", "invariant"))
        adjoint = DISCARD if wide_type is LocalType.INVARIANT else REDUCE_SCATTER
        wide = segments.wide_layout(layout, dim)
        super().__init__(comm, layout, wide, dim, along, dtype, types, wide_type, (ALL_GATHER, adjoint))
