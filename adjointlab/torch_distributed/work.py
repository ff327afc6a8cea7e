"""Handles of operations: each completes when user code waits for it, and not before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from adjointlab import MPI
from adjointlab.typing import Request, Status
from adjointlab.worlds.call_labels import CallLabel, called_as

__all__ = ["RequestWork", "new_status"]


class RequestWork(dist.Work):
    """Requests of a communicator as one `Work`; `finish` are what remains to be done when they are complete, in order.

    A request that user code never waits for stays open, which the world reports.
    """

    def __init__(
        self,
        label: CallLabel,
        requests: Sequence[Request],
        tensors: Sequence[torch.Tensor] = (),
        finish: Sequence[Callable[[], None]] = (),
        status: Status | None = None,
    ) -> None:
        super().__init__()
        self._label = label
        self._requests = requests
        self._tensors = list(tensors)
        self._finish = finish
        self._status = status  # of the one request, a receive
        self._is_complete = False

    @classmethod
    def joined(cls, works: Sequence[RequestWork]) -> RequestWork:
        """One handle of several operations."""
        label = works[0]._label if works else CallLabel("no operation")
        requests = [request for work in works for request in work._requests]
        finish = [each for work in works for each in work._finish]
        return cls(label, requests, [tensor for work in works for tensor in work._tensors], finish)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the operation is complete. The world ends waits that are too long, so `timeout` is ignored."""
        if not self._is_complete:
            with called_as(self._label):
                for request in self._requests:
                    request.Wait(self._status)
            self._complete()
        return True

    def synchronize(self) -> None:
        """Wait."""
        self.wait()

    def is_completed(self) -> bool:
        """Return True if it is complete; the world may say so late, as MPI may."""
        if not self._is_complete:
            with called_as(self._label):
                is_complete = all(request.Get_status() for request in self._requests if request)
            if is_complete:
                self.wait()
        return self._is_complete

    def is_success(self) -> bool:
        """Return True if it is complete: an operation that fails raises in the rank."""
        return self._is_complete

    def exception(self) -> None:
        """None: an operation that fails raises in the rank."""

    def result(self) -> list[torch.Tensor]:
        """The tensors that the operation has written, once it is complete."""
        self.wait()
        return self._tensors

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the tensors. It is complete: torch's reducer waits for it in C++, where no wait of the lab is."""
        self.wait()
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self._tensors)
        return future

    def source_rank(self) -> int:
        """Rank of the group that sent what was received."""
        self.wait()
        if self._status is None:
            raise ValueError(f"{self._label} has no source rank: it is no receive from any source")
        return self._status.Get_source()

    _source_rank = source_rank

    def _complete(self) -> None:
        self._is_complete = True
        self._requests = ()
        for finish in self._finish:
            finish()
        self._finish = ()


def new_status() -> Status:
    """A status to be filled by a receive."""
    return MPI.Status()
