"""A chain of layers as one module, and its way from and to the sequential network's state."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from adjointlab.core.space import Space, Tensor
from adjointlab.layers.distributed import DistributedModule
from adjointlab.layers.parameters import DistributedParameters
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
        children = list(self.children())
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

    @staticmethod
    def _tensors(layer: DistributedParameters, kind: str) -> tuple[Tensor, ...]:
        space: Space = getattr(layer, kind)
        return space.tensors

    def sequential(self) -> nn.Module:
        """A new sequential network with the same arguments; it draws its parameters from torch's generator."""
        return self._sequential("sequential")

    def to_sequential(self) -> nn.Module:
        """Collective: the sequential network with all parameters and buffers gathered, on every rank."""
        return self._sequential("to_sequential").train(self.training)

    def sequential_state_dict(self, root: int | None = None) -> dict[str, torch.Tensor]:
        """Collective: :func:`adjointlab.layers.sequential_state_dict` of this network."""
        return sequential_state_dict(self, root)

    def load_sequential_state_dict(self, state: Mapping[str, torch.Tensor], root: int | None = None) -> None:
        """Take the values of a sequential network's state_dict: :func:`adjointlab.layers.load_sequential_state_dict`."""
        load_sequential_state_dict(self, state, root)

    def _sequential(self, method: str) -> nn.Module:
        modules: OrderedDict[str, nn.Module] = OrderedDict()
        for name, child in self.named_children():
            if not isinstance(child, Repartition):
                is_ours = isinstance(child, DistributedModule | Network)
                modules[name] = getattr(child, method)() if is_ours else child
        return nn.Sequential(modules)
