"""Choice of the transport of device buffers between ranks, from evidence of all ranks.

The choice is a function of evidence that every rank has about all of them, so all ranks make the same choice. In order of preference:
CUDA-aware MPI, which moves device buffers itself; NCCL, which needs a device for each rank; staging through pinned host memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from adjointlab.quantities import ranks_listed

__all__ = ["OVERRIDE", "Choice", "RankEvidence", "Transport", "choose", "transport_named", "wanted_in"]

OVERRIDE: Final = "ADJOINTLAB_TRANSPORT"
"""Environment variable for the user's choice: the value of a :class:`Transport`."""


class Transport(StrEnum):
    """The ways to move a device buffer from rank to rank."""

    CUDA_AWARE_MPI = "cuda-aware-mpi"
    NCCL = "nccl"
    STAGING = "staging"
    NONE = "none"


@dataclass(frozen=True)
class RankEvidence:
    """Evidence of one rank: an identifier of its device that is unique in the job (empty without a device), and usable transports."""

    device: str = ""
    cuda_aware: bool = False
    nccl: str = ""  # version


@dataclass(frozen=True)
class Choice:
    """The transport, and the reason for it."""

    transport: Transport
    reason: str


def wanted_in(environment: Mapping[str, str]) -> Transport | None:
    """Return the transport that the environment asks for, None for none; raise `ValueError` for another value."""
    text = environment.get(OVERRIDE, "").strip()
    return transport_named(OVERRIDE, text) if text else None


def transport_named(source: str, transport: Transport | str) -> Transport:
    """Return the transport that `source` asks for; raise `ValueError` for any other value."""
    legal = [each for each in Transport if each is not Transport.NONE]
    if transport not in legal:
        raise ValueError(f"{source}: {transport!r} is not one of {', '.join(legal)}")
    return Transport(transport)


def choose(ranks: Sequence[RankEvidence], wanted: Transport | None = None) -> Choice:
    """Choose a transport for ranks with this evidence; `wanted` is the caller's choice, or that of :func:`wanted_in`.

    The wanted transport is used without further checks, except NCCL if ranks share a device or have none: NCCL would fail or
    hang then, so this raises `ValueError`, the same on every rank.
    """
    without_nccl = _without_nccl(ranks)
    if wanted is Transport.NCCL and without_nccl:
        raise ValueError(
            f"transport: nccl needs a device of its own for each rank, but {without_nccl}; use staging or cuda-aware-mpi"
        )
    if wanted is not None:
        return Choice(wanted, "asked for")
    if not any(each.device for each in ranks):
        return Choice(Transport.NONE, "no rank has a device")
    if all(each.cuda_aware for each in ranks):
        return Choice(Transport.CUDA_AWARE_MPI, "the MPI library takes device buffers")
    unaware = [number for number, each in enumerate(ranks) if not each.cuda_aware]
    on_ranks = "" if len(unaware) == len(ranks) else f" on {_numbered(unaware)}"
    because = f"the MPI library does not take device buffers{on_ranks}"
    if not without_nccl:
        return Choice(Transport.NCCL, f"{because}, and each rank has a device of its own")
    return Choice(Transport.STAGING, f"{because}, and {without_nccl}")


def _without_nccl(ranks: Sequence[RankEvidence]) -> str:
    """Return the reason that NCCL cannot connect these ranks; empty if it can."""
    if lacking := [number for number, each in enumerate(ranks) if not each.device]:
        return f"{_numbered(lacking)} {'has' if len(lacking) == 1 else 'have'} no device"
    if lacking := [number for number, each in enumerate(ranks) if not each.nccl]:
        return f"CuPy has no NCCL on {_numbered(lacking)}"
    of_device: dict[str, list[int]] = {}
    for number, each in enumerate(ranks):
        of_device.setdefault(each.device, []).append(number)
    shared = next((sharing for sharing in of_device.values() if len(sharing) > 1), None)
    return f"{_numbered(shared)} share a device" if shared else ""


def _numbered(ranks: Sequence[int]) -> str:
    return ranks_listed(ranks[:8]) + (", ..." if len(ranks) > 8 else "")
