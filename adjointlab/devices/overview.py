"""Everything that a bug report needs, gathered from this process and from the other ranks of its job."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from adjointlab.devices.compatibility import mismatches
from adjointlab.devices.cuda_aware_mpi import CudaAware, MPIEvidence, decide
from adjointlab.devices.machine import Machine, environment, machine, packages
from adjointlab.devices.probes import Found, found
from adjointlab.devices.transport import Choice, RankEvidence, Transport, choose, wanted_in

__all__ = ["Job", "MPILibrary", "Overview", "RankOverview", "overview"]


class Job(Protocol):
    """The ranks of a job, with an all-gather: the payloads of all ranks, in rank order, once all are at `label`."""

    rank: int

    def allgather(self, label: str, payload: Any) -> list[Any]: ...


@dataclass(frozen=True)
class RankOverview:
    """One rank: its machine, and the devices that it sees."""

    machine: Machine
    found: Found
    evidence: RankEvidence


@dataclass(frozen=True)
class MPILibrary:
    """The MPI library, and the decision whether it is CUDA-aware."""

    evidence: MPIEvidence
    cuda_aware: CudaAware


@dataclass(frozen=True)
class Overview:
    """The whole overview; `transports` maps a situation to the choice for it, `problems` lists failed queries."""

    packages: Mapping[str, str]
    environment: Mapping[str, str]
    mpi: MPILibrary
    launcher: str
    worlds: Mapping[str, str]
    transports: Mapping[str, Choice]
    mismatches: Sequence[str]
    ranks: Sequence[RankOverview]
    problems: Sequence[str] = ()

    def data(self) -> dict[str, Any]:
        """Return the fields as data for JSON."""
        return asdict(self)


def overview(
    mpi: MPIEvidence,
    launcher: str,
    worlds: Callable[[Found, MPIEvidence], Mapping[str, str]],
    job: Job | None = None,
    problems: Sequence[str] = (),
) -> Overview:
    """Gather everything; collective over the ranks of `job`, which is None for a single process.

    `launcher` describes the program that starts ranks; `worlds` returns, for each world, a text on its availability here. Failed
    queries are listed in `problems` rather than raised.
    """
    all_problems = list(problems)
    try:
        cuda_aware = decide(mpi)
    except ValueError as problem:  # an illegal override
        cuda_aware = CudaAware(False, "none", str(problem))
        all_problems.append(str(problem))
    ranks = _ranks(cuda_aware, job)
    wanted: Transport | None = None
    try:
        wanted = wanted_in(os.environ)
    except ValueError as problem:
        all_problems.append(str(problem))
    of_hosts = {each.machine.host: each.found for each in ranks}
    wrong = [
        f"{host}: {mismatch}" if len(of_hosts) > 1 else str(mismatch)
        for host, each in of_hosts.items()
        for mismatch in mismatches(each.stack)
    ]
    return Overview(
        packages(),
        environment(),
        MPILibrary(mpi, cuda_aware),
        launcher,
        worlds(ranks[0].found, mpi),
        _transports([each.evidence for each in ranks], wanted, is_alone=job is None),
        wrong,
        ranks,
        all_problems,
    )


def _ranks(cuda_aware: CudaAware, job: Job | None) -> list[RankOverview]:
    """The overview of every rank. Only one rank of each host queries the libraries, because each query starts a process."""
    here = machine()
    if job is None:
        return [_rank(here, found(), cuda_aware)]
    # Ranks of a host may see different devices.
    own = here.host, os.environ.get("CUDA_VISIBLE_DEVICES")
    keys = [tuple(key) for key in job.allgather("info: hosts", own)]
    is_first = job.rank == keys.index(own)
    answers = job.allgather("info: answers", found() if is_first else None)
    seen = answers[keys.index(own)]
    everybody: list[RankOverview] = job.allgather("info: ranks", _rank(here, seen, cuda_aware))
    return everybody


def _rank(here: Machine, seen: Found, cuda_aware: CudaAware) -> RankOverview:
    device = f"{here.host} {seen.device}" if seen.device else ""
    evidence = RankEvidence(device, cuda_aware.is_aware, str(seen.cupy.get("nccl", "")))
    return RankOverview(here, seen, evidence)


def _transports(
    evidence: Sequence[RankEvidence], wanted: Transport | None, *, is_alone: bool
) -> dict[str, Choice]:
    """The choice for the ranks of the job; for a single process, the choices for two possible placements of ranks."""
    if not is_alone or not evidence[0].device:
        return {"between ranks": _chosen(evidence, wanted)}
    one = evidence[0]
    apart = [one, RankEvidence(f"{one.device} and another", one.cuda_aware, one.nccl)]
    return {
        "ranks with a device each": _chosen(apart, wanted),
        "ranks that share a device": _chosen([one, one], wanted),
    }


def _chosen(evidence: Sequence[RankEvidence], wanted: Transport | None) -> Choice:
    try:
        return choose(evidence, wanted)
    except ValueError as problem:
        return Choice(Transport.NONE, str(problem))
