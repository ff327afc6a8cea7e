"""Checks of the sequential networks that a distributed one is made from: only the modules' own `forward` may compute anything."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from adjointlab.layers.additions import refuse_additions, refuse_tied
from adjointlab.layers.equal_values import refuse_valueless
from adjointlab.spelling import described_type

__all__ = ["check_source", "described", "is_chain", "leaves_of"]


def is_chain(module: nn.Module) -> bool:
    """Return True for a `torch.nn.Sequential` that applies its modules one after the other."""
    return isinstance(module, nn.Sequential) and all(
        getattr(type(module), method) is getattr(nn.Sequential, method) for method in ("forward", "__iter__")
    )


def check_source(network: nn.Sequential) -> None:
    """Raise `TypeError` if it is not a chain, and `ValueError` for one that a distributed network would not compute."""
    given: object = network
    if not isinstance(given, nn.Sequential):
        name = given.__name__ if isinstance(given, type) else f"{described_type(given)}"
        raise TypeError(f"network: {name} is not a torch.nn.Sequential")
    if not is_chain(network):
        raise TypeError(
            f"network: {described_type(network)} is a torch.nn.Sequential with a forward of its own, which is not the chain of its "
            "modules; make a torch.nn.Sequential of them, or compose layers in a module of yours"
        )
    if not len(network._modules):
        raise ValueError("network: has no modules")
    refuse_valueless("network", network)
    refuse_additions("network", network)
    refuse_tied("network", network)


def leaves_of(network: nn.Sequential) -> dict[str, nn.Module]:
    """Return the modules that are not chains, by path; one that occurs in the network several times has all its paths."""
    return dict(_leaves(network, ""))


def described(network: nn.Sequential) -> dict[str, str]:
    """Return one line for each module by its path, with all that the layers depend on except values, for comparison between ranks."""
    return {
        f"network: {path}": f"{module}, {'training' if module.training else 'evaluation'}"
        + "".join(
            f", {name} {list(tensor.shape)} {tensor.dtype}{'' if tensor.requires_grad else ' frozen'}"
            for name, tensor in (*module.named_parameters(), *module.named_buffers())
        )
        for path, module in leaves_of(network).items()
    }


def _leaves(chain: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    # Not `named_modules`, which yields no paths below a module that it has seen before.
    for name, module in chain._modules.items():
        assert module is not None  # torch.nn.Sequential takes none
        if is_chain(module):
            yield from _leaves(module, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", module
