"""The torch world: processes that torchrun has started, and real process groups, a fresh default group for each case.

The lab's own messages go through torchrun's key-value store (:mod:`adjointlab.worlds.torch.channel`), independently of user code's groups.
User code waits in torch's C++ code. Such a wait ends in two cases:

- Groups have the world's patience as their timeout, so gloo itself ends a wait that is too long.
- A rank that has failed drops its groups. That closes their connections, and gloo ends the waits of other ranks on them.

Other waits, such as one with an explicit timeout, are left to the watchdog, which ends the process; torchrun then ends the others.
"""

from __future__ import annotations

import gc
import os
import time
import traceback
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, NoReturn

import torch
import torch.distributed as dist

from adjointlab.exit_codes import ExitCode
from adjointlab.worlds.current_run import CurrentRun, NotedRefusals
from adjointlab.worlds.process_world import Command, Conclusion, ProcessWorld
from adjointlab.worlds.rendezvous import Rendezvous
from adjointlab.worlds.run import Outcome, Raised, Run
from adjointlab.worlds.torch.channel import StoreChannel
from adjointlab.worlds.torch.communicator import WITHOUT_COMMUNICATOR, CaseGroup, TorchComm
from adjointlab.worlds.torch.diagnosis import (
    GroupFailure,
    RankStatistics,
    communicating,
    conclude,
    failure_of,
)
from adjointlab.worlds.torch.store import connected_store, prefixed
from adjointlab.worlds.torch.waits import CaseWaits
from adjointlab.worlds.watchdog import Watchdog, Watched
from adjointlab.worlds.world import RankContext, WorldName, positive_patience

__all__ = ["TorchWorld"]


_LONGEST_TIMEOUT: Final = 1e7
"""Seconds; a process group cannot have an infinite timeout."""


class _CurrentRun(NotedRefusals):
    """The current run, for the replacements of mpi4py's and torch's names."""

    def __init__(self, waits: CaseWaits) -> None:
        super().__init__(waits.refused)

    def communicator(self) -> NoReturn:
        self.refuse(f"a communicator of MPI is used: {WITHOUT_COMMUNICATOR}")


class TorchWorld(ProcessWorld):
    """The processes of torchrun. The constructor is collective.

    Ranks have no communicator: code under test uses the default process group (:func:`adjointlab.process_group`), on gloo, and also
    on nccl if each rank has a device. `patience` is also the timeout of groups.
    """

    name = WorldName.TORCH
    has_communicator = False
    is_exhausted = False

    def __init__(self, patience: float = 10.0, watchdog: Watchdog | None = None) -> None:
        patience = positive_patience(patience)
        store, rank, size = connected_store()
        # Several worlds may be made, by all processes in the same order.
        prefix = f"world-{store.add(f'adjointlab/worlds/{rank}', 1)}"
        self._store = prefixed(store, prefix)
        self._backend = _backend()
        self._waits = CaseWaits(StoreChannel(self._store, "outside", rank, size), 0, 0, patience)
        self._failure: GroupFailure | None = None
        meeting = Rendezvous(StoreChannel(self._store, "opening", rank, size))
        control = StoreChannel(self._store, "control", rank, size)
        super().__init__(
            control,
            lambda value: meeting.allgather("opening a world", value),
            patience,
            watchdog,
            lambda: self._waits.expire(),
        )
        self._lab = StoreChannel(self._store, "cases", rank, size)

    def close(self) -> None:
        """End the watchdog; nothing else is kept between cases."""
        self._watchdog_thread.close()

    def _refuse_if_exhausted(self) -> None:
        """Do nothing: no resource is exhausted."""

    def _begin_run(self, command: Command, patience: float) -> None:
        self._waits = CaseWaits(self._lab, command.run, command.ranks, patience)
        self._failure = None

    def _enter_run(self, command: Command) -> tuple[RankContext, CurrentRun]:
        store = prefixed(self._store, f"run-{command.run}")
        group = CaseGroup(
            store,
            self._rank,
            command.ranks,
            self._backend,
            timedelta(seconds=min(self._waits.patience, _LONGEST_TIMEOUT)),
            self._waits,
        )
        return RankContext(self._rank, command.ranks, TorchComm(group)), _CurrentRun(self._waits)

    def _progress(self) -> object:
        return self._waits.log.calls, self._waits.exchanges

    def _note_raised(self, exception: BaseException) -> None:
        log = self._waits.log
        waited = time.monotonic() - log.last_at > self._waits.patience / 2
        self._failure = failure_of(exception, log.last, waited=waited)
        # The frames of user code refer to groups, whose connections are closed with the last reference to them.
        traceback.clear_frames(exception.__traceback__)

    def _end_run(self, outcome: Outcome, watched: Watched | None) -> tuple[Outcome, RankStatistics]:
        waits = self._waits
        if waits.cancelled_as is not None:
            # Even if user code has caught Cancelled, and returned or raised something else.
            outcome = waits.cancelled_as
        if isinstance(outcome, Raised) or waits.cancelled_as is not None:
            waits.notify_failure()
            if any(group() is not None for group in waits.groups):
                gc.collect()  # user code may have put them into reference cycles
        return outcome, RankStatistics(self._failure, waits.summaries, tuple(dict.fromkeys(waits.refused)))

    def _conclude(self, outcomes: tuple[Outcome, ...], statistics: Sequence[RankStatistics]) -> Conclusion:
        concluded, findings = conclude(outcomes, statistics)
        return Conclusion(Run(concluded, findings, communicating=communicating(statistics)), is_clean=True)

    def _finish_last_run(self, was_clean: bool) -> None:
        """Nothing to free: groups are closed when their case ends."""
        self._ranks_of_last_run = 0

    def _cut_off(self) -> None:
        # gloo has no means for it: a child that communicates is left to the watchdog.
        pass

    def _notify_failure(self) -> None:
        self._waits.notify_failure()

    def _look_around(self) -> None:
        # torchrun ends all ranks once one of them has failed, so there is no need to wait for the answer of that one.
        if self._interrupts.pending and self.is_leader and self._is_missing_a_rank():
            self._interrupts.take()

    def _is_missing_a_rank(self) -> bool:
        seen = (self._heartbeats.last_seen(rank) for rank in range(1, self.ranks))
        return any(each is not None and not _is_there(each.process) for each in seen)

    def _end_job(self) -> None:
        """End this process; torchrun ends the others."""
        os._exit(ExitCode.UNJUDGED)


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _backend() -> str:
    """The backends of groups: gloo, and nccl for device tensors if there is a device for each rank of this machine."""
    local, ranks_here = int(os.environ["LOCAL_RANK"]), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if dist.is_nccl_available() and torch.cuda.is_available() and torch.cuda.device_count() >= ranks_here:
        torch.cuda.set_device(local)
        return "cpu:gloo,cuda:nccl"
    return "gloo"
