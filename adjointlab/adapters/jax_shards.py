"""The shards of JAX's global arrays as local tensors of ranks: rank r holds the shards of device r, and the first rank computes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from adjointlab.adapters.jax_arrays import Global, in_library, precision, put
from adjointlab.adapters.jax_programs import Program, is_shape
from adjointlab.core import arrays
from adjointlab.core.layer import Prepare
from adjointlab.core.operator import AdaptedOperator, Direction
from adjointlab.core.partition import Partition
from adjointlab.core.placements import sharded
from adjointlab.core.space import LocalType, Space, Tensor
from adjointlab.engine.adapters import UserFunction
from adjointlab.engine.subject import SubjectError
from adjointlab.quantities import counted
from adjointlab.typing import Array, Communicator

__all__ = ["ShardedFunction"]

_AXES: Final = ("x", "y", "z")


class ShardedFunction(AdaptedOperator):
    """A function of sharded arrays on this rank. Making one applies the function to zeros, to find the layout of results. Collective.

    ``prepare`` makes legal inputs from zeros in an array `library`.
    """

    def __init__(
        self,
        comm: Communicator,
        function: UserFunction,
        case: Mapping[str, Any],
        prepare: Prepare,
        library: str,
    ) -> None:
        self.comm, self._function = comm, function
        inputs, specs, dtype = case["inputs"], case["specs"], case.get("dtype", "float64")
        if is_shape(inputs):
            inputs, specs = (inputs,), (specs,)
        dtypes = [dtype] * len(inputs) if isinstance(dtype, str) else dtype
        for name, given in (("specs", specs), ("dtype", dtypes)):
            if len(given) != len(inputs) or (
                name == "specs" and any(isinstance(each, str) for each in given)
            ):
                raise SubjectError(
                    f"{name}: {given} is not a list of one for each of the inputs {list(inputs)}"
                )
        self._devices = _Devices.of(comm, case["mesh"], case["devices"])
        self._program = Program.of(function, case, self._devices.mesh)
        self._given = self._devices.placing("x", zip(inputs, specs, dtypes, strict=True))
        self.domain = self._given.space
        zeros = prepare(
            *self._zeros(library if all(arrays.supports(library, name) for name in dtypes) else "torch")
        )
        with precision(*zeros):
            results = (
                [(y.shape, self._devices.spec(y), y.dtype.name) for y in self._program.results(x)]
                if (x := self._given.gathered(comm, zeros))
                else None
            )
            self._returned = self._devices.placing("y", comm.bcast(results))
        self.codomain = self._returned.space

    def forward(self, *x: Array) -> tuple[Array, ...]:
        with precision(*x):
            at = self._given.gathered(self.comm, x)
            return self._returned.scattered(self.comm, self._program.results(at) if at else (), x[0])

    def adjoint(self, *y: Array) -> tuple[Array, ...]:
        return self.pullback(self._zeros(y[0]), y)

    def pullback(self, x: Sequence[Array], y: Sequence[Array]) -> tuple[Array, ...]:
        """This rank's part of the gradients at `x`. Collective."""
        with precision(*x, *y):
            at, cotangents = self._given.gathered(self.comm, x), self._returned.gathered(self.comm, y)
            found = self._program.gradients(at, cotangents) if at else ()
            return self._given.scattered(self.comm, found, y[0])

    def function(self, direction: Direction) -> UserFunction:
        return self._function

    def _zeros(self, like: Array | str) -> tuple[Array, ...]:
        rank = self.comm.Get_rank()
        return tuple(
            arrays.zeros(tensor.layout.local_shape(rank), tensor.dtype, like)
            for tensor in self.domain.tensors
        )


