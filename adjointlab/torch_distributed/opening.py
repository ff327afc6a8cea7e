"""The default process group of torch.distributed over a communicator of the lab."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from adjointlab.core.arrays import DeviceType
from adjointlab.core.communicators import size_of
from adjointlab.core.partition import integers
from adjointlab.typing import Communicator
from adjointlab.worlds.call_sites import call_site
from adjointlab.worlds.torch.requirements import check_torch

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    from adjointlab.worlds.torch.communicator import CaseGroup

__all__ = [
    "GroupsInOtherOrder",
    "device_mesh",
    "load_process_groups",
    "lone_group",
    "process_group",
    "require_same_ranks",
]


class GroupsInOtherOrder(RuntimeError):
    """Ranks make different groups under the same number, by which real backends match them."""


def require_same_ranks(name: str, ranks: str, earlier: str) -> None:
    """Raise :class:`GroupsInOtherOrder` if the group of this name has other `ranks` than on an `earlier` rank."""
    if ranks != earlier:
        raise GroupsInOtherOrder(
            f"new_group at {call_site()} makes group number {name} of ranks {ranks}, and on another rank that is the group of ranks "
            f"{earlier}: all ranks have to make all groups, in one order, also those of which they are not members"
        )


@contextmanager
def process_group(comm: Communicator, device_type: DeviceType = "cpu") -> Iterator[dist.ProcessGroup]:
    """Context in which the ranks of `comm` are the default process group of torch.distributed.

    Code that calls ``dist.all_reduce``, makes groups with ``dist.new_group`` or builds a mesh runs unchanged in it, in every world.
    Its groups move tensors on the host and on CUDA devices; `device_type` is the device that torch reports for them.
    Collective; on leaving it, all groups made in it are gone. Raises `TypeError` for anything but a communicator, and for mpi4py's own;
    `RuntimeError` if a group is open on this rank already.
    """
    if type(comm).__module__.partition(".")[0] == "mpi4py":
        raise TypeError(
            "process_group takes the communicator that a case or the run of a world is given, not mpi4py's own, whose waits do not end"
        )
    size_of(comm)  # raises TypeError for anything but a communicator
    case_group: CaseGroup | None = getattr(comm, "case_group", None)
    if case_group is not None:  # real processes, on a backend of torch
        from adjointlab.torch_distributed.real_group import open_real_group

        with open_real_group(case_group) as group:
            yield group
        return
    with load_process_groups()(comm, device_type) as group:
        yield group


@contextmanager
def lone_group(comm: Communicator) -> Iterator[None]:
    """Context in which this rank is the only one in its default process group, while that of `comm` is open.

    For code that must behave as in a job of one process.
    """
    if getattr(comm, "case_group", None) is not None:
        from adjointlab.torch_distributed import real_group

        with real_group.open_lone_group():
            yield
        return
    from adjointlab.torch_distributed import default_group

    with default_group.open_lone_group(comm):
        yield


def load_process_groups() -> Callable[[Communicator, DeviceType], AbstractContextManager[dist.ProcessGroup]]:
    """Import torch.distributed, which takes a second, and return the function that opens a default group.

    Raises :class:`~adjointlab.worlds.torch.requirements.MissingTorch` if torch does not have it.
    """
    check_torch()
    from adjointlab.torch_distributed.default_group import open_default_group

    return open_default_group


@contextmanager
def device_mesh(
    comm: Communicator,
    shape: Sequence[int],
    names: Sequence[str] | None = None,
    device_type: DeviceType = "cpu",
) -> Iterator[DeviceMesh]:
    """Context with a mesh of the ranks of `comm` on `device_type`, in a default process group that is open for the same time.

    Raises `TypeError` for anything but a shape, `ValueError` if its size is not the number of ranks, and the exceptions of
    :func:`process_group`.
    """
    extents, ranks = integers("shape", shape), size_of(comm)
    if math.prod(extents) != ranks or any(extent < 1 for extent in extents):
        raise ValueError(
            f"a mesh of shape {extents} has {math.prod(extents)} entries, and the communicator {ranks} ranks"
        )
    with process_group(comm, device_type):
        from torch.distributed.device_mesh import init_device_mesh

        dims = None if names is None else tuple(names)
        yield init_device_mesh(device_type, extents, mesh_dim_names=dims)
