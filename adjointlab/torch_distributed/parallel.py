"""A parallel module under the names of the sequential one from which it is made, and the spaces of its parameters and buffers.

Nothing is declared by hand: DTensors have their placements, a plain parameter is a copy on every rank, and so is a plain output,
except along the mesh dimensions that share the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from adjointlab.core import arrays
from adjointlab.core.arrays import is_differentiable, to_numpy
from adjointlab.core.layer import OutputPath, PassHooks, element_type_noted, outputs_by_path, place_of
from adjointlab.core.operator import OtherOutputs
from adjointlab.core.pieces import Fused
from adjointlab.core.space import Space
from adjointlab.torch_distributed.data_parallel import is_data_parallel, is_flattening, kept_elsewhere
from adjointlab.torch_distributed.dtensors import (
    Placements,
    check_claim,
    from_local,
    restricted,
)
from adjointlab.torch_distributed.names import Names
from adjointlab.torch_distributed.numbering import Numbering
from adjointlab.torch_distributed.shared_tensors import DeclaredParameters, SharedTensors
from adjointlab.typing import Communicator, NumpyArray

__all__ = ["NamedModule", "ParallelModule", "Placing"]


@dataclass(frozen=True)
class Placing:
    """Placements of a module's tensors on the mesh; by default those of the batch."""

    batch: Placements
    inputs: Sequence[Placements] = ()
    outputs: Sequence[Placements] = ()
    gives_dtensors: bool = False  # the module gets its inputs as DTensors

    def of_input(self, number: int) -> Placements:
        return self.inputs[number] if number < len(self.inputs) else self.batch

    def of_output(self, number: int) -> Placements:
        return self.outputs[number] if number < len(self.outputs) else self.batch


class NamedModule(nn.Module):
    """A module for checks to call, with the `parameters` and `buffers` of `made`, the module under test, under sequential names."""

    forward_mode = False  # neither DTensor nor DistributedDataParallel supports it

    def __init__(
        self,
        made: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        buffers: Iterable[str],
        hooks: PassHooks,
    ) -> None:
        super().__init__()
        # Not as a child module, which would give its parameters longer names.
        self._made: Callable[[], nn.Module] = lambda: made
        # FSDP temporarily replaces the module's parameters.
        self._held = dict(parameters)
        self._buffer_names = tuple(buffers)
        self._hooks = hooks

    @property
    def made(self) -> nn.Module:
        """The module under test."""
        return self._made()

    @element_type_noted()
    def before_backward(self) -> None:
        """Let the user's code clear gradients that it keeps."""
        if self._hooks.before_backward is not None:
            self._hooks.before_backward(self.made)

    @element_type_noted()
    def after_backward(self) -> None:
        """Let the user's code reduce gradients."""
        if self._hooks.after_backward is not None:
            self._hooks.after_backward(self.made)

    @contextmanager
    def pass_context(self) -> Iterator[None]:
        """The context of a pass."""
        with element_type_noted(), self._hooks.context():
            yield

    def train(self, mode: bool = True) -> Self:
        self.made.train(mode)
        return super().train(mode)

    def modules(self, *_: Any, **__: Any) -> Iterator[nn.Module]:
        yield self
        yield from self.made.modules()

    def get_parameter(self, target: str) -> nn.Parameter:
        return self._held[target]

    def get_buffer(self, target: str) -> torch.Tensor:
        return self.made.get_buffer(target)

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return iter(self._held.items())

    def named_buffers(self, *_: Any, **__: Any) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, self.get_buffer(name)) for name in self._buffer_names)


