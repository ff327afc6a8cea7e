"""A chain of layers as one module, and transfers of its state from and to the sequential network."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Self

import torch
from torch import nn

from adjointlab.core.partition import Partition
from adjointlab.core.space import Space
from adjointlab.layers.distributed import DistributedModule
from adjointlab.layers.grids import grid_of
from adjointlab.layers.networks.sources import is_chain
from adjointlab.layers.parameters import DistributedParameters, deepcopy_sharing
from adjointlab.layers.pointwise import elementwise_dtype
from adjointlab.layers.repartition import Repartition
from adjointlab.layers.states import distributed_layers, load_sequential_state_dict, sequential_state_dict
from adjointlab.typing import Communicator

__all__ = ["Network"]


class Network(nn.Sequential):
    """Layers in a chain: distributed ones, further networks, and torch modules without parameters.

    `comm` is the communicator of its layers. `domain` and `codomain` are the spaces of inputs and outputs, `parameter_space` and
    `buffer_space` those of parameters and buffers, under the names of ``named_parameters()`` and ``named_buffers()``. Repartitions
    between the layers have separate names, so that parameters have the names of the sequential network's.

    Raises `ValueError` unless the first and the last layer are distributed. A call raises it for a module between them that was put
    there by hand and would compute with this rank's part as if it were the whole tensor.
    """

    def __init__(self, layers: Mapping[str, nn.Module]) -> None:
        super().__init__(OrderedDict(layers))
        self._checked: tuple[nn.Module | None, ...] = ()
        self._ends()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the local tensor of y, from that of x. Raises the layers' errors, and `ValueError` for a module that is not a layer."""
        # Layers may be replaced at any time, and are checked again after that.
        if self._checked != (now := tuple(self._modules.values())):
            check_layers(self)
            self._checked = now
        result: torch.Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return result

    @property
    def comm(self) -> Communicator:
        """The communicator of the layers."""
        return self._ends()[0].comm

    @property
    def domain(self) -> Space:
        """The space of the input: that of the first layer."""
        return self._ends()[0].domain

    @property
    def codomain(self) -> Space:
        """The space of the output: that of the last layer."""
        return self._ends()[1].codomain

    @property
    def parameter_space(self) -> Space:
        """The space of the parameters, by their names in ``named_parameters()``."""
        return self._space("parameter_space")

    @property
    def buffer_space(self) -> Space:
        """The space of the buffers, by their names in ``named_buffers()``."""
        return self._space("buffer_space")

    @property
    def output_partition(self) -> Partition:
        """The partition of the output, with a dimension for each of the output's: for a loss, or for further layers."""
        return grid_of(self.codomain.tensors[0].layout)

    def sequential(self) -> nn.Module:
        """Return a new sequential network with the same arguments; its parameters are drawn from torch's generator."""
        return self._sequential("sequential")

    def to_sequential(self) -> nn.Module:
        """Collective: return the sequential network with all parameters and buffers gathered, on every rank."""
        return self._sequential("to_sequential")

    def sequential_state_dict(self, root: int | None = None) -> dict[str, torch.Tensor]:
        """Collective: :func:`adjointlab.layers.sequential_state_dict` of this network."""
        return sequential_state_dict(self, root)

    def load_sequential_state_dict(
        self, state: Mapping[str, torch.Tensor] | None, root: int | None = None
    ) -> None:
        """Collective: take the values of a sequential network's state_dict: :func:`adjointlab.layers.load_sequential_state_dict`."""
        load_sequential_state_dict(self, state, root)

    def _ends(self) -> tuple[DistributedModule | Network, DistributedModule | Network]:
        children = list(self._modules.values())
        ends = [
            each for each in (*children[:1], *children[-1:]) if isinstance(each, DistributedModule | Network)
        ]
        if len(ends) < 2:
            raise ValueError(
                "layers: the first and the last are distributed layers, which say where tensors lie"
            )
        return ends[0], ends[1]

    def _space(self, kind: str) -> Space:
        spaces: dict[str, Space] = {
            path: getattr(layer, kind) for path, layer in distributed_layers(self).items()
        }
        return Space(
            *(
                replace(tensor, name=f"{path}.{tensor.name}")
                for path, space in spaces.items()
                for tensor in space.tensors
            )
        )

    def _sequential(self, method: str) -> nn.Module:
        modules: OrderedDict[str, nn.Module] = OrderedDict()
        made: dict[nn.Module, nn.Module] = {}
        # Not `named_children`, which omits repetitions of a layer.
        for name, child in self._modules.items():
            if isinstance(child, Repartition):
                continue
            if child not in made:
                is_ours = isinstance(child, DistributedModule | Network)
                made[child] = getattr(child, method)() if is_ours else copy.deepcopy(child)
            modules[name] = made[child]
        result = nn.Sequential(modules)
        if method == "to_sequential":
            # Not `train`, which is recursive: each module has the mode of its layer.
            result.training = self.training
        return result

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Copy layers and hooks as :meth:`DistributedParameters.__deepcopy__` does; share the communicator."""
        return deepcopy_sharing(self, memo)


def check_layers(chain: nn.Module) -> None:
    """Raise `ValueError` for a module in a chain of layers that is not a layer, and would compute with a part as with the whole tensor."""
    for name, module in chain._modules.items():
        assert module is not None  # torch.nn.Sequential takes none
        if isinstance(module, DistributedModule | Network) or isinstance(
            getattr(module, "domain", None), Space
        ):
            continue
        kind = type(module)
        has_layers = any(isinstance(each, DistributedParameters) for each in module.modules())
        if has_layers and is_chain(module):
            check_layers(module)
        elif has_layers:
            distributed_layers(module)  # a composition of layers; raises if anything else has parameters
        elif not kind.__module__.startswith("torch.nn."):
            raise ValueError(
                f"network: {name} ({kind.__name__}) is not a distributed layer; give a function to Pointwise, or write a layer"
            )
        else:
            try:
                elementwise_dtype(module, torch.get_default_dtype())
            except ValueError as error:
                why = str(error).removeprefix("function: ")
                raise ValueError(
                    f"network: {name} is torch.nn.{kind.__name__}, which would take the part of a tensor that this rank has for the whole "
                    f"({why}); put a layer of adjointlab.layers there, or make the network of a torch.nn.Sequential that has the module"
                ) from None
