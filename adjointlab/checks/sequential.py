"""Is the distributed result the sequential one?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adjointlab import arrays
from adjointlab.checks.bench import Bench
from adjointlab.checks.check import Check, Inapplicable, Spaces
from adjointlab.checks.compare import Local, Tolerance, first_difference
from adjointlab.checks.verdict import Verdict, coherent, incoherent
from adjointlab.layout import Layout
from adjointlab.space import Space, Tensor
from adjointlab.values import Draw, local_values

__all__ = ["SequentialCheck"]


@dataclass(frozen=True)
class Observation:
    """One rank's outputs; from rank 0 the sequential twin's, cut up as every rank should hold them."""

    outputs: Local
    expected: tuple[Local, ...] | None
    tolerance: Tolerance


class SequentialCheck(Check):
    """Compare with the subject's reference, a function from the global tensors to the global tensors."""

    name = "sequential"

    def observe(self, bench: Bench) -> Observation:
        bound = bench.integers()
        outputs = bench.numpy(bench.forward(bench.primal(0, bound)))
        if bench.rank:
            return Observation(outputs, None, bench.tolerance)
        if bench.reference is None:
            raise ValueError("the subject gives no reference to compare with")
        draw = Draw(bench.setting.seed, 0, "primal", bound)
        inputs = [
            arrays.from_numpy(_assembled(bench.domain, position, draw), tensor.dtype, bench.library)
            for position, tensor in enumerate(bench.domain.tensors)
        ]
        result = bench.reference(*inputs)
        whole = [arrays.to_numpy(a) for a in (result if isinstance(result, tuple | list) else (result,))]
        size = bench.comm.Get_size()
        expected = tuple(
            tuple(
                _held(tensor, array, rank)
                for tensor, array in zip(bench.codomain.tensors, whole, strict=True)
            )
            for rank in range(size)
        )
        return Observation(outputs, expected, bench.tolerance)

    def judge(self, spaces: Spaces, observations: Sequence[Observation]) -> Verdict:
        first = observations[0]
        assert first.expected is not None
        actual = [seen.outputs for seen in observations]
        if difference := first_difference(spaces.codomain, actual, first.expected, first.tolerance):
            where, got, want = difference
            return incoherent(
                "the distributed result is not the sequential one",
                ("element", where),
                ("distributed", got),
                ("sequential", want),
            )
        return coherent()


def _assembled(space: Space, position: int, draw: Draw) -> np.ndarray[Any, Any]:
    """The global tensor that the ranks' local values make up; summands are added."""
    tensor = space.tensors[position]
    layout = tensor.layout
    whole = np.zeros(layout.shape, dtype=local_values(space, position, layout.partition.ranks[0], draw).dtype)
    if any(
        copied and side > 1 and entry.value == "varying"
        for copied, side, entry in zip(layout.copied, layout.partition.shape, tensor.types, strict=True)
    ):
        raise Inapplicable(f"the copies in {tensor} have values of their own; there is no sequential input")
    for rank, first in tensor.groups.items():
        if rank == first:
            inside, there = _inside(layout, rank)
            whole[there] += local_values(space, position, rank, draw)[inside]
    return whole


def _held(tensor: Tensor, whole: np.ndarray[Any, Any], rank: int) -> np.ndarray[Any, Any]:
    """What `rank` should hold: its window, zero beyond the tensor; of a partial tensor the first rank has it all."""
    layout = tensor.layout
    local = np.zeros(layout.local_shape(rank), dtype=whole.dtype)
    if rank in tensor.summands and tensor.summands[rank] == rank:
        if whole.shape != layout.shape:
            raise ValueError(f"the reference returned shape {whole.shape}, but the codomain is {layout}")
        inside, there = _inside(layout, rank)
        local[inside] = whole[there]
    return local


def _inside(layout: Layout, rank: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The part of a rank's window that lies in the tensor: as an index of the local and of the global tensor."""
    window = layout.window(rank)
    assert window is not None
    there = []
    for (start, stop), side in zip(window, layout.shape, strict=True):
        low = min(max(start, 0), side)
        there.append((low, max(low, min(stop, side))))
    inside = tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(there, window, strict=True))
    return inside, tuple(slice(a, b) for a, b in there)
