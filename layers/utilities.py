"""Torch's utilities that compute with all parameters or gradients of a model, for models with distributed layers.

All are collective, over the communicators of the model's layers. They reject a parameter outside distributed layers, since it is
not declared whether ranks have copies or parts of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from adjointlab.core.space import Tensor
from adjointlab.layers.arguments import real_number
from adjointlab.layers.parameters import DistributedParameters
from adjointlab.layers.state_checks import name_below
from adjointlab.layers.states import distributed_layers
from adjointlab.layers.windows import local_window

__all__ = [
    "clip_grad_norm_",
    "get_total_norm",
    "parameters_to_vector",
    "sequential_gradients",
    "vector_to_parameters",
]


def get_total_norm(
    model: nn.Module, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> torch.Tensor:
    """Collective: return the norm of all gradients of `model`, like `torch.nn.utils.get_total_norm` for the sequential model.

    The same number on every rank. A gradient that is `None` counts as one without elements, and a parameter that several layers have
    counts once. With `error_if_nonfinite`, raises `RuntimeError` on every rank for a norm that is infinite or NaN.
    """
    norm_type = real_number("norm_type", norm_type)
    # The norm of a part without elements: the number that changes no norm.
    neutral = 0.0 if norm_type >= 0 else math.inf
    norms, dtype, device = [], torch.get_default_dtype(), torch.device("cpu")
    seen: set[int] = set()
    for layer in distributed_layers(model).values():
        own = np.full(len(layer.parameter_space.tensors), neutral)
        for index, tensor in enumerate(layer.parameter_space.tensors):
            parameter = layer.get_parameter(tensor.name)
            gradient, dtype, device = parameter.grad, parameter.dtype, parameter.device
            is_new = id(parameter) not in seen
            seen.add(id(parameter))
            if is_new and gradient is not None and gradient.numel():
                own[index] = float(torch.linalg.vector_norm(gradient.detach(), norm_type))
        # Gathered, not reduced: every rank adds in the same order, and MPI does not define its maximum for NaN.
        every = np.empty((layer.comm.Get_size(), len(own)))
        layer.comm.Allgather(own, every)
        norms += [_norm_of_parts(parts, norm_type) for parts in torch.from_numpy(every.T.copy())]
    total = torch.linalg.vector_norm(torch.stack(norms), norm_type) if norms else torch.tensor(0.0)
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError(
            f"The total norm of order {norm_type} for the gradients of the model is non-finite"
        )
    return total.to(device, dtype.to_real())


def clip_grad_norm_(
    model: nn.Module, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> torch.Tensor:
    """Collective: scale the gradients of `model` as `torch.nn.utils.clip_grad_norm_` does those of the sequential one.

    Every rank scales by the same factor. Returns the norm, and raises, as :func:`get_total_norm` does.
    """
    total = get_total_norm(model, norm_type, error_if_nonfinite)
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor.to(parameter.grad.device))
    return total


def sequential_gradients(model: nn.Module, root: int | None = None) -> dict[str, torch.Tensor]:
    """Collective: return the global gradients by the sequential model's names, on every rank; with a `root`, only on that one.

    A rank's gradient that is `None` counts as zeros.
    """
    result: dict[str, torch.Tensor] = {}
    for path, layer in distributed_layers(model).items():
        own = {}
        for tensor in layer.parameter_space.tensors:
            parameter = layer.get_parameter(tensor.name)
            local = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            own[tensor.name] = layer.gathered(tensor, root, local)
        if root in (None, layer.rank):
            names = layer.sequential_names(own)
            result |= {name_below(path, name): value for name, value in names.items()}
    return result


def parameters_to_vector(model: nn.Module) -> torch.Tensor:
    """Collective: return all parameters of the sequential model in one vector, on every rank, without a graph.

    A parameter that several layers have occurs once, as in ``model.parameters()``.
    """
    wholes = [layer.gathered(tensor).reshape(-1) for layer, tensor in _parameters(model)]
    return torch.cat(wholes) if wholes else torch.empty(0)


def vector_to_parameters(vector: torch.Tensor, model: nn.Module) -> None:
    """Set all parameters from a vector like that of :func:`parameters_to_vector`, which every rank has; nothing is sent.

    Raises `ValueError` for a vector of another length.
    """
    parameters = list(_parameters(model))
    sizes = [math.prod(tensor.layout.shape) for _, tensor in parameters]
    if tuple(vector.shape) != (sum(sizes),):
        raise ValueError(
            f"vector: shape {tuple(vector.shape)}, but the model has {sum(sizes)} elements of parameters"
        )
    with torch.no_grad():
        for (layer, tensor), part in zip(parameters, torch.split(vector, sizes), strict=True):
            window = local_window(part.reshape(tensor.layout.shape), tensor.layout, layer.rank)
            layer.get_parameter(tensor.name).copy_(window)


def _norm_of_parts(parts: torch.Tensor, norm_type: float) -> torch.Tensor:
    """Return the norm of a tensor from those of its parts; for order 0, the number of elements that are not 0."""
    return parts.sum() if norm_type == 0 else torch.linalg.vector_norm(parts, norm_type)


def _parameters(model: nn.Module) -> Iterator[tuple[DistributedParameters, Tensor]]:
    """Yield all parameters, each with the first layer that has it."""
    seen: set[int] = set()
    for layer in distributed_layers(model).values():
        for tensor in layer.parameter_space.tensors:
            parameter = layer.get_parameter(tensor.name)
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield layer, tensor
