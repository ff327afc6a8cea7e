"""A whole `torch.nn.Sequential` made of distributed layers: each over the workers that have its input, unless a partition is given.

    layer             partition, if that of its input is p_0 x ... x p_d
    Linear            p_0 x ... x P_fo x P_fi with P_fo = 1, P_fi = p_d
    Embedding         p_0 x ... x p_d x P_v x P_e with P_v = P_e = 1
    Conv              P_n x P_co x P_ci x P_spatial with P_co = P_ci = 1; where channels are cut, StationaryConv over that of the input
    ConvTranspose     P_n x P_co x P_ci x P_spatial with P_co = 1, P_ci = p_1
    all others        that of the input

If a layer needs its input in another layout than that of the previous layer's output, a repartition is inserted between the two.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

import torch
from torch import nn

from adjointlab import layers
from adjointlab.core import arrays
from adjointlab.core.agreement import check_alike, raise_together
from adjointlab.core.communicators import size_of
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition, PartitionLike
from adjointlab.core.space import Tensor
from adjointlab.layers.arguments import shape_of
from adjointlab.layers.distributed import DistributedModule, TorchLayer
from adjointlab.layers.equal_values import check_values_alike
from adjointlab.layers.grids import grid_of
from adjointlab.layers.networks.network import Network
from adjointlab.layers.networks.sources import check_source, described, is_chain, leaves_of
from adjointlab.layers.pointwise import Pointwise
from adjointlab.layers.repartition import Repartition
from adjointlab.layers.state_checks import name_below
from adjointlab.layers.stationary_convolution import StationaryConv1d, StationaryConv2d, StationaryConv3d
from adjointlab.layers.torch_modules import dtype_name, spatial_dims
from adjointlab.primitives.validation import partition_of
from adjointlab.spelling import described_type
from adjointlab.typing import Communicator

__all__ = ["from_sequential"]

_CONVOLUTIONS: Final = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED: Final = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_STATIONARY: Final = (StationaryConv1d, StationaryConv2d, StationaryConv3d)


def from_sequential(
    network: nn.Sequential,
    comm: Communicator,
    partition: PartitionLike,
    input_shape: tuple[int, ...],
    *,
    partitions: Mapping[str, PartitionLike] = MappingProxyType({}),
    dtype: torch.dtype | None = None,
) -> Network:
    """Collective: return the network of distributed layers with the parameters of `network`, which are the same on every rank.

    The input, of global shape `input_shape`, is cut evenly over `partition`, of the same order. Each layer is the one of the same name
    as its module, over the workers that have its input, as listed in the module docstring, or over the partition that `partitions` has
    for its name, such as "0" or "classifier.2"; a convolution over a partition without P_co is a stationary one. Torch modules
    without parameters are applied element by element. `dtype` is the element type, by default that of the parameters.

    Parameters have the names that they have in `network`: so ``sequential_state_dict()`` of the result has its keys.

    Each layer has the mode of its module. A module without parameters may occur in `network` several times.

    Raises `ValueError`, the same on every rank, for a module for which there is no layer, or that has several inputs or outputs, for
    a parameter that occurs in `network` twice, for modules or parameters with hooks or an overridden `forward`, for a name in
    `partitions` that no module has, and for arguments, modules or values that differ by rank, as they do without a seed. Errors of the
    layers are raised with the name of the module. Raises `TypeError` if `network` is not a `torch.nn.Sequential` or `partitions` is
    not a mapping.
    """
    size_of(comm)
    plans: list[tuple[_Builder, Tensor]] = []
    raise_together(
        comm, lambda: plans.append(_planned(network, comm, partition, input_shape, partitions, dtype))
    )
    ((builder, x),) = plans
    check_alike(
        comm,
        {
            "input_shape": x.layout.shape,
            "partition": x.layout.partition,
            "partitions": {name: str(each) for name, each in sorted(builder.partitions.items())},
            "dtype": builder.dtype,
            **described(network),
        },
    )
    check_values_alike(comm, network, "network")
    result, _ = builder.chain(network, "", x)
    return result


def _planned(
    network: nn.Sequential,
    comm: Communicator,
    partition: PartitionLike,
    input_shape: tuple[int, ...],
    partitions: Mapping[str, PartitionLike],
    dtype: torch.dtype | None,
) -> tuple[_Builder, Tensor]:
    """Check the arguments of this rank; return the builder of the network and the tensor that the network takes."""
    check_source(network)
    shape = shape_of("input_shape", input_shape)
    if dtype is not None:
        dtype_name(dtype)
    grid = partition_of("partition", partition, comm)
    named: object = partitions
    if not isinstance(named, Mapping):
        raise TypeError(
            f'partitions: {described_type(named)} is not a mapping from names of layers to their partitions, such as {{"0": (1, 2, 2)}}'
        )
    given = {name: partition_of(f"partitions[{name!r}]", value, comm) for name, value in partitions.items()}
    leaves = leaves_of(network)
    if unknown := [name for name in given if name not in leaves]:
        raise ValueError(
            f"partitions: {', '.join(map(repr, unknown))} is not a layer of the network, which has {', '.join(leaves)}"
        )
    owned = (*network.parameters(), *network.buffers())
    known = (tensor.dtype for tensor in owned if arrays.is_differentiable(tensor))
    element = dtype or next(known, torch.get_default_dtype())
    first = next(iter(leaves.values()), None)
    x_dtype = "int64" if isinstance(first, nn.Embedding) else dtype_name(element)
    return _Builder(comm, given, element), Tensor(_over("partition", shape, grid), x_dtype)


class _Builder:
    """Makes the layers of one network, which share communicator, partitions and element type."""

    def __init__(self, comm: Communicator, partitions: Mapping[str, Partition], dtype: torch.dtype) -> None:
        self.comm, self.partitions, self.dtype = comm, partitions, dtype

    def chain(self, network: nn.Sequential, path: str, x: Tensor) -> tuple[Network, Tensor]:
        """Collective: return the distributed network for an input with the layout of `x`, and the tensor that it returns."""
        children: dict[str, nn.Module] = {}
        # Not `named_children`, which omits repetitions of a module.
        for name, module in network._modules.items():
            assert module is not None  # torch.nn.Sequential takes none
            below = name_below(path, name)
            if isinstance(module, nn.Sequential) and is_chain(module):
                children[name], x = self.chain(module, below, x)
                continue
            layer = self.layer(module, below, x)
            (wanted,) = layer.domain.tensors
            if x.dtype != wanted.dtype:
                first = (
                    "; layers make no integers, so one that takes them stands first"
                    if wanted.element.is_integer
                    else ""
                )
                raise ValueError(
                    f"network: {below} ({type(module).__name__}) takes {wanted.dtype}, and gets {x.dtype} from what comes before it{first}"
                )
            if not _lie_alike(x.layout, wanted.layout, size_of(self.comm)):
                move = Repartition(self.comm, x.layout, wanted.layout, dtype=getattr(torch, x.dtype))
                children[f"{name}_input"] = move.train(module.training)
            children[name] = layer
            (x,) = layer.codomain.tensors
        result = Network(children)
        # Not `train`, which is recursive: each layer has the mode of its own module.
        result.training = network.training
        return result, x

    def layer(self, module: nn.Module, path: str, x: Tensor) -> DistributedModule:
        """Collective: return the layer for one module. Raises `ValueError` and `TypeError`, with the path of the module."""
        try:
            layer = self._made(module, self.partitions.get(path), x)
        except (TypeError, ValueError) as error:
            raise type(error)(f"network: {path} ({type(module).__name__}): {error}") from None
        if len(layer.domain.tensors) != 1 or len(layer.codomain.tensors) != 1:
            raise ValueError(
                f"network: {path} ({type(module).__name__}) has several inputs or outputs, which a chain does not pass on"
            )
        return layer.train(module.training)

    def _made(self, module: nn.Module, given: Partition | None, x: Tensor) -> DistributedModule:
        shape, grid = x.layout.shape, grid_of(x.layout)
        if isinstance(module, _CONVOLUTIONS):
            dims = spatial_dims(module)
            over = given or (grid if grid.order > 1 and grid.shape[1] > 1 else _with_side(grid, 1))
            if over.order == dims + 2:
                return _STATIONARY[dims - 1](self.comm, over, shape, module, dtype=self.dtype)
            return _by_torch_class()[_CONVOLUTIONS[dims - 1]](
                self.comm, over, shape, module, dtype=self.dtype
            )
        if isinstance(module, nn.Linear):
            grid = _with_side(grid, max(grid.order - 1, 0))
        elif isinstance(module, nn.Embedding):
            grid = _with_side(_with_side(grid, grid.order), grid.order + 1)
        elif isinstance(module, _TRANSPOSED):
            grid = _with_side(grid, 1)
        kinds = [kind for kind in type(module).__mro__ if kind in _by_torch_class()]
        if kinds:
            return _by_torch_class()[kinds[0]](self.comm, given or grid, shape, module, dtype=self.dtype)
        if not type(module).__module__.startswith("torch.nn."):
            raise ValueError("no layer is made from it; give a function to Pointwise, or write a layer")
        layout = x.layout if given is None else _over("partition", shape, given)
        try:
            # A copy, since the mode of the new network may be changed separately.
            return Pointwise(self.comm, layout, copy.deepcopy(module), dtype=getattr(torch, x.dtype))
        except ValueError as error:
            _, is_elementwise, why = str(error).partition(" is not elementwise: ")
            if not is_elementwise:
                raise
            raise ValueError(f"no layer is made from it, and it is not elementwise: {why}") from None


def _over(name: str, shape: tuple[int, ...], partition: Partition) -> Layout:
    """Return the layout of a tensor over a partition of its order; raise `ValueError` for one of another order."""
    if partition.order != len(shape):
        raise ValueError(
            f"{name}: of order {partition.order} ({partition}), but the input {list(shape)} has order {len(shape)}; give a side for each "
            "dimension of the input"
        )
    return Layout(shape, partition)


def _with_side(grid: Partition, position: int) -> Partition:
    """Return the grid with an additional dimension, of length 1, before the one at `position`."""
    return Partition((*grid.shape[:position], 1, *grid.shape[position:]), grid.ranks)


def _lie_alike(x: Layout, y: Layout, ranks: int) -> bool:
    """Return True if every rank has the same window in both layouts, whatever their grids."""
    return all(x.window(rank) == y.window(rank) for rank in range(ranks))


@lru_cache(maxsize=1)
def _by_torch_class() -> dict[type[nn.Module], type[TorchLayer]]:
    """Return the layer for each torch class, of the same name, and for each small module of ours."""
    found = {}
    for name in layers.__all__:
        layer = getattr(layers, name)
        if isinstance(layer, type) and issubclass(layer, TorchLayer) and len(layer.torch_classes) == 1:
            (kind,) = layer.torch_classes
            if kind.__name__ == name or not kind.__module__.startswith("torch."):
                found[kind] = layer
    return found
