"""The transport of a communicator: chosen once, and looked up at every call.

An operator moves ``arrays.message(array)`` over ``transport.over(comm, array)``. For a host array that is the communicator
itself. For one on a device it is a transport with the same calls, which take that device's memory:

- CUDA-aware MPI and simulated ranks take it directly (:mod:`adjointlab.core.transport.direct`);
- so does NCCL if each rank has its own device and all ranks agree (:func:`agree`; :mod:`adjointlab.core.transport.nccl`);
- otherwise it is staged in pinned host memory (:mod:`adjointlab.core.transport.staging`).

The first and the last send MPI messages with the same bytes, so the ranks of one operator may use different memories without being
told which. NCCL moves only device memory.
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from adjointlab import MPI
from adjointlab.core import arrays
from adjointlab.core.arrays.streams import streams_of
from adjointlab.core.transport.direct import DirectCommunicator
from adjointlab.core.transport.nccl import NcclCommunicator, own_evidence, ranks_of
from adjointlab.core.transport.staging import StagedCommunicator
from adjointlab.devices.cuda_aware_mpi import loaded_library
from adjointlab.devices.transport import Choice, RankEvidence, Transport, choose, transport_named, wanted_in
from adjointlab.typing import Array, Communicator

__all__ = ["agree", "chosen", "inherit", "over", "use"]

_KEYVAL: Final = MPI.Create_keyval()


@dataclass
class _State:
    """The choice for a communicator, and the transports over it by the memory that they take."""

    choice: Choice
    nccl: object = None
    """The NCCL communicator of its ranks, if that was chosen."""
    made: dict[Hashable, Any] = field(default_factory=dict)


def over(comm: Communicator, array: Array) -> Communicator:
    """Return the communicator that moves arrays from where `array` lies: `comm` itself for the host, else its transport.

    Raises `ValueError` for a transport that is not available, before any message.
    """
    if type(array) is np.ndarray or not arrays.is_on_device(array):  # by type first, for speed
        return comm
    state = _state(comm)
    kind = (arrays.library_of(array), arrays.device_of(array))
    if kind not in state.made:
        state.made[kind] = _made(comm, array, state)
    transport: Communicator = state.made[kind]
    return transport


def chosen(comm: Communicator) -> Choice:
    """Return the transport of a communicator and the reason for it. Local: no message."""
    return _state(comm).choice


def use(comm: Communicator, transport: Transport | str) -> None:
    """Choose the transport of `comm`, also for operators that are made from it later. Local; all ranks must choose the same.

    Raises `ValueError` for an unknown name, and for NCCL, on which all ranks have to :func:`agree`.
    """
    wanted = transport_named("transport", transport)
    if wanted is Transport.NCCL:
        raise ValueError(
            "transport: nccl needs to know of all ranks; call adjointlab.core.transport.agree(comm)"
        )
    comm.Set_attr(_KEYVAL, _State(Choice(wanted, "asked for")))


def agree(comm: Communicator, transport: Transport | str | None = None) -> Choice:
    """Choose the best transport that all ranks have, or `transport`; collective, and the same choice on every rank.

    Raises `ValueError`, on every rank, if ranks ask for different transports or for one that is not available.
    """
    wanted = wanted_in(os.environ) if transport is None else transport_named("transport", transport)
    gathered: list[tuple[RankEvidence, Transport | None]] = comm.allgather((_evidence(comm), wanted))
    asked = {each for _, each in gathered}
    if len(asked) >= 2:
        named = ", ".join(f"rank {rank}: {each or 'the best'}" for rank, (_, each) in enumerate(gathered))
        raise ValueError(f"transport: all ranks must ask for the same, but {named}")
    choice = choose([evidence for evidence, _ in gathered], wanted)
    comm.Set_attr(_KEYVAL, _new_state(comm, choice))
    return choice


def inherit(parent: Communicator, child: Communicator) -> None:
    """Give `child`, a communicator of some ranks of `parent`, the transport that was chosen for `parent`; collective over `child`."""
    state: _State | None = parent.Get_attr(_KEYVAL)
    if state is not None:
        child.Set_attr(_KEYVAL, _new_state(child, state.choice))


def _new_state(comm: Communicator, choice: Choice) -> _State:
    return _State(choice, ranks_of(comm) if choice.transport is Transport.NCCL else None)


def _state(comm: Communicator) -> _State:
    # An attribute, like the cache of groups: shared by all Python objects of a communicator, and deleted with it.
    state: _State | None = comm.Get_attr(_KEYVAL)
    if state is None:
        comm.Set_attr(_KEYVAL, state := _State(_default(comm)))
    return state


def _default(comm: Communicator) -> Choice:
    """Choose without a message, by a property of the MPI library that is the same on all ranks of a job."""
    wanted = wanted_in(os.environ)
    if wanted is None and _is_simulated(comm):
        return Choice(Transport.CUDA_AWARE_MPI, "simulated ranks copy on the device")
    if wanted is Transport.NCCL:
        raise ValueError(
            "transport: nccl is begun by all ranks together; call adjointlab.core.transport.agree(comm) on all of them before "
            "their first message of arrays on a device"
        )
    # As for ranks that share a device, which excludes NCCL: one rank must not start that without the others.
    return choose([RankEvidence("device", loaded_library().is_aware)] * 2, wanted)


def _made(comm: Communicator, array: Array, state: _State) -> Any:
    streams = streams_of(array)
    match state.choice.transport:
        case Transport.CUDA_AWARE_MPI:
            return DirectCommunicator(comm, streams)
        case Transport.NCCL:
            return NcclCommunicator(comm, state.nccl, streams)
    return StagedCommunicator(comm, streams)


def _evidence(comm: Communicator) -> RankEvidence:
    return own_evidence(_is_simulated(comm) or loaded_library().is_aware)


def _is_simulated(comm: Communicator) -> bool:
    return bool(getattr(comm, "takes_device_memory", False))
