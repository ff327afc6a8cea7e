"""ALLGATHER [Dryden19, section 2.3.4, * ← ◦]: every worker of a segment gets the whole of a dimension that is cut.

    G = D_{k} Π_{r,s ∈ {k}} S_{r→s[r]} A_{k}

for the workers {k} of each segment, s[r] being the part of worker s's new local tensor that worker r holds. The adjoint
adds the other way, G* = D_{k} Π S_{s[r]→r} A_{k}: a reduce-scatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from adjointlab.core.layout import Layout
from adjointlab.core.operator import LinearOperator
from adjointlab.core.program import Program
from adjointlab.core.space import LocalType, Space
from adjointlab.primitives import segments
from adjointlab.primitives.segmented_collectives import SegmentedCollectives
from adjointlab.primitives.validation import check_layout
from adjointlab.typing import Array, Communicator

__all__ = ["AllGather"]


class AllGather(LinearOperator):
    """Makes dimension `dim` of x whole on every worker of the segments along which it is cut.

    `layout` lays x over its partition; dimension `dim` is cut along one dimension p of the partition, in any widths,
    empty ones too. y lies as x does, with that dimension whole. The workers along p then hold copies, of the local type
    `copies`:

    - "varying": each copy has a memory of its own, as in [Hewett21], and the adjoint sums, which is a reduce-scatter;
    - "replicated": so it does, what it sums being the summands of one cotangent;
    - "invariant": the copies count once, and the adjoint keeps of the cotangent what is this worker's, without a message.

    `types` are the local types of x, for each dimension of the partition; y has the same along all but p.
    ``forward(x)`` and ``adjoint(y)`` take the local tensor and return a fresh one, or `out` (row-major, sharing no
    memory with the argument); an inactive worker returns a copy of its tensor of zero volume.

    Raises `ValueError` for a dimension that is not cut, for local types that do not fit, for ranks beyond the
    communicator's, and in a call, before its first message, for a local tensor that is not what the layout says.
    """

    symbol = "AllGather"
    batched = True

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
        check_layout("layout", layout, comm.Get_size())
        axis = segments.axis_of_cut(layout, dim)
        wide_type = segments.local_type("copies", copies, ("varying", "replicated", "invariant"))
        x, y = segments.narrow_and_wide(
            layout, segments.wide_layout(layout, dim), axis, dtype, types, wide_type, ("x", "y")
        )
        self.comm, self.dim = comm, dim
        self.domain, self.codomain = Space(x), Space(y)
        self.is_invariant = wide_type is LocalType.INVARIANT
        self.gain = self.fan_in = segments.gain_of(
            x, y, axis, adjoint=1 if self.is_invariant else layout.partition.shape[axis]
        )
        self._segment = SegmentedCollectives(comm, segments.segment_of(layout, dim, comm.Get_rank()), x, y)

    def specification(self) -> Program | tuple[Program, Program]:
        """G for each segment; with invariant copies, also the adjoint, in which each worker keeps its part."""
        (x,), (y,) = self.domain.tensors, self.codomain.tensors
        forward = segments.all_gather_program(x, y, self.dim)
        return (forward, segments.discard_program(x, y, self.dim)) if self.is_invariant else forward

    def forward(self, x: Array, out: Array | None = None) -> Any:
        """The local tensor of y = G x, in `out` if given."""
        return self._segment.gather(x, out)

    def adjoint(self, y: Array, out: Array | None = None) -> Any:
        """The local tensor of G* y, in `out` if given."""
        return self._segment.keep_part(y, out) if self.is_invariant else self._segment.sum_and_scatter(y, out)
