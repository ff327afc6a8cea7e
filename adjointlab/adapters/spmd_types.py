"""spmd_types: its tensors, which have a type along each axis of a device mesh, as spaces.

Its types are the lab's, along each axis (``docs/local-types.md``):

    R    replicate    replicated            V       varying, a tensor of this shape on each rank
    I    invariant    invariant             S(i)    varying, cut along tensor dimension i as ``torch.chunk`` cuts
    P    partial      partial

    @adjointlab.subject.autograd(on_mesh(lambda x: spmd.all_reduce(x, "tp", dst=spmd.I)), process_group=True)
    def sums(draw, ranks):
        return typed({"tp": ranks}, draw(adjointlab.strategies.shapes(2)), src={"tp": spmd.P}, dst={"tp": spmd.I})

The type checker of spmd_types is not turned on: it patches classes of torch, for all threads at once, and simulated ranks
are threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from adjointlab.core.space import LocalType, Space

__all__ = ["on_mesh", "space_of", "typed"]

Axes: TypeAlias = Mapping[str, int]
"""Number of ranks along each axis of a mesh, outermost first."""

SpmdTypes: TypeAlias = Mapping[str, object]
"""R, I, V, P or S(i) by the name of the axis."""

_LOCAL_TYPES: Final[Mapping[str, LocalType]] = MappingProxyType(
    {"R": LocalType.REPLICATED, "I": LocalType.INVARIANT, "V": LocalType.VARYING, "P": LocalType.PARTIAL}
)


def typed(
    mesh: Axes,
    shape: Sequence[int],
    *,
    src: SpmdTypes,
    dst: SpmdTypes,
    result: Sequence[int] | None = None,
    dtype: str = "float64",
) -> dict[str, Any]:
    """The case of a function from `src` to `dst` for :func:`on_mesh`: `mesh`, `domain`, and `codomain`.

    `shape` is that of the argument, and also of the result unless `result` is given; both as in :func:`space_of`.
    """
    return {
        "mesh": dict(mesh),
        "domain": space_of(mesh, src, shape, dtype=dtype),
        "codomain": space_of(mesh, dst, shape if result is None else result, dtype=dtype, name="y"),
    }


def space_of(
    mesh: Axes,
    types: SpmdTypes,
    shape: Sequence[int],
    *,
    partition_spec: Iterable[str | tuple[str, ...] | None] = (),
    dtype: str = "float64",
    name: str = "x",
) -> Space:
    """The space of a tensor with these `types` along the axes of `mesh`.

    `shape` is the global one if the ranks hold parts (``S(i)``), and the local one otherwise. A
    `partition_spec` gives the axes that cut each tensor dimension, in place of ``S(i)``. Raises `ValueError` for an axis without
    a type, for one that the mesh does not have, and for types that the shape does not allow.
    """
    cuts = _cuts(partition_spec, mesh)
    if twice := sorted(set(cuts) & set(types)):
        raise ValueError(f"partition_spec: the axis {twice[0]!r} is in it, and has a type in `types` too")
    given = {**types, **cuts}
    if unknown := sorted(set(given) - set(mesh)):
        raise ValueError(f"types: the mesh has no axis {unknown[0]!r}, but {', '.join(mesh)}")
    if missing := [axis for axis in mesh if axis not in given]:
        raise ValueError(f"types: the axis {missing[0]!r} has none; give it R, I, V, P or S(i)")
    placements = [_placement(given[axis]) for axis in mesh]
    return Space.of_dtensor(tuple(mesh.values()), placements, shape, dtype, name)


def on_mesh(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make ``function(x, **arguments)`` run on the mesh of a case, where collectives of spmd_types refer to axes by name.

    The returned function takes the mesh as an additional argument ``mesh``, which is not passed on.
    """

    @wraps(function)
    def run(*tensors: Any, mesh: Axes, **arguments: Any) -> Any:
        import spmd_types
        from torch.distributed.device_mesh import init_device_mesh

        made = init_device_mesh("cpu", tuple(mesh.values()), mesh_dim_names=tuple(mesh))
        with spmd_types.set_current_mesh(made):
            return function(*tensors, **arguments)

    return run


def _cuts(partition_spec: Iterable[str | tuple[str, ...] | None], mesh: Axes) -> dict[str, object]:
    """The types of the axes in a PartitionSpec: S(i)."""
    from torch.distributed.tensor import Shard

    order = list(mesh)
    found: dict[str, object] = {}
    for dim, entry in enumerate(partition_spec):
        axes = (entry,) if isinstance(entry, str) else entry or ()
        # The axes cut in the order of the mesh, as its dimensions cut a DTensor.
        if list(axes) != [axis for axis in order if axis in axes] or set(axes) & set(found):
            raise ValueError(
                f"partition_spec: {axes} cut dimension {dim}; give axes of the mesh, each once, in its order: {', '.join(order)}"
            )
        found.update(dict.fromkeys(axes, Shard(dim)))
    return found


def _placement(type_: object) -> object:
    """The placement for a type along an axis, as :meth:`Space.of_dtensor` takes it."""
    if type(type_).__name__ == "Shard":  # of spmd_types or of DTensor: they have the same attribute
        return type_
    name = str(getattr(type_, "value", type_))
    if name not in _LOCAL_TYPES:
        raise ValueError(f"types: {type_!r} is not one of R, I, V, P and S(i)")
    return _LOCAL_TYPES[name].value
