"""The distributed LeNet-5 [Hewett21, section 5]: spatial cuts before the classifier, feature cuts in it.

    forward    x ← tanh(Conv_1 x)    x ← Pool_1 x         over P_b x 1 x 1 x P_1 x P_0
               x ← tanh(Conv_2 x)    x ← Pool_2 x
               x ← flat(T x)                               from the spatial cut to one of the features, over P_fi
               x ← tanh(Lin_1 x)                           over P_fo x P_fi
               x ← tanh(Lin_2 x)                           over P_fi x P_fo, the transposed partition
               y ← Lin_3 x                                 over P_fo x P_fi
    adjoint    that of each step in the reverse order

The output of a linear layer is cut over P_fo, on the workers whose index along P_fi is 0. These are the workers
on which the next layer, over the transposed partition, expects its input, so that between them nothing is sent.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import torch
from torch import nn

from adjointlab.core.partition import Partition
from adjointlab.core.space import Space
from adjointlab.layers.convolution import Conv2d
from adjointlab.layers.distributed import DistributedModule
from adjointlab.layers.flatten import Flatten
from adjointlab.layers.linear import Linear
from adjointlab.layers.pooling import AvgPool2d
from adjointlab.typing import Communicator

__all__ = ["LeNet5", "sequential_lenet5"]

_SIDE = 32


class LeNet5(nn.Module):
    """LeNet-5 for `batch` images of 1 x 32 x 32, over workers `spatial` (P_1 x P_0) and `features` (P_fo x P_fi).

    The logits of its output are cut over P_fo; `domain` and `codomain` say where inputs and outputs lie. Parameters are named
    as those of :meth:`sequential`, and for the same state of torch's generator have the same values.

    Raises `ValueError` for partitions that are not of order 2.
    """

    def __init__(
        self,
        comm: Communicator,
        batch: int,
        spatial: Partition,
        features: Partition,
        classes: int = 10,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if spatial.order != 2 or features.order != 2:
            raise ValueError(f"spatial, features: {spatial} and {features} are not both of order 2")
        self.comm, self.classes, self.dtype = comm, classes, dtype
        # Batch, output channels, input channels; batch, channels; batch: none of them is cut.
        convolved = Partition((1, 1, 1, *spatial.shape), spatial.ranks)
        pooled = Partition((1, 1, *spatial.shape), spatial.ranks)
        dense = Partition((1, *features.shape), features.ranks)
        transposed = Partition((1, *features.shape[::-1]), features.transpose().ranks)
        module = self.sequential().get_submodule
        self.convolution_1 = Conv2d(comm, convolved, (batch, 1, _SIDE, _SIDE), module("convolution_1"))
        self.pooling_1 = AvgPool2d(comm, pooled, (batch, 6, 28, 28), module("pooling_1"), dtype=dtype)
        self.convolution_2 = Conv2d(comm, convolved, (batch, 6, 14, 14), module("convolution_2"))
        self.pooling_2 = AvgPool2d(comm, pooled, (batch, 16, 10, 10), module("pooling_2"), dtype=dtype)
        self.linear_1 = Linear(comm, dense, (batch, 400), module("linear_1"))
        (wanted,) = self.linear_1.domain.tensors
        self.flatten = Flatten(comm, pooled, (batch, 16, 5, 5), target=wanted.layout, dtype=dtype)
        self.linear_2 = Linear(comm, transposed, (batch, 120), module("linear_2"))
        self.linear_3 = Linear(comm, dense, (batch, 84), module("linear_3"))
        self.domain, self.codomain = self.convolution_1.domain, self.linear_3.codomain
        self.parameter_space = Space(
            *(
                replace(tensor, name=f"{name}.{tensor.name}")
                for name, layer in self._layers().items()
                for tensor in layer.parameter_space.tensors
            )
        )

    def sequential(self) -> nn.Module:
        """The sequential network with the same arguments."""
        return sequential_lenet5(self.classes, self.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The local tensor of the logits, from that of the images."""
        x = self.pooling_1(torch.tanh(self.convolution_1(x)))
        x = self.pooling_2(torch.tanh(self.convolution_2(x)))
        x = torch.tanh(self.linear_1(self.flatten(x)))
        x = torch.tanh(self.linear_2(x))
        y: torch.Tensor = self.linear_3(x)
        return y

    def sequential_state_dict(self) -> dict[str, torch.Tensor]:
        """Collective: the state_dict of the sequential network, on every rank."""
        return {
            f"{name}.{key}": value
            for name, layer in self._layers().items()
            for key, value in layer.sequential_state_dict().items()
        }

    def load_sequential_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take the values of a sequential network's state_dict, which every rank has; nothing is sent."""
        for name, layer in self._layers().items():
            prefix = f"{name}."
            layer.load_sequential_state_dict(
                {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
            )

    def _layers(self) -> dict[str, DistributedModule]:
        return {
            name: layer
            for name, layer in self.named_children()
            if isinstance(layer, DistributedModule) and layer.parameter_space.tensors
        }


def sequential_lenet5(classes: int = 10, dtype: torch.dtype | None = None) -> nn.Module:
    """The sequential network; its modules have the names of the distributed network's."""
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            convolution_1=nn.Conv2d(1, 6, 5, dtype=dtype),
            tanh_1=nn.Tanh(),
            pooling_1=nn.AvgPool2d(2),
            convolution_2=nn.Conv2d(6, 16, 5, dtype=dtype),
            tanh_2=nn.Tanh(),
            pooling_2=nn.AvgPool2d(2),
            flatten=nn.Flatten(),
            linear_1=nn.Linear(400, 120, dtype=dtype),
            tanh_3=nn.Tanh(),
            linear_2=nn.Linear(120, 84, dtype=dtype),
            tanh_4=nn.Tanh(),
            linear_3=nn.Linear(84, classes, dtype=dtype),
        )
    )
