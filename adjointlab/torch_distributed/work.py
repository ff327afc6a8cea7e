"""Handles of operations: each completes when user code waits for it, and not before."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from adjointlab.torch_distributed.wrapped_tensors import of_plain_tensors
from adjointlab.typing import Request, Status
from adjointlab.worlds.call_labels import CallLabel, called_as

__all__ = ["Handle", "JoinedWork", "RequestWork"]


class Handle(dist.Work):
    """Base of the handles, with all methods that follow from `wait`, `is_completed` and `result`."""

    @abstractmethod
    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the operation is complete. The world ends waits that are too long, so `timeout` is ignored."""

    @abstractmethod
    def is_completed(self) -> bool:
        """Return True if it is complete; like MPI, the world may report that late."""

    @abstractmethod
    def result(self) -> list[torch.Tensor]:
        """Wait, and return the tensors that the operation has written."""

    def synchronize(self) -> None:
        """Wait."""
        self.wait()

    def is_success(self) -> bool:
        """Return True if it is complete: an operation that fails raises in the rank."""
        return self.is_completed()

    def exception(self) -> None:
        """None: an operation that fails raises in the rank."""

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A completed future of the tensors: torch's reducer waits for futures in C++, where the lab cannot end a wait."""
        result = self.result()
        # A future accepts only tensors on the devices that it is made for.
        devices: Any = sorted({tensor.device for tensor in result if tensor.is_cuda}, key=str)
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future(devices=devices)
        future.set_result(result)
        return future

    def source_rank(self) -> int:
        """The rank in the group that sent the message of a receive from any source."""
        raise ValueError("this operation has no source rank: it is not a receive")

    def _source_rank(self) -> int:
        return self.source_rank()


@of_plain_tensors
class RequestWork(Handle):
    """A request of a communicator; the functions `finish` are called in order when it is complete.

    A request that user code never waits for stays open, which the world reports.
    """

    def __init__(
        self,
        label: CallLabel,
        request: Request,
        tensors: Sequence[torch.Tensor],
        finish: Sequence[Callable[[], None]],
        status: Status | None,
        unwaited: set[RequestWork],
    ) -> None:
        super().__init__()
        self._unwaited = unwaited  # the incomplete ones of its group; it removes itself on completion
        self._label = label
        self._request: Request | None = request  # None once complete
        self._tensors = list(tensors)
        self._finish = finish
        self._status = status  # of a receive

    def wait(self, timeout: timedelta | None = None) -> bool:
        if self._request is not None:
            with called_as(self._label):
                self._request.Wait(self._status)
            self._leave()
            for finish in self._finish:
                finish()
        return True

    def abandon(self) -> None:
        """Complete without effect, and unregister from torch, which at exit warns of functional collectives that are still pending."""
        self._leave()
        with torch.no_grad():
            for tensor in self._tensors:
                torch.ops._c10d_functional.wait_tensor(tensor)

    def _leave(self) -> None:
        self._request = None
        self._unwaited.discard(self)

    def is_completed(self) -> bool:
        if self._request is not None:
            with called_as(self._label):
                is_ready = self._request.Get_status()
            if is_ready:
                self.wait()
        return self._request is None

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._tensors

    def source_rank(self) -> int:
        if self._status is None:
            return super().source_rank()
        self.wait()
        return self._status.Get_source()


class JoinedWork(Handle):
    """One handle for several operations."""

    def __init__(self, works: Sequence[Handle]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        return all(work.wait() for work in self._works)

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def result(self) -> list[torch.Tensor]:
        return [tensor for work in self._works for tensor in work.result()]
