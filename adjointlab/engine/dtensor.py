"""Functions of DTensors as layers or linear operators, with the spaces that follow from their placements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from adjointlab.core.arrays import DeviceType
from adjointlab.core.declaration import require_accepts
from adjointlab.core.layer import Layer, Prepare, elementwise, prepared
from adjointlab.core.operator import as_tuple
from adjointlab.core.space import Space
from adjointlab.engine.adapters import Differentiable, Parameters, Ranks, UserFunction
from adjointlab.engine.meshes import as_mesh, placements_of
from adjointlab.engine.sequential_module import shapes_of, type_of
from adjointlab.engine.user_layers import declared_tolerance, without
from adjointlab.typing import Communicator

if TYPE_CHECKING:
    import torch

    from adjointlab.torch_distributed.dtensor_function import DTensorFunction

__all__ = ["DTensorRecipe"]

_DECLARATIONS: Final = frozenset({"mesh", "inputs", "dtype", "placements", "rounding", "reach"})
"""Entries of a case that are not arguments of a function of DTensors."""


@dataclass(frozen=True)
class DTensorRecipe:
    """Applies a function of DTensors to the local tensors of a case, and the same function to plain tensors."""

    function: UserFunction
    reference: UserFunction
    prepare: Prepare = elementwise
    device_type: DeviceType = "cpu"

    def layer_on(self, device_type: DeviceType) -> tuple[Callable[..., Layer], UserFunction]:
        """The functions that make the layer and its twin on a device."""
        there = replace(self, device_type=device_type)
        return there.layer, there.twin

    def operator_on(self, device_type: DeviceType) -> tuple[Callable[..., Differentiable], UserFunction]:
        """The function that makes the linear operator on a device, and the plain function."""
        there = replace(self, device_type=device_type)
        return there.operator, there.apply

    def twin(self, /, **parameters: object) -> torch.nn.Module:
        """Wrap the plain function of a case in a module."""
        import torch

        reference, arguments = self.reference, without(parameters, _DECLARATIONS)

        class Twin(torch.nn.Module):
            def forward(self, *inputs: torch.Tensor) -> Any:
                return reference(*inputs, **arguments)

        return Twin()

    def apply(self, /, *tensors: Any, **parameters: object) -> Any:
        """The plain function on global tensors."""
        return self.reference(*tensors, **without(parameters, _DECLARATIONS))

    def layer(self, comm: Communicator, /, **parameters: Any) -> Layer:
        """The function as a layer without parameters. Collective."""
        made, domain = self._made(comm, parameters)
        tolerance = declared_tolerance(made, parameters)
        return Layer(
            comm,
            made,
            domain,
            made.codomain,
            Space(),
            Space(),
            **tolerance._asdict(),
            prepare=self.prepare,
            uniform_requires_grad=True,
        )

    def operator(self, comm: Communicator, /, **parameters: Any) -> Differentiable:
        """The function as a linear operator, whose adjoint is its gradient. Collective."""
        made, domain = self._made(comm, parameters)
        return Differentiable(comm, made, domain, made.codomain, {}, Ranks.PROCESS_GROUP, self.function)

    def _made(self, comm: Communicator, parameters: Parameters) -> tuple[DTensorFunction, Space]:
        import torch

        from adjointlab.torch_distributed.dtensor_function import DTensorFunction
        from adjointlab.torch_distributed.dtensors import space_on

        shapes, dtype = shapes_of(parameters["inputs"]), type_of(parameters)
        names = [f"x{number or ''}" for number in range(len(shapes))]
        for role, function in (("the function", self.function), ("the reference", self.reference)):
            require_accepts(role, function, names, without(parameters, _DECLARATIONS), sorted(_DECLARATIONS))
        shape_of_mesh = as_mesh(parameters["mesh"])
        placements = placements_of("placements", parameters, shapes, shape_of_mesh)
        mesh = shape_of_mesh.make_on(comm, self.device_type)
        domain = space_on(mesh, "x", placements, shapes, [dtype] * len(shapes))

        def zeros(sizes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
            return list(
                prepared(
                    self.prepare,
                    *(
                        torch.zeros(tuple(size), dtype=getattr(torch, dtype), device=self.device_type)
                        for size in sizes
                    ),
                )
            )

        with torch.random.fork_rng(devices=[]), torch.no_grad():
            whole = self.apply(*zeros(shapes), **parameters)
        local = [tensor.layout.local_shape(comm.Get_rank()) for tensor in domain.tensors]
        made = DTensorFunction(
            partial(self.function, **without(parameters, _DECLARATIONS)),
            mesh,
            placements,
            shapes,
            [tuple(y.shape) for y in as_tuple(whole)],
            zeros(local),
        )
        return made, domain
