"""The state_dict of a sequential model, from and to a model of any form whose layers are distributed.

A key of the sequential state_dict is the path of the layer in the model, followed by the sequential module's name for the
tensor: so a model has the keys of the sequential one if its layers have the same paths.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from adjointlab.layers.parameters import DistributedParameters
from adjointlab.layers.state_checks import check_on, check_tensors, name_below
from adjointlab.spelling import described_type

__all__ = ["distributed_layers", "load_sequential_state_dict", "sequential_state_dict"]


def sequential_state_dict(model: nn.Module, root: int | None = None) -> dict[str, torch.Tensor]:
    """Collective: return the state_dict of the sequential model on every rank; with a `root`, only on that one, and {} elsewhere.

    Raises `ValueError` for parameters and buffers outside distributed layers, whose layout is not declared, and for a `root`
    that is not a rank.
    """
    return {
        name_below(path, name): value
        for path, layer in distributed_layers(model, of_state=True).items()
        for name, value in layer.sequential_state_dict(root).items()
    }


def load_sequential_state_dict(
    model: nn.Module, state: Mapping[str, torch.Tensor] | None, root: int | None = None
) -> None:
    """Collective: copy the values of the sequential model's state_dict, which every rank has; none is sent.

    With a `root` the state_dict is that of this rank. The arguments of the others, such as `None`, are ignored.

    Raises `ValueError` unless all names and shapes are those of the model, and for a `root` that is not a rank or differs by rank, and
    `TypeError` if it is not a state_dict of tensors: the same on every rank, and before anything is copied.
    """
    layers = distributed_layers(model, of_state=True)
    paths = [path for path, layer in layers.items() if _has_state(layer)]
    own: dict[str, dict[str, torch.Tensor]] = {path: {} for path in paths}

    def check() -> None:
        given = check_tensors(state)
        if unknown := [key for key in given if not any(_is_in(path, key) for path in paths)]:
            raise ValueError(f"state: has {', '.join(unknown)}, which the model does not have")
        for path in paths:
            start = name_below(path, "")
            own[path] = {key.removeprefix(start): value for key, value in given.items() if _is_in(path, key)}
            layers[path].check_sequential_state(own[path], path)

    if layers:
        check_on(next(iter(layers.values())).comm, root, check)
    else:
        check()
    for path in paths:
        layers[path].take_sequential_state(own[path], root)


def distributed_layers(model: nn.Module, *, of_state: bool = False) -> dict[str, DistributedParameters]:
    """Return the distributed layers of a model by their paths. Raises `ValueError` for parameters that belong to none, and `TypeError`
    for an argument that is not a module, such as ``model.parameters()``.

    With `of_state` as in a state_dict: buffers that belong to no layer are rejected too, and a layer that occurs in the model
    several times has all its paths, otherwise only its first.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model: {described_type(model)} is not a torch.nn.Module; pass the model itself, whose layers say where parameters lie"
        )
    layers = {}
    for path, module in model.named_modules(remove_duplicate=not of_state):
        owned: dict[str, object] = dict(module.named_parameters(recurse=False))
        if of_state:
            kept = module.named_buffers(recurse=False)
            owned |= {name: value for name, value in kept if name not in module._non_persistent_buffers_set}
        if isinstance(module, DistributedParameters):
            layers[path] = module
        elif owned:
            raise ValueError(
                f"model: {', '.join(name_below(path, name) for name in owned)} in {type(module).__name__}, which is not a distributed "
                "layer: their layout is not declared"
            )
    return layers


def _has_state(layer: DistributedParameters) -> bool:
    return bool(layer.parameter_space.tensors or layer.buffer_space.tensors)


def _is_in(path: str, key: str) -> bool:
    return not path or key == path or key.startswith(f"{path}.")
