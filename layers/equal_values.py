"""The check that a module is the same on every rank: without a common seed, a layer would have parts of different modules."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import torch
from torch import nn

from adjointlab.core.agreement import gather_together
from adjointlab.core.communicators import size_of
from adjointlab.layers.additions import refuse_tied
from adjointlab.layers.representation import sequential_arguments
from adjointlab.spelling import described_type
from adjointlab.typing import Communicator

__all__ = ["check_values_alike", "refuse_valueless"]

_Facts: TypeAlias = Mapping[str, object]
"""All values that must be equal for a module or a tensor, by the words of the error that they are not."""

_VALUES: Final = "other values"


def check_values_alike(comm: Communicator, module: nn.Module, name: str = "module") -> None:
    """Collective: raise `ValueError`, the same on every rank, unless `module` is the same on all.

    Compares the classes, arguments and modes of the modules in it, and the shapes, element types, bits and ``requires_grad`` flags of
    parameters and buffers.

    `from_sequential` calls this for its network. Making a single layer sends nothing, and a model composed by hand may be made before its
    values are known, to load a state: call this for the modules that such layers are made from.

    Also raises, on every rank, `ValueError` for a parameter that occurs in `module` twice, as layers share none, or has no values, and
    `TypeError` if it is not a module. Costs an all-gather of a checksum (CRC-32) of each tensor and the text of each module. Tensors on
    a device are copied to the host.
    """
    size_of(comm)
    first, *others = gather_together(comm, lambda: _facts_of_all(name, module))
    for rank, other in enumerate(others, 1):
        for path in {**first, **other}:
            place = path or f"the {name} itself"
            if path not in first or path not in other:
                there, missing = (0, rank) if path in first else (rank, 0)
                raise ValueError(
                    f"{name}: {place} is in that of rank {there}, but not of rank {missing}; every rank gives the same module"
                )
            fact = next((fact for fact, value in first[path].items() if other[path].get(fact) != value), None)
            if fact == _VALUES:
                raise ValueError(
                    f"{name}: {place} has {fact} on rank {rank} than on rank 0; every rank gives the same module: call torch.manual_seed "
                    "with the same seed on every rank before it is made, or load one state into it on every rank"
                )
            if fact is not None:
                raise ValueError(
                    f"{name}: {place} has {fact} on rank {rank} than on rank 0: {other[path].get(fact)}, not {first[path][fact]}; every rank "
                    "gives the same module"
                )


def refuse_valueless(name: str, module: nn.Module) -> None:
    """Raise `ValueError` for a module on the device "meta", which has shapes but no values, and a lazy one, which has neither."""
    for path, tensor in _tensors(module):
        if nn.parameter.is_lazy(tensor):
            raise ValueError(
                f"{name}: {path} has no shape yet; call the module once on a tensor of the input's shape, with the same seed on every rank"
            )
        if tensor.device.type == "meta":
            raise ValueError(
                f"{name}: {path} lies on the device meta, which has no values; call to_empty(device='cpu') and reset_parameters() or "
                "load_state_dict() first"
            )


def _facts_of_all(name: str, module: object) -> dict[str, _Facts]:
    """Return the facts of all modules, parameters and buffers in this rank's module, by path."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"{name}: {described_type(module)} is not a torch.nn.Module")
    refuse_valueless(name, module)
    refuse_tied(name, module)
    facts = {path: _facts_of_module(each) for path, each in module.named_modules()}
    return facts | {path: _facts_of_tensor(tensor) for path, tensor in _tensors(module)}


def _facts_of_module(module: nn.Module) -> _Facts:
    # The arguments of other classes may be attributes of any type, whose texts may differ by rank.
    is_torchs = type(module).__module__.startswith("torch.")
    texts = sequential_arguments(module).values() if is_torchs else (module.extra_repr(),)
    return {
        "another class": type(module).__name__,
        # The address of an object, such as a function, differs by process.
        "other arguments": re.sub(r" at 0x[0-9a-fA-F]+", "", ", ".join(texts)) or "the default ones",
        "another mode": "training" if module.training else "evaluation",
    }


def _facts_of_tensor(tensor: torch.Tensor) -> _Facts:
    return {
        "another shape": list(tensor.shape),
        "another element type": str(tensor.dtype),
        "another requires_grad": tensor.requires_grad,
        _VALUES: _checksum(tensor),
    }


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _checksum(tensor: torch.Tensor) -> int:
    values = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return zlib.crc32(values.view(torch.uint8).numpy().data)