@dataclass(frozen=True)
class _Devices:
    """The mesh of a case, and for each device the rank whose part it holds."""

    mesh: Any
    ranks: Mapping[Any, int]

    @classmethod
    def of(cls, comm: Communicator, mesh: Any, ranks: Sequence[int]) -> _Devices:
        import jax

        if not isinstance(mesh, Mapping) and len(mesh) > len(_AXES):
            raise SubjectError(f"mesh: {mesh} has more axes than {', '.join(_AXES)}; give extents by name")
        extents = mesh if isinstance(mesh, Mapping) else dict(zip(_AXES, mesh, strict=False))
        if (size := math.prod(extents.values())) != len(ranks):
            raise SubjectError(
                f"mesh: {mesh} has {counted(size, 'device')}, and devices={tuple(ranks)} are {len(ranks)}: name those in the mesh as `devices`, "
                "which are all ranks by default, or make a mesh of all"
            )
        grid, present = Partition(tuple(extents.values()), ranks), jax.devices("cpu")
        if len(present) < comm.Get_size():
            raise SubjectError(
                f"the case has {comm.Get_size()} devices, and JAX {len(present)}: before it starts, call "
                'jax.config.update("jax_num_cpu_devices", 8), or draw fewer with ranks=[...]'
            )
        devices = [present[rank] for rank in grid.ranks]
        made = jax.sharding.Mesh(np.array(devices).reshape(grid.shape), tuple(extents))
        return cls(made, dict(zip(devices, grid.ranks, strict=True)))

    def spec(self, array: Global) -> tuple[Any, ...]:
        """The specification of an array; that of copies if it is not on the mesh."""
        is_here = getattr(array.sharding, "mesh", None) == self.mesh
        return tuple(array.sharding.spec) if is_here else ()

    def placing(self, name: str, described: Any) -> _Placing:
        """Make a placing from shapes, specifications and element types. Raises `ValueError` for sides that cannot be cut evenly."""
        from jax.sharding import NamedSharding, PartitionSpec

        axes = [*self.mesh.shape]
        grid = Partition([*self.mesh.shape.values()], self.ranks.values())
        tensors, shardings = [], []
        for number, (shape, spec, dtype) in enumerate(described):
            if len(spec) > len(shape):
                raise SubjectError(
                    f"specs: {spec} has more entries than {name}{number or ''} of shape {tuple(shape)} has dimensions"
                )
            names = {
                dim: (entry,) if isinstance(entry, str) else entry for dim, entry in enumerate(spec) if entry
            }
            if unknown := [axis for entry in names.values() for axis in entry if axis not in axes]:
                raise SubjectError(
                    f"specs: {spec} has the axis {unknown[0]}, and those of the mesh are {', '.join(axes)}; give extents by name as `mesh`"
                )
            shardings.append(NamedSharding(self.mesh, PartitionSpec(*spec)))
            cut_by = {dim: [axes.index(axis) for axis in entry] for dim, entry in names.items()}
            for dim, mesh_dims in cut_by.items():
                if shape[dim] % (parts := math.prod(grid.shape[mesh_dim] for mesh_dim in mesh_dims)):
                    raise ValueError(
                        f"inputs: JAX shards evenly, and {shape[dim]} is not divisible by {parts}, as {spec} has it for {tuple(shape)}"
                    )
            copies = len(axes) - sum(map(len, cut_by.values()))
            types = (LocalType.VARYING,) * len(cut_by) + (LocalType.INVARIANT,) * copies
            tensors.append(Tensor(sharded(grid, cut_by, shape), dtype, types, f"{name}{number or ''}"))
        return _Placing(Space(*tensors), shardings, self.ranks)


@dataclass(frozen=True)
class _Placing:
    """A space, with the sharding of each of its tensors on a mesh."""

    space: Space
    shardings: Sequence[Any]
    ranks: Mapping[Any, int]

    def gathered(self, comm: Communicator, local: Sequence[Array]) -> list[Global]:
        """The arrays whose shards ranks hold, on the first rank; none on others. Collective."""
        import jax

        parts = comm.gather(tuple(map(arrays.to_numpy, local)))
        return [
            jax.make_array_from_single_device_arrays(
                tensor.layout.shape,
                sharding,
                [put(parts[rank][number], tensor.dtype, device) for device, rank in self.ranks.items()],
            )
            for number, (tensor, sharding) in enumerate(zip(self.space.tensors, self.shardings, strict=True))
            if parts is not None
        ]

    def scattered(self, comm: Communicator, found: Sequence[Global], like: Array) -> tuple[Array, ...]:
        """The shards on this rank's device of arrays that the first rank has, in the library of `like`. Collective."""
        import jax

        placed = [jax.device_put(array, to) for array, to in zip(found, self.shardings, strict=False)]
        shards = [{self.ranks[shard.device]: shard.data for shard in y.addressable_shards} for y in placed]
        parts = [
            [
                np.array(held[rank]) if rank in held else np.zeros(tensor.layout.local_shape(rank))
                for tensor, held in zip(self.space.tensors, shards, strict=True)
            ]
            for rank in range(comm.Get_size() if placed else 0)
        ]
        return in_library(like, comm.scatter(parts or None), [tensor.dtype for tensor in self.space.tensors])
