"""A parallel module under the names of the sequential one that it is made from, and the spaces of what it holds.

Nothing is declared by hand: DTensors say how they lie on their meshes, a plain parameter is a copy on every rank, and a plain output is one
too, but for the mesh dimensions that share the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn
from torch.distributed._composable.contract import STATE_KEY
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.nn.parallel import DistributedDataParallel

from adjointlab.core.arrays import dtype_name, is_differentiable
from adjointlab.core.layer import OutputPath, PassHooks, outputs_by_path, place_of
from adjointlab.core.operator import OtherOutputs
from adjointlab.core.pieces import Fused
from adjointlab.core.space import Space, Tensor
from adjointlab.torch_distributed.dtensors import (
    Placements,
    check_claim,
    extended,
    from_local,
    restricted,
    tensor_on,
)
from adjointlab.torch_distributed.fused import pieces_apart, pieces_of_sizes
from adjointlab.torch_distributed.names import Names

__all__ = [
    "NamedModule",
    "ParallelModule",
    "Placing",
]


@dataclass(frozen=True)
class Placing:
    """Placements of a module's tensors on the mesh; those of the batch where none are given."""

    batch: Placements
    inputs: Sequence[Placements] = ()
    outputs: Sequence[Placements] = ()
    gives_dtensors: bool = False  # hands over the inputs as DTensors

    def of_input(self, number: int) -> Placements:
        return self.inputs[number] if number < len(self.inputs) else self.batch

    def of_output(self, number: int) -> Placements:
        return self.outputs[number] if number < len(self.outputs) else self.batch


class NamedModule(nn.Module):
    """A module as it is called in a check, with the `parameters` and `buffers` of `made`, the module under test, by the names of a sequential one."""

    forward_mode = False  # neither DTensor nor DistributedDataParallel has one

    def __init__(
        self,
        made: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        buffers: Iterable[str],
        hooks: PassHooks,
    ) -> None:
        super().__init__()
        # No child, so that its parameters have no longer names here.
        self._made: Callable[[], nn.Module] = lambda: made
        # FSDP has others in their places for a while.
        self._held = dict(parameters)
        self._buffer_names = tuple(buffers)
        self._hooks = hooks

    @property
    def made(self) -> nn.Module:
        """The module under test."""
        return self._made()

    def before_backward(self) -> None:
        """Let the user's code clear gradients that it keeps."""
        if self._hooks.before_backward is not None:
            self._hooks.before_backward(self.made)

    def after_backward(self) -> None:
        """Let the user's code reduce gradients."""
        if self._hooks.after_backward is not None:
            self._hooks.after_backward(self.made)

    def pass_context(self) -> AbstractContextManager[object]:
        """The context of a pass."""
        return self._hooks.context()

    def train(self, mode: bool = True) -> Self:
        self.made.train(mode)
        return super().train(mode)

    def get_parameter(self, target: str) -> nn.Parameter:
        return self._held[target]

    def get_buffer(self, target: str) -> torch.Tensor:
        return self.made.get_buffer(target)

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return iter(self._held.items())

    def named_buffers(self, *_: Any, **__: Any) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, self.get_buffer(name)) for name in self._buffer_names)


