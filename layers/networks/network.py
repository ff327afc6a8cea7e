"""A chain of layers as one module, and its way from and to the sequential network's state."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Self

import torch
from torch import nn

from adjointlab.core.partition import Partition
from adjointlab.core.space import Space, Tensor
from adjointlab.layers.distributed import DistributedModule
from adjointlab.layers.networks.grids import grid_of
from adjointlab.layers.parameters import DistributedParameters, deepcopy_sharing
from adjointlab.layers.repartition import Repartition
from adjointlab.layers.states import distributed_layers, load_sequential_state_dict, sequential_state_dict
from adjointlab.typing import Communicator

__all__ = ["Network"]


class Network(nn.Sequential):
    """Layers in a chain: distributed ones, further networks, and functions of torch's that have no parameters.

    `comm` is the communicator of its layers. `domain` and `codomain` say where inputs and outputs lie, `parameter_space` and `buffer_space` where parameters and buffers do,
    under the names that ``named_parameters()`` has. Repartitions between the layers have names of their own, so that parameters
    are named as the sequential network's.

    Raises `ValueError` unless the first and the last layer are distributed.
    """

    def __init__(self, layers: Mapping[str, nn.Module]) -> None:
        super().__init__(OrderedDict(layers))
        children = list(self)
        ends = [
            each for each in (*children[:1], *children[-1:]) if isinstance(each, DistributedModule | Network)
        ]
        if len(ends) < 2:
            raise ValueError(
                "layers: the first and the last are distributed layers, which say where tensors lie"
            )
        self.comm: Communicator = ends[0].comm
        self.domain: Space = ends[0].domain
        self.codomain: Space = ends[1].codomain
        self.parameter_space, self.buffer_space = (
            Space(
                *(
                    replace(tensor, name=f"{path}.{tensor.name}")
                    for path, layer in distributed_layers(self).items()
                    for tensor in self._tensors(layer, kind)
                )
            )
            for kind in ("parameter_space", "buffer_space")
        )

    @property
    def output_partition(self) -> Partition:
        """The partition of the output, with a dimension for each of its own: for a loss, or for further layers."""
        return grid_of(self.codomain.tensors[0].layout)

    @staticmethod
    def _tensors(layer: DistributedParameters, kind: str) -> tuple[Tensor, ...]:
        space: Space = getattr(layer, kind)
        return space.tensors

    def sequential(self) -> nn.Module:
        """A new sequential network with the same arguments; it draws its parameters from torch's generator."""
        return self._sequential("sequential")

    def to_sequential(self) -> nn.Module:
        """Collective: the sequential network with all parameters and buffers gathered, on every rank."""
        return self._sequential("to_sequential")

    def sequential_state_dict(self, root: int | None = None) -> dict[str, torch.Tensor]:
        """Collective: :func:`adjointlab.layers.sequential_state_dict` of this network."""
        return sequential_state_dict(self, root)

    def load_sequential_state_dict(
        self, state: Mapping[str, torch.Tensor] | None, root: int | None = None
    ) -> None:
        """Collective: take the values of a sequential network's state_dict: :func:`adjointlab.layers.load_sequential_state_dict`."""
        load_sequential_state_dict(self, state, root)

    def _sequential(self, method: str) -> nn.Module:
        modules: OrderedDict[str, nn.Module] = OrderedDict()
        made: dict[nn.Module, nn.Module] = {}
        # Not `named_children`, which leaves out a layer that stands there a second time.
        for name, child in self._modules.items():
            if isinstance(child, Repartition):
                continue
            if child not in made:
                is_ours = isinstance(child, DistributedModule | Network)
                made[child] = getattr(child, method)() if is_ours else copy.deepcopy(child)
            modules[name] = made[child]
        result = nn.Sequential(modules)
        if method == "to_sequential":
            # Not `train`, which reaches the modules below: each has the mode of its layer.
            result.training = self.training
        return result

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """A network with layers and hooks of its own, as :meth:`DistributedParameters.__deepcopy__` copies them; the communicator is shared."""
        return deepcopy_sharing(self, memo)
