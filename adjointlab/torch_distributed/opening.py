"""Opening the default process group of torch.distributed over a communicator of the lab."""

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
    """A rank makes another group than the others under one number, by which real backends meet."""


def require_same_ranks(name: str, ranks: str, earlier: str) -> None:
    """Raise :class:`GroupsInOtherOrder` where the group of this name has other `ranks` than on an `earlier` rank."""
    if ranks != earlier:
        raise GroupsInOtherOrder(
            f"new_group at {call_site()} makes group number {name} of ranks {ranks}, and on another rank that is the group of ranks "
            f"{earlier}: all ranks have to make all groups, in one order, also those of which they are not members"
        )


@contextmanager
def process_group(comm: Communicator, device_type: DeviceType = "cpu") -> Iterator[dist.ProcessGroup]:
    """Context in which the ranks of `comm` are the default process group of torch.distributed.

    Code that calls ``dist.all_reduce``, makes groups with ``dist.new_group`` or builds a mesh runs unchanged in it, in every world.
    Its groups move tensors of the host and of CUDA devices; `device_type` is where code that asks is told that it computes.
    Collective; on leaving it, all groups made in it are gone. Raises `TypeError` for what is not a communicator or mpi4py's own, and `RuntimeError`
    where a group is open on this rank already.
    """
    if type(comm).__module__.partition(".")[0] == "mpi4py":
        raise TypeError(
            "process_group takes the communicator that a case or the run of a world is given, not mpi4py's own, whose waits do not end"
        )
    size_of(comm)  # which refuses what is not a communicator
    case_group: CaseGroup | None = getattr(comm, "case_group", None)
    if case_group is not None:  # of real processes, on a backend of torch's
        from adjointlab.torch_distributed.real_group import open_real_group

        with open_real_group(case_group) as group:
            yield group
        return
    with load_process_groups()(comm, device_type) as group:
        yield group


@contextmanager
def lone_group(comm: Communicator) -> Iterator[None]:
    """Context in which this rank's default process group, while that of `comm` is open, is one that it is alone in.

    For code that has to do what it does in a job of one process, whatever it asks torch.distributed.
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
    """Import torch.distributed, which takes a second, and return what opens a default group.

    Raises :class:`~adjointlab.worlds.torch.requirements.MissingTorch` where there is none.
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
    """Context with a mesh of the ranks of `comm` on `device_type`, in a default process group that is open as long.

    Raises `TypeError` for what is not a shape, `ValueError` for one whose size is not the number of ranks, and what
    :func:`process_group` does.
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
