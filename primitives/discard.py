"""DISCARD [Dryden19, section 2.3.4, ◦ ← *]: each worker of a segment keeps its part of a dimension that it holds whole.

    Δ = D_{k} Π_{r ∈ {k}} S_{r[r]→r} A_{k}

for the workers {k} of each segment, r[r] being the part of worker r's local tensor that it keeps. The adjoint puts the
part where it was and zeros around it, Δ* = D_{k} Π S_{r→r[r]} A_{k}, unless copies count once: then it is an all-gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from adjointlab.core.layout import Layout
from adjointlab.core.space import LocalType
from adjointlab.primitives import segments
from adjointlab.primitives.segmented_collectives import ALL_GATHER, DISCARD, SURROUND, SegmentedOperator
from adjointlab.primitives.validation import check_layout
from adjointlab.typing import Communicator

__all__ = ["Discard"]


class Discard(SegmentedOperator):
    """Cuts dimension `dim` of x, which every worker holds whole, along dimension `along` of the partition.

    `layout` lays x over its partition; the workers along `along` hold the same windows. y has the layout of x, with dimension
    `dim` cut along `along` at `cut`, the boundaries, which may be uneven and leave empty parts (default: balanced). The
    forward direction is local. The adjoint follows from the local type of the copies of x, `copies`:

    - "varying": each copy counts separately, as in [Hewett21], and gets its part of y with zeros around it;
    - "replicated": the same, and the results are summands of the cotangent;
    - "invariant": the copies count once, and the adjoint is an all-gather.

    `types` are the local types of y, for each dimension of the partition; x has the same along all but `along`.
    For forward, adjoint and errors see :class:`SegmentedOperator`. Also raises `ValueError` for a dimension that is not whole, for workers
    along `along` that hold different windows, and for boundaries that do not cut the dimension.
    """

    symbol = "Discard"

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
        copies: Literal["varying", "replicated", "invariant"] = "varying",
    ) -> None:
        check_layout("layout", layout, comm)
        narrow = segments.narrow_layout(layout, dim, along, cut)
        wide_type = segments.local_type("copies", copies, ("varying", "replicated", "invariant"))
        adjoint = ALL_GATHER if wide_type is LocalType.INVARIANT else SURROUND
        super().__init__(comm, narrow, layout, dim, along, dtype, types, wide_type, (DISCARD, adjoint))
