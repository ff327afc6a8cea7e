"""The distributed LeNet-5 [Hewett21, section 5]: spatial cuts before the classifier, feature cuts in it.

    forward    x ← tanh(Conv_1 x)    x ← Pool_1 x         over P_n x 1 x 1 x P_1 x P_0
               x ← tanh(Conv_2 x)    x ← Pool_2 x
               x ← flat(T x)                               from the spatial cut to a cut of the features, over P_fi
               x ← tanh(Lin_1 x)                           over P_fo x P_fi
               x ← tanh(Lin_2 x)                           over P_fi x P_fo, the transposed partition
               y ← Lin_3 x                                 over P_fo x P_fi
    adjoint    that of each step in the reverse order

The output of a linear layer is cut over P_fo, on the workers whose index along P_fi is 0. These are the workers
on which the next layer, over the transposed partition, expects its input, so that between them nothing is sent.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import cast

import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition, PartitionLike
from adjointlab.layers.convolution import Conv2d
from adjointlab.layers.distributed import TorchLayer
from adjointlab.layers.flatten import Flatten
from adjointlab.layers.linear import Linear
from adjointlab.layers.networks.network import Network
from adjointlab.layers.pooling import AvgPool2d
from adjointlab.primitives.validation import partition_of
from adjointlab.typing import Communicator

__all__ = ["LeNet5", "sequential_lenet5"]


class LeNet5(Network):
    """LeNet-5 for `batch` images of 1 x 32 x 32, over workers `spatial` (P_1 x P_0) and `features` (P_fo x P_fi).

    The logits of its output are cut over P_fo; `domain` and `codomain` are the spaces of inputs and outputs. Parameters have the
    names of those of :meth:`sequential` and, for the same state of torch's generator, the same values.

    Raises `ValueError` for partitions that are not of order 2.
    """

    def __init__(
        self,
        comm: Communicator,
        batch: int,
        spatial: PartitionLike,
        features: PartitionLike,
        classes: int = 10,
        dtype: torch.dtype | None = None,
    ) -> None:
        spatial = partition_of("spatial", spatial, comm)
        features = partition_of("features", features, comm)
        if spatial.order != 2 or features.order != 2:
            raise ValueError(f"spatial, features: {spatial} and {features} are not both of order 2")
        # Batch, output channels, input channels; batch, channels; batch: none of them is cut.
        convolved = Partition((1, 1, 1, *spatial.shape), spatial.ranks)
        pooled = Partition((1, 1, *spatial.shape), spatial.ranks)
        dense = Partition((1, *features.shape), features.ranks)
        transposed = Partition((1, *features.shape[::-1]), features.transpose().ranks)
        layers: OrderedDict[str, nn.Module] = OrderedDict(sequential_lenet5(classes, dtype).named_children())

        def distribute(
            name: str, layer: type[TorchLayer], over: Partition, *shape: int, **options: Layout
        ) -> None:
            layers[name] = layer(comm, over, (batch, *shape), layers[name], dtype=dtype, **options)

        distribute("convolution_1", Conv2d, convolved, 1, 32, 32)
        distribute("pooling_1", AvgPool2d, pooled, 6, 28, 28)
        distribute("convolution_2", Conv2d, convolved, 6, 14, 14)
        distribute("pooling_2", AvgPool2d, pooled, 16, 10, 10)
        distribute("linear_1", Linear, dense, 400)
        (wanted,) = cast(Linear, layers["linear_1"]).domain.tensors
        distribute("flatten", Flatten, pooled, 16, 5, 5, target=wanted.layout)
        distribute("linear_2", Linear, transposed, 120)
        distribute("linear_3", Linear, dense, 84)
        super().__init__(layers)
        self.classes, self.dtype = classes, dtype

    def sequential(self) -> nn.Module:
        """Return the sequential network with the same arguments."""
        return sequential_lenet5(self.classes, self.dtype)


def sequential_lenet5(classes: int = 10, dtype: torch.dtype | None = None) -> nn.Module:
    """Return the sequential network; its modules have the names of the distributed network's."""
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
