"""Megatron-style autograd functions: the regions that they enter and leave, as spaces.

Megatron, like fairscale and others after it, does not name types. Its functions move tensors between four kinds, on which forward and
backward passes agree (``docs/local-types.md``):

    whole     the same on all ranks, which use it alike; the gradient is whole too         invariant
    input     the same on all ranks, which go on differently; the gradient is summands     replicated
    summands  a sum that has not been carried out; the gradient is the same on all ranks   partial
    cut       a part on each rank, along the first or the last dimension                   varying

    @adjointlab.subject.autograd(copy_to_tensor_model_parallel_region, process_group=True)
    def copies(draw, ranks):
        return region("copy", draw(adjointlab.strategies.shapes(2)), ranks)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Final

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition, integers, whole_number
from adjointlab.core.space import LocalType, Space

__all__ = ["REGIONS", "region"]

_WHOLE, _INPUT, _SUMMANDS = LocalType.INVARIANT, LocalType.REPLICATED, LocalType.PARTIAL
_FIRST, _LAST = 0, -1

_Kind = LocalType | int
"""Local type of whole tensors, or the dimension along which they are cut."""

REGIONS: Final[Mapping[str, tuple[_Kind, _Kind]]] = MappingProxyType(
    {
        "copy": (_WHOLE, _INPUT),  # f
        "reduce": (_SUMMANDS, _WHOLE),  # g
        "scatter": (_WHOLE, _LAST),
        "gather": (_LAST, _WHOLE),
        "all-gather": (_LAST, _INPUT),
        "reduce-scatter": (_SUMMANDS, _LAST),
        "scatter sequence": (_WHOLE, _FIRST),
        "gather sequence": (_FIRST, _INPUT),
        "gather sequence, whole gradient": (_FIRST, _WHOLE),
        "reduce-scatter sequence": (_SUMMANDS, _FIRST),
        "sequence to hidden": (_FIRST, _LAST),
        "hidden to sequence": (_LAST, _FIRST),
    }
)
"""Kinds of function, with the types of argument and result; names follow those in Megatron."""


def region(
    kind: str, shape: Sequence[int], ranks: int, dtype: str = "float64", sizes: Sequence[int] | None = None
) -> dict[str, Space]:
    """The spaces `domain` and `codomain` of a function of this kind, one of :data:`REGIONS`, on tensors of global `shape`.

    A dimension that is cut is cut evenly, or into `sizes`, one for each rank, if they are given. Raises `ValueError` for another kind,
    and for a dimension that cannot be cut in this way.
    """
    if kind not in REGIONS:
        raise ValueError(f"kind: {kind!r} is not one of {', '.join(REGIONS)}")
    shape, ranks = integers("shape", shape), whole_number("ranks", ranks)
    if ranks < 1:
        raise ValueError(f"ranks: at least 1, not {ranks}")
    sizes = None if sizes is None else integers("sizes", sizes)
    argument, result = REGIONS[kind]
    return {
        "domain": _space(argument, shape, ranks, dtype, sizes, "x"),
        "codomain": _space(result, shape, ranks, dtype, sizes, "y"),
    }


def _space(
    kind: _Kind, shape: Sequence[int], ranks: int, dtype: str, sizes: Sequence[int] | None, name: str
) -> Space:
    if isinstance(kind, LocalType):
        copies = Layout(shape, Partition((ranks,)), axes=(None,) * len(shape))
        return Space(copies, dtype=dtype, types=(kind,), name=name)
    if not shape:
        raise ValueError("shape: () has no dimension that could be cut")
    dim = kind % len(shape)
    if sizes is None:
        if shape[dim] % ranks:
            raise ValueError(
                f"shape: {tuple(shape)} is not cut evenly along dimension {dim} over {ranks} ranks; give sizes"
            )
        sizes = [shape[dim] // ranks] * ranks
    if len(sizes) != ranks or sum(sizes) != shape[dim] or min(sizes) < 0:
        raise ValueError(
            f"sizes: {tuple(sizes)} are not those of {ranks} parts of dimension {dim}, which has {shape[dim]} elements"
        )
    grid = [ranks if k == dim else 1 for k in range(len(shape))]
    cuts = [(0, *accumulate(sizes)) if k == dim else None for k in range(len(shape))]
    return Space(Layout.cut(shape, Partition(grid), cuts), dtype=dtype, name=name)
