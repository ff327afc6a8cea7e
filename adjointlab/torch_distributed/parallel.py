"""A parallel module under the names of the sequential one that it is made from, and the spaces of what it holds.

Nothing is declared by hand: DTensors say how they lie on their meshes, a plain parameter is a copy on every rank, and a plain output is one
too, but for the mesh dimensions that share the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import nn
from torch.distributed._composable.contract import STATE_KEY
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.nn.parallel import DistributedDataParallel

from adjointlab.core import arrays
from adjointlab.core.arrays import dtype_name, is_differentiable, to_numpy
from adjointlab.core.layer import OutputPath, PassHooks, element_type_noted, outputs_by_path, place_of
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
from adjointlab.torch_distributed.flat_parts import begins_of, flattened
from adjointlab.torch_distributed.fused import pieces_apart, pieces_of_sizes
from adjointlab.torch_distributed.held_parts import HeldPart, agreed, as_held, grid_of_holders
from adjointlab.torch_distributed.names import Names, missing
from adjointlab.torch_distributed.numbering import Numbering
from adjointlab.typing import Communicator, NumpyArray

__all__ = ["NamedModule", "ParallelModule", "Placing"]


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
        paths = names.paths(module)
        parameters = {name: module.get_parameter(path) for name, path in paths.parameters.items()}
        super().__init__(module, parameters, paths.buffers, hooks)
        self._mesh, self._placing, self._shapes, self._names = mesh, placing, shapes, names
        self._path_of_buffer = dict(paths.buffers)
        self._buffers_of_others: dict[str, torch.Tensor] = {}
        self._types, self._in_another_type = dict(outputs), in_another_type

    @property
    def is_data_parallel(self) -> bool:
        """True if a backward pass by all parameters has to follow each forward pass."""
        return _has_flat_parameters(self.made) or any(map(_is_data_parallel, self.made.modules()))

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with element_type_noted(), self._empty_inputs_noted(inputs), self.pass_context():
            outputs = outputs_by_path(self.made(*map(self._given, range(len(inputs)), inputs)))
        if outputs.keys() != self._types.keys():
            raise OtherOutputs(
                f"tensors are returned at {_places(outputs)}, and by the sequential module at {_places(self._types)}"
            )
        return tuple(
            self._received(number, outputs[path], dtype)
            for number, (path, dtype) in enumerate(self._types.items())
        )

    @contextmanager
    def _empty_inputs_noted(self, inputs: Sequence[torch.Tensor]) -> Iterator[None]:
        """Note of an exception on a rank that has nothing of an input: the sizes of the batch, and not the code, may be what does not fit."""
        try:
            yield
        except Exception as error:
            for local, shape in zip(inputs, self._shapes, strict=True):
                if math.prod(shape) and not local.numel():
                    error.add_note(
                        f"this rank has nothing of an input of shape {tuple(shape)}, which is cut as torch.chunk does: where code needs elements "
                        "on every rank, choose sizes of which all ranks of a case have some, or fix the mesh"
                    )
                    break
            raise

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
            elif _is_flattening(part):
                _free_gathered(part)

    def get_buffer(self, target: str) -> torch.Tensor:
        if target in self._buffers_of_others:
            return self._buffers_of_others[target]
        return self.made.get_buffer(self._path_of_buffer[target])

    def renumber(self, values: Mapping[str, NumpyArray], comm: Communicator) -> None:
        """Take the names that the sequential module has for what ranks count from 0 each, if no rank has some: its initial `values` tell. Collective."""
        held = set().union(*comm.allgather(list(self._held)))
        if held == self._names.parameters.keys():
            return
        parts = {name: arrays.local_part(each.detach()) for name, each in self._held.items()}
        number = Numbering({name: to_numpy(part) for name, part in parts.items() if not part.is_meta}, values)
        renumbered = {number(name): each for name, each in self._held.items()}
        if len(renumbered) == len(self._held):  # not so where a rank has the values of one of them twice
            self._held = renumbered
            self._path_of_buffer = {number(name): path for name, path in self._path_of_buffer.items()}

    def parameter_space(
        self,
        declared: Mapping[str, Placements],
        sizes: Mapping[str, Sequence[int]],
        values: Mapping[str, NumpyArray] | None,
        comm: Communicator,
    ) -> tuple[Space, Mapping[str, Fused]]:
        """The space of its parameters, and how it has fused or flattened ones, by name. Collective.

        Plain ones that are no copies have `declared` placements, and of fused ones pieces of other `sizes` than equal ones. Of those
        that other ranks alone have, this one gets one of zero volume. Initial `values` tell where flat parts lie.
        """
        shapes, own = self._names.parameters, dict(self._held)
        accounts = {name: self._part(name, held, declared, shapes[name]) for name, held in own.items()}
        for name, account in accounts.items():
            if account.is_flat and values is not None:
                begins = begins_of(to_numpy(own[name].detach()), values[name])
                accounts[name] = replace(account, begins=begins)
        tensors: list[Tensor] = []
        pieces_of: dict[str, Fused] = {}
        for name, parts in self._parts_of_ranks("parameter", shapes, accounts, comm):
            first = agreed(name, parts)
            grid = grid_of_holders(self._mesh, name, parts)
            if any(part.is_flat for part in parts.values()):
                flat = flattened(name, parts, grid, comm.Get_rank())
                if flat is None:
                    raise _misfit(name, first.local_shape or (), first.shape, self._mesh)
                tensors.append(flat[0])
                pieces_of[name] = flat[1]
                continue
            shape, (pieces, placements) = first.shape, pieces_apart(first.placements, first.shape)
            if name in sizes:
                pieces_of[name] = pieces_of_sizes(name, sizes[name], placements, shape, grid.shape)
            elif pieces is not None:
                pieces_of[name], shape = pieces, tuple(pieces.shape_of(shape))
            tensor = tensor_on(grid, placements, shape, first.dtype, name)
            tensors.append(tensor if name in pieces_of else as_held(tensor, parts))
        self._held = {name: own[name] if name in own else self._nothing_of(shapes[name]) for name in shapes}
        return Space(*tensors), pieces_of

    def buffer_space(self, comm: Communicator) -> Space:
        """The space of its buffers. Collective. Of those that other ranks alone have, this one gets one of zero volume."""
        names = self._names.buffers
        if not names:
            return Space()
        own = {name: self.get_buffer(name) for name in names if name in self._path_of_buffer}
        accounts = {name: self._part(name, held, {}, held.shape) for name, held in own.items()}
        tensors: list[Tensor] = []
        for name, parts in self._parts_of_ranks("buffer", names, accounts, comm):
            first = agreed(name, parts)
            grid = grid_of_holders(self._mesh, name, parts)
            tensors.append(tensor_on(grid, first.placements, first.shape, first.dtype, name))
            if name not in own:
                self._buffers_of_others[name] = self._nothing_of(first.shape).detach()
        self._buffer_names = names
        return Space(*tensors)

    @staticmethod
    def _parts_of_ranks(
        kind: str, names: Iterable[str], accounts: Mapping[str, HeldPart], comm: Communicator
    ) -> Iterator[tuple[str, Mapping[int, HeldPart]]]:
        """The accounts of each parameter or buffer with these names, by the ranks that have it. Collective. Raises `TypeError` where none has."""
        every = comm.allgather(dict(accounts))
        for name in names:
            parts = {rank: held[name] for rank, held in enumerate(every) if name in held}
            if not parts:
                raise missing(kind, name, accounts)
            yield name, parts

    def _part(
        self, name: str, held: torch.Tensor, declared: Mapping[str, Placements], shape: Sequence[int]
    ) -> HeldPart:
        placements, shape = self._placed(name, held, declared, shape)
        local = None if isinstance(held, DTensor) else tuple(held.shape)
        return HeldPart(tuple(placements), tuple(shape), local, dtype_name(held))

    def _nothing_of(self, shape: Sequence[int]) -> nn.Parameter:
        """A stand-in, of zero volume, for a parameter that other ranks alone have; of integers, which never require a gradient."""
        nothing = torch.empty((0,) * max(1, len(shape)), dtype=torch.int64, device=self._mesh.device_type)
        return nn.Parameter(nothing, requires_grad=False)

    def _placed(
        self, name: str, held: torch.Tensor, declared: Mapping[str, Placements], shape: Sequence[int]
    ) -> tuple[Placements, Sequence[int]]:
        """The placements and the global shape of a parameter or buffer, which is of this `shape` unless it says so itself."""
        if isinstance(held, DTensor):
            check_claim(held)
            return extended(self._mesh, held.device_mesh, held.placements), tuple(held.shape)
        # Those of one dimension may be consecutive elements of one that is flattened.
        if name not in declared and tuple(held.shape) != tuple(shape) and held.ndim != 1:
            raise _misfit(name, held.shape, shape, self._mesh)
        return declared.get(name, [Replicate()] * self._mesh.ndim), shape


def _misfit(name: str, own: Sequence[int], shape: Sequence[int], mesh: DeviceMesh) -> TypeError:
    """The error for a plain part of a parameter of this `shape`, which nobody has said how ranks share."""
    shapes = f"the parameter {name} has shape {tuple(own)}, and the sequential one {tuple(shape)}"
    if len(own) != len(shape):
        return TypeError(
            f"{shapes}: no placement has parts of another number of dimensions. Keep as parameters the parts that ranks have of it in its own "
            "shape, or consecutive elements of it in one dimension, which may be padded to one length"
        )
    likely = _likely_placements(own, shape, mesh)
    return TypeError(
        f'{shapes}: say how the ranks share it, with parameter_placements={{"{name}": [{likely}]}} in the dictionary of the strategy'
    )


def _likely_placements(part: Sequence[int], shape: Sequence[int], mesh: DeviceMesh) -> str:
    """Placements that a plain part of a parameter of this `shape` may have: cut along the last mesh dimension, where it is smaller."""
    smaller = [dim for dim, (own, whole) in enumerate(zip(part, shape, strict=True)) if own < whole]
    cut = smaller[0] if smaller else 0
    return ", ".join(["Replicate()"] * (mesh.ndim - 1) + [f"Shard({cut})"])


def _has_flat_parameters(module: nn.Module) -> bool:
    """Return True if a part is of torch's FullyShardedDataParallel."""
    return any(map(_is_flattening, module.modules()))


def _is_flattening(part: nn.Module) -> bool:
    """Return True for torch's FullyShardedDataParallel, which takes long to import."""
    return type(part).__name__ == "FullyShardedDataParallel"


def _free_gathered(flattening: Any) -> None:
    """Free the gathered parameters of a FullyShardedDataParallel, which no public method does; before its first pass there are none."""
    handle = flattening._handle
    if handle is not None and handle.uses_sharded_strategy and hasattr(handle.flat_param, "_local_shard"):
        handle.reshard(free_unsharded_flat_param=True)


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
