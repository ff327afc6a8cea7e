"""Meshes and placements as a strategy gives them: extents with or without names, and lists of placements for each tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

from adjointlab.core.arrays import DeviceType
from adjointlab.core.declaration import SubjectError
from adjointlab.engine.adapters import Parameters
from adjointlab.quantities import counted
from adjointlab.typing import Communicator

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Placement

__all__ = ["MeshShape", "as_mesh", "piece_sizes", "placements_by_name", "placements_of"]


class MeshShape(NamedTuple):
    """Extents of a mesh, and the names of its dimensions, if they have any."""

    extents: tuple[int, ...]
    names: tuple[str, ...] | None

    def make_on(self, comm: Communicator, device_type: DeviceType) -> DeviceMesh:
        """The mesh of all ranks. Raises :class:`SubjectError` if their number does not fit. Collective."""
        from torch.distributed.device_mesh import init_device_mesh

        if math.prod(self.extents) != comm.Get_size():
            given = self.extents if self.names is None else dict(zip(self.names, self.extents, strict=True))
            raise SubjectError(
                f"mesh: {given} is of {counted(math.prod(self.extents), 'rank')}, and the case has {comm.Get_size()}: make it of the number "
                "of ranks that the strategy is given, or say with ranks=[...] in the declaration on how many the subject runs (check_parallel: "
                "give it as `mesh`)"
            )
        return init_device_mesh(device_type, self.extents, mesh_dim_names=self.names)

    def dim(self, key: str | int) -> int:
        """The number of a dimension given by name or number."""
        if isinstance(key, str):
            if self.names is None:
                raise SubjectError(
                    f"data_parallel: {key!r} is a name, and the dimensions of the mesh {self.extents} have none: give the mesh "
                    f'names, as in mesh=({key!r},), or the dimension its number, as in data_parallel={{0: "mean"}}'
                )
            if key not in self.names:
                raise SubjectError(f"data_parallel: the mesh has no dimension {key!r}, but {self.names}")
            return self.names.index(key)
        if not 0 <= key < len(self.extents):
            raise SubjectError(
                f"data_parallel: the mesh has no dimension {key}, but {counted(len(self.extents), 'dimension')} from 0 on"
            )
        return key


def as_mesh(given: Any) -> MeshShape:
    """The shape of a mesh from its extents, or from a mapping of names to extents. Raises :class:`SubjectError` for anything else."""
    extents = given.values() if isinstance(given, Mapping) else given
    if (
        not isinstance(extents, Iterable)
        or isinstance(extents, str)
        or not all(isinstance(extent, Integral) and int(extent) > 0 for extent in extents)
    ):
        raise SubjectError(
            f'mesh: {given!r} is neither a list of extents, such as (2, 2), nor {{"dp": 2, "tp": 2}}'
        )
    return MeshShape(tuple(map(int, extents)), tuple(given) if isinstance(given, Mapping) else None)


def placements_of(
    role: str, parameters: Parameters, shapes: Sequence[Sequence[int]], mesh: MeshShape
) -> tuple[Sequence[Placement], ...]:
    """The placements of a case's tensors in the `role`, of these `shapes`: one list for each of the first tensors, or the list itself for a single one.

    Raises :class:`SubjectError` for anything else.
    """
    from torch.distributed.tensor import Placement

    given = parameters.get(role, ())
    if not isinstance(given, Sequence):
        raise SubjectError(f"{role}: {given!r} is not a list of placements")
    if len(shapes) == 1 and given and all(isinstance(entry, Placement) for entry in given):
        given = (given,)
    if len(given) > len(shapes):
        raise SubjectError(f"{role}: {len(given)} lists of placements, for {counted(len(shapes), 'tensor')}")
    for entry, shape in zip(given, shapes, strict=False):
        _require_placements(role, entry, mesh, shape)
    return tuple(given)


def placements_by_name(
    parameters: Parameters, shapes: Mapping[str, Sequence[int]], mesh: MeshShape
) -> Mapping[str, Sequence[Placement]]:
    """The placements of a case's parameters that are not copies. Raises :class:`SubjectError` for a name that is not in `shapes`."""
    given = _by_name("parameter_placements", parameters, list(shapes), "dictionary", "[Shard(0)]")
    for name, placements in given.items():
        _require_placements(f"parameter_placements[{name!r}]", placements, mesh, shapes[name])
    return given


def piece_sizes(parameters: Parameters, names: Sequence[str]) -> Mapping[str, Sequence[int]]:
    """The sizes of the pieces of fused parameters, by name. Raises :class:`SubjectError` for a name not in `names`, and for invalid sizes."""
    given = _by_name("parameter_pieces", parameters, names, "dictionary of sizes", "(4, 2, 2)")
    for name, sizes in given.items():
        is_list = isinstance(sizes, Sequence) and not isinstance(sizes, str)
        if not is_list or not all(isinstance(size, int) and size > 0 for size in sizes):
            raise SubjectError(
                f"parameter_pieces[{name!r}]: {sizes!r} is not a list of sizes, such as (4, 2, 2)"
            )
    return given


def _by_name(
    role: str, parameters: Parameters, names: Sequence[str], kind: str, example: str
) -> Mapping[str, Any]:
    """An entry of a case that maps names of parameters. Raises :class:`SubjectError` if it is not a mapping, and for a name not in `names`."""
    given: Mapping[str, Any] = parameters.get(role, {})
    if not isinstance(given, Mapping):
        raise SubjectError(f'{role}: {given!r} is not a {kind}, such as {{"{names[0]}": {example}}}')
    for name in given:
        if name not in names:
            raise SubjectError(f"{role}: {name!r} is none of the parameters {', '.join(names)}")
    return given


def _require_placements(role: str, given: object, mesh: MeshShape, shape: Sequence[int]) -> None:
    """Raise :class:`SubjectError` for anything but a list of placements, on a mesh, of a tensor of this shape."""
    from torch.distributed.tensor import Placement

    order = len(mesh.extents)
    is_list = isinstance(given, Sequence) and all(isinstance(each, Placement) for each in given)
    if not is_list or len(given) != order:  # type: ignore[arg-type]  # a sequence, by the line above
        example = ", ".join(["Shard(0)"] * order)
        raise SubjectError(
            f"{role}: {given!r} is not a list of placements along the {counted(order, 'dimension')} of the mesh, such as [{example}]"
        )
    dims = range(-len(shape), len(shape))
    for each in given:  # type: ignore[attr-defined]
        if each.is_shard() and each.dim not in dims:
            raise SubjectError(
                f"{role}: {each!r} cuts none of the dimensions of a tensor of shape {tuple(shape)}"
            )
