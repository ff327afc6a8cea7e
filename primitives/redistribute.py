"""REDISTRIBUTE [Dryden19, sections 2.3.4 and 2.3.5]: from one assignment of a tensor's dimensions to another.

    y[◦_0, *] ← x[*, ◦_0]          y[◦_1] ← Σ̃_0 x[◦_1]

As a map it is the sum over the summands, then a repartition: every worker gets its window of the sum. The implementation follows
a plan that is made once: the cheapest chain of all-gathers, discards, reduce-scatters, all-reduces and all-to-alls in their
segments; :mod:`adjointlab.primitives.redistribution_plan` defines these steps. If there are summands, something other than such a
chain may be cheaper: a repartition that sums as it goes (:class:`Repartition` of a partial tensor), or an all-to-all before the
sum. The adjoint is the chain of the adjoints in reverse order, whatever it costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

from adjointlab.core import arrays
from adjointlab.core.arguments import check_argument
from adjointlab.core.operator import LinearOperator
from adjointlab.core.partition import PartitionLike, integers
from adjointlab.core.program import Program
from adjointlab.core.space import LocalType, Space, Tensor
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.assignment import Assignment, checked_assignment, layout_of, local_types, subscript
from adjointlab.primitives.collectives import result_with_views
from adjointlab.primitives.redistribution_plan import PlanStep, StepKind, cheapest
from adjointlab.primitives.repartition import Repartition, repartition_programs
from adjointlab.primitives.segmented_collectives import SegmentedCollectives
from adjointlab.primitives.segments import Segment, local_type
from adjointlab.primitives.validation import partition_of
from adjointlab.typing import Array, Communicator

__all__ = ["Redistribute"]

_Apply: TypeAlias = Callable[[Array, Array | None], Array]


class _Stage(NamedTuple):
    """A step of the plan on this rank, in both directions; each writes into given memory or a fresh array."""

    forward: _Apply
    adjoint: _Apply


class Redistribute(LinearOperator):
    """Brings a tensor of `shape` from one assignment to another, over the workers of one processor grid.

    `source` and `target` have for each dimension of the tensor the grid dimensions that it is distributed over: () where
    it is whole ([Dryden19]'s *), (0,) or (1, 2) where it is cut along them (◦), by balanced and nested cuts; see
    :mod:`adjointlab.primitives.assignment`. Each grid dimension is used at most once. Along those that are not used, the
    redundant ones, lie copies of the local type `copies`, "replicated" or "invariant"; but along the grid dimensions
    `partial` lie summands in the source, which are summed (Σ̃).

    The layouts of x and y have one partition dimension for each distributed dimension of the tensor, which merges its
    grid dimensions, then the redundant grid dimensions. `plan` has the steps, the same on all ranks.

    ``forward(x)`` and ``adjoint(y)`` take the local tensor and return a fresh one, or `out` (row-major, sharing no
    memory with the argument); a worker outside the grid returns a copy of its tensor of zero volume. Intermediate tensors
    are in memory that is made once and reused.

    Raises `ValueError` for assignments that the tensor or the grid does not have, for summands along a grid dimension
    that the source is distributed over, for ranks beyond the communicator's, and in a call, before its first message, for
    a local tensor that is not what the layout says.
    """

    symbol = "Redistribute"
    batched = True

    def __init__(
        self,
        comm: Communicator,
        grid: PartitionLike,
        shape: Sequence[int],
        source: Sequence[Sequence[int]],
        target: Sequence[Sequence[int]],
        *,
        partial: Sequence[int] = (),
        dtype: str = "float64",
        copies: Literal["replicated", "invariant"] = "replicated",
    ) -> None:
        grid = partition_of("grid", grid, comm)
        self.comm, self.grid, self.shape = comm, grid, integers("shape", shape)
        self.source = checked_assignment("source", grid, len(self.shape), source, partial)
        self.target = checked_assignment("target", grid, len(self.shape), target)
        self.copies = local_type("copies", copies, ("replicated", "invariant"))
        self.domain = Space(self._tensor(self.source, dtype, "x"))
        self.codomain = Space(self._tensor(self.target, dtype, "y"))
        copied = self.target.redundant(grid.shape) if self.copies is LocalType.REPLICATED else ()
        # The number of summands, and the number of cotangents of copies, which the adjoint sums.
        self.gain = self.fan_in = max(
            math.prod(grid.shape[axis] for axis in axes) for axes in (self.source.summed, copied)
        )
        self.plan = cheapest(grid.shape, self.shape, self.source, self.target)
        self._rank = comm.Get_rank()
        self._stages = [self._stage(step, dtype) for step in self.plan.steps]
        # Both directions go through the same intermediate tensors, never at the same time, and share the memory for them.
        self._intermediates = [self._tensor(step.target, dtype, "x") for step in self.plan.steps[:-1]]
        self._reused: dict[tuple[int, Hashable], Array] = {}

    def specification(self) -> Program | tuple[Program, Program]:
        """The program of the repartition between the two layouts, whatever the plan: every summand goes directly to every
        worker that holds a part of it in the target; of several copies, the first one goes.
        """
        return repartition_programs(self.domain, self.codomain)

    def notation(self) -> list[str]:
        """The redistribution in [Dryden19]'s notation, and the steps of its plan."""
        sums = f"Σ̃{subscript(self.source.summed)} " if self.source.summed else ""
        grid = "x".join(map(str, self.grid.shape)) or "()"
        steps = [f"{number}. {step.text()}" for number, step in enumerate(self.plan.steps, start=1)]
        return [
            f"{self.target.text('y')} ← {sums}{self.source.text('x')} on a grid of {grid}",
            *(steps or ["nothing to be done"]),
        ]

    def forward(self, x: Array, out: Array | None = None) -> Array:
        """The local tensor of y, in `out` if given."""
        stages = [stage.forward for stage in self._stages]
        return self._apply(stages, range(len(stages) - 1), self.domain, self.codomain, x, out)

    def adjoint(self, y: Array, out: Array | None = None) -> Array:
        """The local tensor of the cotangent of x, in `out` if given."""
        stages = [stage.adjoint for stage in reversed(self._stages)]
        between = reversed(range(len(stages) - 1))
        return self._apply(stages, between, self.codomain.dual, self.domain.dual, y, out)

    def _tensor(self, assigned: Assignment, dtype: str, name: str) -> Tensor:
        types = local_types(self.grid, assigned, self.copies)
        return Tensor(layout_of(self.grid, self.shape, assigned), dtype, types, name)

    def _stage(self, step: PlanStep, dtype: str) -> _Stage:
        """Make a step of the plan on this rank.

        If copies are invariant, so that they count once, the adjoints of an all-gather, a discard and an all-reduce need no sum:
        in turn, each worker keeps its part, gathers the parts, and has the cotangent already.
        """
        source, target = self._tensor(step.source, dtype, "x"), self._tensor(step.target, dtype, "y")
        is_invariant = self.copies is LocalType.INVARIANT
        match step.kind:
            case StepKind.ALL_GATHER:
                segment = SegmentedCollectives(self.comm, self._segment(step, source, target), source, target)
                return _Stage(segment.gather, segment.keep_part if is_invariant else segment.sum_and_scatter)
            case StepKind.DISCARD:
                segment = SegmentedCollectives(self.comm, self._segment(step, target, source), target, source)
                return _Stage(
                    segment.keep_part, segment.gather if is_invariant else segment.surround_with_zeros
                )
            case StepKind.REDUCE_SCATTER:
                segment = SegmentedCollectives(self.comm, self._segment(step, target, source), target, source)
                return _Stage(segment.sum_and_scatter, segment.gather)
            case StepKind.ALL_REDUCE:
                redundant = step.source.redundant(self.grid.shape)
                # The redundant grid dimensions are the last ones of the layout's partition.
                first = source.layout.partition.order - len(redundant)
                dims = [first + redundant.index(axis) for axis in step.along]
                all_reduce = AllSumReduce(self.comm, source.layout, dims, dtype=dtype)
                return _Stage(all_reduce.forward, self._copy if is_invariant else all_reduce.adjoint)
            case StepKind.ALL_TO_ALL:
                repartition = _repartition(self.comm, source, target)
                return _Stage(repartition.forward, repartition.adjoint)

    def _segment(self, step: PlanStep, narrow: Tensor, wide: Tensor) -> Segment | None:
        """Return the workers along the step's grid dimensions, and their parts of the wide local tensor."""
        window = wide.layout.window(self._rank)
        if window is None:
            return None
        assert step.dim is not None
        ranks = self.grid.subpartition(step.along, self._rank).ranks
        # Parts are relative to the wide window, which may itself be a part: the dimension may be cut along others too.
        first = window[step.dim][0]
        parts = []
        for rank in ranks:
            start, stop = (narrow.layout.window(rank) or ())[step.dim]
            parts.append((start - first, stop - first))
        return Segment(step.dim, ranks, tuple(parts))

    def _copy(self, array: Array, out: Array | None) -> Array:
        """Return the argument, copied into given memory or a fresh array."""
        if out is None:
            return arrays.copy(array)
        arrays.copy_into(out, array)
        return out

    def _apply(
        self,
        stages: Sequence[_Apply],
        between: Iterable[int],
        source: Space,
        target: Space,
        array: Array,
        out: Array | None,
    ) -> Array:
        """Apply the stages in order; `between` has the numbers of the intermediate tensors after each stage but the last."""
        batch = check_argument(source.tensors[0], array, self._rank)
        if not self.grid.is_active(self._rank):
            return arrays.copy(array)
        result, array, filled = result_with_views(target.tensors[0], array, out, self._rank, batch)
        if not stages:
            self._copy(array, filled)
            return result
        # Only the last stage writes into the result. Batches differ in size, so their intermediates are not kept.
        *first, last = stages
        for stage, number in zip(first, between, strict=True):
            array = stage(array, None if batch else self._intermediate(number, array))
        last(array, filled)
        return result

    def _intermediate(self, number: int, like: Array) -> Array:
        """Return memory for the tensor after step `number`: made once for each kind of memory."""
        key = (number, arrays.memory_kind(like))
        if key not in self._reused:
            tensor = self._intermediates[number]
            with arrays.outside_inference_mode(like):
                self._reused[key] = arrays.empty(tensor.layout.local_shape(self._rank), tensor.dtype, like)
        return self._reused[key]


def _repartition(comm: Communicator, source: Tensor, target: Tensor) -> Repartition:
    return Repartition(
        comm, source.layout, target.layout, dtype=source.dtype, types=source.types, target_types=target.types
    )
