"""Operations of a process group: the common base of collectives and messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from adjointlab.torch_distributed.contiguity import check_for_nccl
from adjointlab.torch_distributed.memory import Staged
from adjointlab.torch_distributed.work import JoinedWork, RequestWork
from adjointlab.typing import Communicator, Request, Status
from adjointlab.worlds.call_labels import CallLabel, called_as

__all__ = ["Operations", "Tensors"]

Tensors = list[torch.Tensor]


class Operations:
    """Base of a process group: the communicator, and the start of operations on it.

    `global_ranks` are the ranks in the default group, by rank in this one.
    """

    def __init__(self, comm: Communicator, global_ranks: Sequence[int], *, is_default: bool) -> None:
        self._comm = comm
        self._rank, self._size = comm.rank, comm.size
        self.global_ranks = tuple(global_ranks)
        self._named = () if is_default else (("group", list(global_ranks)),)
        self._coalesced: list[RequestWork] | None = None
        self._unwaited: set[RequestWork] = set()

    def forget_works(self) -> None:
        """Drop the operations that were never waited for, which the world reports."""
        for work in list(self._unwaited):
            work.abandon()
        self._unwaited.clear()

    def _global_rank(self, call: str, argument: str, rank: int) -> int:
        """The rank in the default group of a `rank` of this one, the `argument` of a call. Raises `ValueError` if it is out of range."""
        if not 0 <= rank < self._size:
            raise ValueError(
                f"{call}: {argument}={rank} is not a rank of the group, which has 0 to {self._size - 1}"
            )
        return self.global_ranks[rank]

    def _label(self, name: str, tensor: torch.Tensor, **given: object) -> CallLabel:
        """The label of a collective of `tensor`. Raises :class:`NotContiguous` for a layout that its backend refuses in every collective."""
        check_for_nccl(name, "tensor", tensor)
        dtype = str(tensor.dtype).removeprefix("torch.")
        return CallLabel(name, (*given.items(), ("dtype", dtype), *self._named))

    def _started(
        self,
        label: CallLabel,
        start: Callable[..., Request],
        *arguments: object,
        into: Sequence[Staged] = (),
        tensors: Sequence[torch.Tensor] = (),
        status: Status | None = None,
    ) -> RequestWork:
        with called_as(label):
            request = start(*arguments)
        finish = [each.finish for each in into if each.finish is not None]
        work = RequestWork(label, request, tensors, finish, status, self._unwaited)
        self._unwaited.add(work)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _start_coalescing(self, device: object) -> None:
        """Collect the operations that are started from now on. (They still start at once.)"""
        self._coalesced = []

    def _end_coalescing(self, device: object) -> JoinedWork:
        """Return one handle for the collected operations."""
        works, self._coalesced = self._coalesced or [], None
        return JoinedWork(works)
