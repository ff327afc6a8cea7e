"""Additions to one module that a layer made from it would lose: they are rejected, as the layer would compute something else.

A layer copies the arguments, values and mode of its module, but no additions that users have made to one instance: hooks, an
overridden `forward`, pruning, parameters shared with another module.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final

import torch
from torch import nn

__all__ = ["METHODS", "refuse_additions", "refuse_tied"]

METHODS: Final = ("forward", "__call__", "_conv_forward", "_output_padding")
"""Methods with which torch's modules compute: a layer does not call those of the module that it is made from."""


def refuse_additions(name: str, module: nn.Module) -> None:
    """Raise `ValueError` for hooks, parametrizations, pruning and an overridden `forward` of `module` or of one in it.

    `name` is that of the argument, with which errors begin.
    """
    for path, each in module.named_modules(remove_duplicate=False):
        place = f"{path} ({type(each).__name__})" if path else f"the {name} itself"
        if nn.utils.parametrize.is_parametrized(each):
            raise ValueError(
                f"{name}: {place} has parametrizations, which would be lost; remove_parametrizations makes parameters of them"
            )
        if computed := ", ".join(_computed(each)):
            raise ValueError(
                f"{name}: {place} has a {computed} computed from other tensors, as by pruning or weight_norm, which would be lost; "
                "prune.remove, remove_weight_norm or remove_spectral_norm of torch.nn.utils makes a parameter of it"
            )
        if additions := ", ".join(_additions(each)):
            raise ValueError(
                f"{name}: {place} has {additions}, which would be lost; remove that first; hooks may be registered on the layers, where "
                "they see local tensors"
            )


def refuse_tied(name: str, module: nn.Module) -> None:
    """Raise `ValueError` if a parameter or buffer has two names in `module`: layers do not share tensors."""
    first: dict[int, str] = {}
    for tensors in (
        module.named_parameters(remove_duplicate=False),
        module.named_buffers(remove_duplicate=False),
    ):
        for path, tensor in tensors:
            if (other := first.setdefault(id(tensor), path)) != path:
                raise ValueError(
                    f"{name}: {other} and {path} are one tensor, and layers share none; give each its own, and tie the layers once they are made"
                )


def _computed(module: nn.Module) -> Iterator[str]:
    """Yield the names of the tensors of this instance that are computed from others, once or before each call."""
    attributes, parameters = vars(module), module._parameters
    for name, value in (*parameters.items(), *attributes.items()):
        if not isinstance(value, torch.Tensor):
            continue
        # Torch's pruning, weight_norm and spectral_norm set an attribute in a pre-hook. For frozen parameters it is a leaf.
        is_set_by_hook = name in attributes and attributes["_forward_pre_hooks"]
        if not value.is_leaf or (is_set_by_hook and {f"{name}_orig", f"{name}_g"} & parameters.keys()):
            yield name


def _additions(module: nn.Module) -> Iterator[str]:
    """Yield the names of the additions to this instance that a layer of its class does not have."""
    attributes = vars(module)
    for method in METHODS:
        if method in attributes:
            yield f"a {method} of its own"
    for name in _names_of_hooks():
        if attributes.get(name):
            yield name.strip("_").replace("_", " ")
    for name, parameter in module.named_parameters(recurse=False):
        if any(getattr(parameter, kind, None) for kind in ("_backward_hooks", "_post_accumulate_grad_hooks")):
            yield f"hooks of its {name}"


@cache
def _names_of_hooks() -> tuple[str, ...]:
    """Return the attributes in which torch (2.13) keeps hooks, in dictionaries: forward, backward, and those of state_dicts."""
    return tuple(name for name in vars(nn.Module()) if name.endswith("_hooks"))
