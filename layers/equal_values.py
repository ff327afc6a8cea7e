"""The check that a module has the same values on every rank: a forgotten seed would make a layer of parts of different modules."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import torch
from torch import nn

from adjointlab.core.communicators import size_of
from adjointlab.typing import Communicator

__all__ = ["check_values_alike", "refuse_valueless"]


def check_values_alike(comm: Communicator, module: nn.Module, name: str = "module") -> None:
    """Collective: raise `ValueError`, the same on every rank, unless a module's parameters and buffers have the same bits on all.

    `from_sequential` does so with its network. Making a single layer sends nothing, and a model composed by hand may be made before its
    values are known, to load a state: call this for the modules that such layers are made from.

    Checksums (CRC-32) are compared, at the cost of an all-gather of one number for each tensor. On a device, tensors are copied to the host.
    """
    size_of(comm)
    every = comm.allgather({path: _checksum(tensor) for path, tensor in _tensors(module)})
    for path in {path: None for given in every for path in given}:
        checksums = [given.get(path) for given in every]
        other = next((rank for rank, checksum in enumerate(checksums) if checksum != checksums[0]), None)
        if other is not None:
            raise ValueError(
                f"{name}: {path} has other values on rank {other} than on rank 0; every rank gives the same module: call torch.manual_seed "
                "with the same seed on every rank before it is made, or load one state into it on every rank"
            )


def refuse_valueless(name: str, module: nn.Module) -> None:
    """Raise `ValueError` for a module on the device "meta", which has shapes and no values, and a lazy one, which has neither."""
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


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _checksum(tensor: torch.Tensor) -> int:
    values = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return zlib.crc32(values.view(torch.uint8).numpy().data)