class ParallelModule(NamedModule):
    """The `module` that was made of a sequential one, whose parameters and buffers have the `names` given, on plain local tensors.

    `outputs` are the paths and the element types of the tensors that the sequential one returns, in their order. Calls raise
    :class:`OtherOutputs` for others, but may have computed `in_another_type` of real numbers.
    """

    def __init__(
        self,
        module: nn.Module,
        mesh: DeviceMesh,
        placing: Placing,
        shapes: Sequence[Sequence[int]],
        outputs: Mapping[OutputPath, torch.dtype],
        names: Names,
        hooks: PassHooks,
        *,
        in_another_type: bool,
    ) -> None:
        path_of = names.paths(module)
        parameters = {name: module.get_parameter(path) for name, path in path_of.parameters.items()}
        super().__init__(module, parameters, path_of.buffers, hooks)
        self._mesh, self._placing, self._shapes, self._path_of = mesh, placing, shapes, path_of
        self._types, self._in_another_type = dict(outputs), in_another_type

    @property
    def is_data_parallel(self) -> bool:
        """True if a backward pass by all parameters has to follow each forward pass."""
        return _has_flat_parameters(self.made) or any(map(_is_data_parallel, self.made.modules()))

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with self.pass_context():
            outputs = outputs_by_path(self.made(*map(self._given, range(len(inputs)), inputs)))
        if outputs.keys() != self._types.keys():
            raise OtherOutputs(
                f"tensors are returned at {_places(outputs)}, and by the sequential module at {_places(self._types)}"
            )
        return tuple(
            self._received(number, outputs[path], dtype)
            for number, (path, dtype) in enumerate(self._types.items())
        )

    def _given(self, number: int, local: torch.Tensor) -> torch.Tensor:
        if not self._placing.gives_dtensors:
            return local
        return from_local(local, self._mesh, self._placing.of_input(number), self._shapes[number])

    def _received(self, number: int, output: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        are_alike = is_differentiable(output) and output.is_complex() == dtype.is_complex
        if are_alike and self._in_another_type:
            output = output.to(dtype)
        if output.dtype != dtype:
            raise OtherOutputs(
                f"y{number or ''} is of {output.dtype}, and the sequential one of {dtype}{_advice(output.dtype, dtype)}"
            )
        if not isinstance(output, DTensor):
            return output
        check_claim(output)
        wanted = restricted(self._mesh, output.device_mesh, self._placing.of_output(number))
        return output.redistribute(placements=wanted).to_local()

    def reshard(self) -> None:
        """Free gathered copies of parameters, which are about to change."""
        for part in self.made.modules():
            if callable(reshard := getattr(part, "reshard", None)):
                reshard()

    def get_buffer(self, target: str) -> torch.Tensor:
        return self.made.get_buffer(self._path_of.buffers[target])

    def parameter_space(
        self, declared: Mapping[str, Placements], sizes: Mapping[str, Sequence[int]]
    ) -> tuple[Space, Mapping[str, Fused]]:
        """The space of its parameters, and the pieces of fused ones by name.

        Plain ones that are no copies have `declared` placements, and of fused ones pieces of other `sizes` than equal ones.
        """
        tensors: list[Tensor] = []
        pieces_of: dict[str, Fused] = {}
        for name, held in self._held.items():
            placements, shape = self._placed(name, held, declared, self._path_of.shapes[name])
            pieces, placements = pieces_apart(placements, shape)
            if name in sizes:
                extents = tuple(self._mesh.shape)
                pieces_of[name] = pieces_of_sizes(name, sizes[name], placements, shape, extents)
            elif pieces is not None:
                pieces_of[name], shape = pieces, pieces.shape_of(shape)
            tensors.append(tensor_on(self._mesh, placements, shape, dtype_name(held), name))
        return Space(*tensors), pieces_of

    def buffer_space(self) -> Space:
        """The space of its buffers."""
        tensors = []
        for name, held in self.named_buffers():
            placements, shape = self._placed(name, held, {}, tuple(held.shape))
            tensors.append(tensor_on(self._mesh, placements, shape, dtype_name(held), name))
        return Space(*tensors)

    def _placed(
        self, name: str, held: torch.Tensor, declared: Mapping[str, Placements], shape: Sequence[int]
    ) -> tuple[Placements, Sequence[int]]:
        """The placements and the global shape of a parameter or buffer, which is of this `shape` unless it says so itself."""
        if isinstance(held, DTensor):
            check_claim(held)
            return extended(self._mesh, held.device_mesh, held.placements), tuple(held.shape)
        if name not in declared and tuple(held.shape) != tuple(shape):
            if _has_flat_parameters(self.made):
                raise TypeError(
                    "FullyShardedDataParallel flattens parameters, so that no rank has a part of one by itself: use torch's fully_shard"
                )
            shapes = (
                f"the parameter {name} has shape {tuple(held.shape)}, and the sequential one {tuple(shape)}"
            )
            if held.ndim != len(shape):
                raise TypeError(
                    f"{shapes}: no placement has parts of another number of dimensions. Flatten the sequential one too, or keep "
                    "as parameters the parts that ranks have of it in its own shape, and flatten those where they are used"
                )
            likely = _likely_placements(held, shape, self._mesh)
            raise TypeError(
                f'{shapes}: say how the ranks share it, with parameter_placements={{"{name}": [{likely}]}} in the dictionary of the strategy'
            )
        return declared.get(name, [Replicate()] * self._mesh.ndim), shape


def _likely_placements(held: torch.Tensor, shape: Sequence[int], mesh: DeviceMesh) -> str:
    """Placements that a plain part of a parameter of this `shape` may have: cut along the last mesh dimension, where it is smaller."""
    smaller = [dim for dim, (own, whole) in enumerate(zip(held.shape, shape, strict=True)) if own < whole]
    cut = smaller[0] if smaller else 0
    return ", ".join(["Replicate()"] * (mesh.ndim - 1) + [f"Shard({cut})"])


def _has_flat_parameters(module: nn.Module) -> bool:
    """Return True if a part is of torch's FullyShardedDataParallel, which takes long to import."""
    return any(type(part).__name__ == "FullyShardedDataParallel" for part in module.modules())


def _is_data_parallel(part: nn.Module) -> bool:
    """Return True for torch's DistributedDataParallel, and for a module of `replicate`, which keeps one out of sight."""
    states = vars(part).get(STATE_KEY, {}).values()
    return isinstance(part, DistributedDataParallel) or any(
        type(state).__module__ == "torch.distributed._composable.replicate" for state in states
    )


def _places(paths: Iterable[OutputPath]) -> str:
    return ", ".join(map(place_of, paths)) or "no place"


def _advice(dtype: torch.dtype, wanted: torch.dtype) -> str:
    """Advice for a module that is meant to compute in a narrower type than the sequential one, after a semicolon; else nothing."""
    if not (
        dtype.is_floating_point
        and wanted.is_floating_point
        and torch.finfo(dtype).eps > torch.finfo(wanted).eps
    ):
        return ""
    name = str(dtype).removeprefix("torch.")
    return f'; where it is meant to compute in that type, say rounding="{name}" in the dictionary or as an attribute of the module'


@dataclass(frozen=True)
class Paths:
    """Paths at which a module has the parameters and buffers of the sequential one; and the global shapes of its parameters."""

    parameters: Mapping[str, str]
    buffers: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Names:
    """Shapes of the parameters, and names of the buffers, of a sequential module; and by further names of a tied parameter the first one."""

    parameters: Mapping[str, tuple[int, ...]]
    buffers: tuple[str, ...]
    tied: Mapping[str, str]

    @classmethod
    def of(cls, module: nn.Module) -> Names:
        constants = {
            f"{path}.{name}".lstrip(".")
            for path, part in module.named_modules()
            for name in part._non_persistent_buffers_set
        }
        return cls(
            {name: tuple(held.shape) for name, held in module.named_parameters()},
            tuple(name for name, _ in module.named_buffers() if name not in constants),
            _tied(module),
        )

    def paths(self, module: nn.Module) -> Paths:
        """Raises `TypeError` for a module that has others, or lacks some."""
        owned = _owned(module.named_parameters(remove_duplicate=False), self.parameters)
        for path in owned:
            if (first := self.tied.get(path)) in owned:
                raise TypeError(
                    f"the parallel module has {path} and {first} as two parameters, and the sequential one as a single one: tie them again"
                )
        parameters = _paths("parameter", owned, self.parameters)
        held = _owned(module.named_buffers(remove_duplicate=False), self.buffers)
        buffers = _paths("buffer", held, self.buffers, others=True)
        return Paths(parameters, buffers, self.parameters)


def _tied(module: nn.Module) -> dict[str, str]:
    """The first name of each parameter that has several, by its other names."""
    first: dict[int, str] = {}
    names = [(name, id(held)) for name, held in module.named_parameters(remove_duplicate=False)]
    return {name: known for name, held in names if (known := first.setdefault(held, name)) != name}


def _owned(named: Iterable[tuple[str, torch.Tensor]], names: Collection[str]) -> list[str]:
    """One path of each tensor: of several paths the one that has a name among `names`, exactly if one does, else the longest name."""
    paths: dict[int, list[str]] = {}
    for path, held in named:
        paths.setdefault(id(held), []).append(path)
    return [
        max(each, key=lambda path: (path in names, len(sequential_name(path, names) or "")))
        for each in paths.values()
    ]


def _paths(
    kind: str, owned: Sequence[str], names: Collection[str], *, others: bool = False
) -> dict[str, str]:
    """The paths of `owned` by name. With `others`, those without a name are left out."""
    paths: dict[str, str] = {}
    for path in owned:
        name = sequential_name(path, names)
        if name is None and others:
            continue
        if name is None or name in paths:
            raise TypeError(
                f"the parallel module has a {kind} {path}, and the sequential one none of that name: both are compared by name"
            )
        paths[name] = path
    if missing := [name for name in names if name not in paths]:
        raise TypeError(
            f"the parallel module has no {kind} {missing[0]}, which the sequential one has{_advice_to_stack(missing[0], paths)}"
        )
    return {name: paths[name] for name in names if name in paths}


def _advice_to_stack(missing: str, found: Collection[str]) -> str:
    """The advice where each rank has some of several parameters, of one name but for its number, as of experts; else nothing."""
    number = re.compile(r"\d+")
    alike = [name for name in found if name != missing and number.sub("", name) == number.sub("", missing)]
    return (
        f", but {alike[0]}: of what ranks have some each, such as experts, stack the weights in one parameter, here and in the sequential "
        "module, and cut that along its first dimension"
        if alike
        else ""
    )


def sequential_name(path: str, names: Collection[str]) -> str | None:
    """The name without those parts that wrappers have added."""
    if path in names:
        return path
    parts = path.split(".")
    bare = ".".join(part for part in parts if part not in _WRAPPERS)
    shorter = (".".join(parts[start:]) for start in range(1, len(parts)))
    return next((name for name in (bare, *shorter) if name in names), None)


# DTensors and spaces


def from_local(
    local: torch.Tensor, mesh: DeviceMesh, placements: Placements, shape: Sequence[int]
) -> DTensor:
    """The DTensor of a global `shape` of which this rank holds `local`."""
    stride = tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
    return DTensor.from_local(
        local, mesh, placements, shape=torch.Size(shape), stride=stride, run_check=False
    )


def tensor_on(
    mesh: DeviceMesh, placements: Placements, shape: Sequence[int], dtype: str, name: str
) -> Tensor:
    """One tensor on a mesh of all ranks."""
    layout, types = placed(mesh, placements, shape)
    return Tensor(layout, type_in_space(dtype), tuple(map(LocalType, types)), name)


def space_on(
    mesh: DeviceMesh,
    name: str,
    placements: Sequence[Placements],
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[str],
) -> Space:
    """Tensors on a mesh of all ranks, which are called `name` and a number from the second on."""
    tensors = zip(placements, shapes, dtypes, strict=True)
    return Space(
        *(
            tensor_on(mesh, placement, shape, dtype, f"{name}{number or ''}")
            for number, (placement, shape, dtype) in enumerate(tensors)
        )
    )


def check_claim(tensor: DTensor) -> None:
    """Raise :class:`WrongClaim` where a DTensor holds another shape than its global shape and placements say."""
    if any(getattr(placement, "split_factor", 1) > 1 for placement in tensor.placements):
        return  # torch does not say how such shards are cut unevenly
    rank = torch.distributed.get_rank()
    claimed = _claimed_shape(tensor.device_mesh, tuple(tensor.placements), tuple(tensor.shape), rank)
    held = tuple(tensor._local_tensor.shape)
    if claimed is not None and held != claimed:
        raise WrongClaim(
            f"a DTensor claims shape {tuple(tensor.shape)} with placements {_text(tensor.placements)}, so {claimed} on rank {rank}, "
            f"and it holds {held} there"
        )


@lru_cache(maxsize=64)  # torch takes long to say which ranks a mesh has, and a function is called often
def _claimed_shape(
    mesh: DeviceMesh, placements: tuple[Placement, ...], shape: tuple[int, ...], rank: int
) -> tuple[int, ...] | None:
    """The local shape of a DTensor; None for reductions that have no local type, which hold what they like."""
    try:
        return placed(mesh, placements, shape).layout.local_shape(rank)
    except ValueError:
        return None


def _text(placements: Placements) -> str:
    return f"({', '.join(map(repr, placements))})"


def _extended(mesh: DeviceMesh, own: DeviceMesh, placements: Placements) -> list[Placement]:
    """Placements on `own`, a part of `mesh`, as placements on the whole."""
    extended: list[Placement] = [Replicate()] * mesh.ndim
    for placement, dims in zip(placements, _dims_of(mesh, own), strict=True):
        if len(dims) > 1 and not isinstance(placement, Replicate):
            raise NotImplementedError(
                f"{placement} on a mesh that flattens dimensions {dims} of the whole one"
            )
        for dim in dims:
            extended[dim] = placement
    return extended


def _restricted(mesh: DeviceMesh, own: DeviceMesh, placements: Placements) -> list[Placement]:
    """Placements on the whole `mesh` as placements on `own`, a part of it."""
    return [placements[dims[0]] if len(dims) == 1 else Replicate() for dims in _dims_of(mesh, own)]


@lru_cache(maxsize=64)  # as above, and each parameter asks
def _dims_of(mesh: DeviceMesh, own: DeviceMesh) -> tuple[tuple[int, ...], ...]:
    """For each dimension of `own`, those of `mesh` along which its ranks differ."""
    if own.mesh.shape == mesh.mesh.shape and torch.equal(own.mesh, mesh.mesh):
        return tuple((dim,) for dim in range(mesh.ndim))
    found = []
    for dim in range(own.ndim):
        ranks = own.mesh.movedim(dim, 0).reshape(own.size(dim), -1)[:, 0]
        places = torch.stack([(mesh.mesh == rank).nonzero()[0] for rank in ranks])
        found.append(tuple(k for k in range(mesh.ndim) if (places[:, k] != places[0, k]).any()))
    return tuple(found)
