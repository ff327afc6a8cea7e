"""A process group of torch.distributed over a communicator of the lab, simulated or guarded.

Every operation is a non-blocking call of the communicator and a `Work` that waits for it. So the world finds the same faults in torch
code as in MPI code: deadlocks, mismatched collectives, buffers touched too early, requests left open. Each call has a label in torch's
terms, with everything on which the ranks must agree, though real backends let some disagreements pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.distributed as dist

from adjointlab.core.arrays import DeviceType
from adjointlab.torch_distributed.collectives import Collectives
from adjointlab.torch_distributed.messages import Messages
from adjointlab.typing import Communicator

__all__ = ["DEFAULT_NAME", "CommunicatorProcessGroup"]

DEFAULT_NAME: Final = "0"
"""Name of the default group, by which functional collectives find it."""

_BACKEND: Final = "adjointlab"
"""Name of the backend in torch's C++ code. Not the name of a real one, for which torch would use its own backend."""
# Torch's stubs give each method the overloads of one version.
_ProcessGroup: Any = dist.ProcessGroup


class _Backend:
    """The backend of a group and device for torch to query: it supports no optional feature."""

    supports_coalescing = supports_splitting = supports_time_estimate = False

    def supports_tensor_alloc(self, device: object) -> bool:
        return False

    def name(self) -> str:
        return _BACKEND


class CommunicatorProcessGroup(Collectives, Messages, _ProcessGroup):  # type: ignore[misc]
    """The process group of `comm`, whose ranks are `global_ranks` in the default group, in a job that computes on `device_type`."""

    def __init__(
        self,
        comm: Communicator,
        global_ranks: Sequence[int],
        name: str,
        description: str,
        device_type: DeviceType = "cpu",
    ) -> None:
        _ProcessGroup.__init__(self, comm.rank, comm.size)
        Collectives.__init__(self, comm, global_ranks, is_default=name == DEFAULT_NAME)
        self.rank_of_run = global_ranks[comm.rank]  # by which the worlds recognise their groups
        self._group_name, self._description = name, description
        self.device_type = device_type

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def name(self) -> str:
        return _BACKEND

    def getBackendName(self) -> str:
        return _BACKEND

    @property
    def group_name(self) -> str:
        return self._group_name

    @property
    def group_desc(self) -> str:
        return self._description

    @property
    def _device_types(self) -> list[torch.device]:
        types = ["cpu"] if self.device_type == "cpu" else ["cpu", self.device_type]
        return [torch.device(each) for each in types]

    def _get_backend(self, device: object) -> _Backend:
        return _Backend()

    def shutdown(self) -> None:
        """Do nothing: the run frees its communicators."""

    def __repr__(self) -> str:
        return f"<process group of ranks {list(self.global_ranks)}>"