class ParallelModule(NamedModule):
    """The `module` that was made from a sequential one, on plain local tensors; `names` are those of the parameters and buffers there.

    `outputs` are the paths and element types of the tensors that the sequential one returns, in order. Calls raise
    :class:`OtherOutputs` for other outputs, except that real ones may have another type if `in_another_type`. `wrappers` are
    data-parallel modules that were created with it; some may be outside of it.
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
        wrappers: Iterable[nn.Module],
        in_another_type: bool,
    ) -> None:
        paths = names.paths(module)
        parameters = {name: module.get_parameter(path) for name, path in paths.parameters.items()}
        super().__init__(module, parameters, paths.buffers, hooks)
        self._mesh, self._placing, self._shapes, self._names = mesh, placing, shapes, names
        self._wrappers = kept_elsewhere(module, wrappers)
        self._path_of_buffer = dict(paths.buffers)
        self._buffers_of_others: dict[str, torch.Tensor] = {}
        self._types, self._in_another_type = dict(outputs), in_another_type

    @property
    def is_data_parallel(self) -> bool:
        """True if a backward pass that reaches all parameters must follow each forward pass."""
        return any(map(is_data_parallel, self._parts()))

    @property
    def averages_gradients(self) -> bool:
        """True if torch averages gradients over ranks, which should then have different batches."""
        return any(is_data_parallel(part) or isinstance(part, FSDPModule) for part in self._parts())

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with self._empty_inputs_noted(inputs), self.pass_context():
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
        """Add a note to an exception on a rank without elements of an input: perhaps the code is right, and the batch size does not fit."""
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

    def _parts(self) -> Iterator[nn.Module]:
        yield from self.made.modules()
        yield from self._wrappers

    def reshard(self) -> None:
        """Free gathered copies of parameters, because these are about to change."""
        for part in self._parts():
            if callable(reshard := getattr(part, "reshard", None)):
                reshard()
            elif is_flattening(part):
                _free_gathered(part)

    def get_buffer(self, target: str) -> torch.Tensor:
        if target in self._buffers_of_others:
            return self._buffers_of_others[target]
        return self.made.get_buffer(self._path_of_buffer[target])

    def renumber(self, values: Mapping[str, NumpyArray], comm: Communicator) -> None:
        """Replace names that each rank numbers from 0 by those in the sequential module, found by its initial `values`. Collective.

        Only if some of the sequential names exist on no rank.
        """
        held = set().union(*comm.allgather(list(self._held)))
        if held == self._names.parameters.keys():
            return
        parts = {name: arrays.local_part(each.detach()) for name, each in self._held.items()}
        number = Numbering({name: to_numpy(part) for name, part in parts.items() if not part.is_meta}, values)
        renumbered = {number(name): each for name, each in self._held.items()}
        if len(renumbered) == len(self._held):  # not if a rank has the values of one of them twice
            self._held = renumbered
            self._path_of_buffer = {number(name): path for name, path in self._path_of_buffer.items()}

    def parameter_space(
        self, shared: SharedTensors, declared: DeclaredParameters
    ) -> tuple[Space, Mapping[str, Fused]]:
        """The space of its parameters, and the storage of fused, flattened or padded ones, by name. Collective.

        For parameters that only other ranks have, this one gets stand-ins of zero volume.
        """
        space, pieces = shared.parameters(self._held, self._names.parameters, declared)
        own = self._held
        self._held = {
            each.name: own[each.name] if each.name in own else shared.nothing_of(each)
            for each in space.tensors
        }
        return space, pieces

    def buffer_space(self, shared: SharedTensors) -> Space:
        """The space of its buffers. Collective. For buffers that only other ranks have, this one gets stand-ins of zero volume."""
        own = {name: self.get_buffer(name) for name in self._path_of_buffer}
        space = shared.buffers(own, self._names.buffers)
        self._buffer_names = self._names.buffers
        self._buffers_of_others = {
            each.name: shared.nothing_of(each).detach() for each in space.tensors if each.name not in own
        }
        return space


def _free_gathered(flattening: Any) -> None:
    """Free the gathered parameters of a FullyShardedDataParallel, for which there is no public method; before its first pass there are none."""
    handle = flattening._handle
    if handle is not None and handle.uses_sharded_strategy and hasattr(handle.flat_param, "_local_shard"):
        handle.reshard(free_unsharded_flat_param=True)


def _places(paths: Iterable[OutputPath]) -> str:
    return ", ".join(map(place_of, paths)) or "no place"


def _advice(dtype: torch.dtype, wanted: torch.dtype) -> str:
    """Advice, after a semicolon, for a module that computes in a narrower type than the sequential one; else empty."""
    if not (
        dtype.is_floating_point
        and wanted.is_floating_point
        and torch.finfo(dtype).eps > torch.finfo(wanted).eps
    ):
        return ""
    name = str(dtype).removeprefix("torch.")
    return f'; where it is meant to compute in that type, say rounding="{name}" in the dictionary or as an attribute of the module'
