"""The default group of a rank, and the groups made from it, each over a communicator of its own."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import torch.distributed as dist

# Its functions have the default group of the time of import as a default argument, so it is imported while there is none.
import torch.distributed.nn.functional  # noqa: F401
from torch.distributed import distributed_c10d as c10d

from adjointlab.core.arrays import DeviceType
from adjointlab.torch_distributed.opening import require_same_ranks
from adjointlab.torch_distributed.process_group import DEFAULT_NAME, CommunicatorProcessGroup
from adjointlab.torch_distributed.world_state import rank_state, register
from adjointlab.typing import Communicator
from adjointlab.worlds.call_labels import CallLabel, called_as

__all__ = ["open_default_group", "open_lone_group"]


@contextmanager
def open_lone_group(comm: Communicator) -> Iterator[None]:
    """Context in which the default group of this rank of `comm`, inside that of all, is one that it is alone in."""
    around: Any = c10d._get_default_group()
    alone = _communicator(comm, [comm.rank], "alone")
    with open_default_group(alone, around.device_type, inside=True):
        yield


@contextmanager
def open_default_group(
    comm: Communicator, device_type: DeviceType = "cpu", *, inside: bool = False
) -> Iterator[dist.ProcessGroup]:
    """Context in which `comm` is the default group of this rank, which computes on `device_type`; `inside` that of another one if so asked."""
    made: list[CommunicatorProcessGroup] = []

    def new_group(global_ranks: list[int], name: str, description: str) -> dist.ProcessGroup:
        group = CommunicatorProcessGroup(
            _communicator(comm, global_ranks, name), global_ranks, name, description, device_type
        )
        made.append(group)
        return group

    with rank_state(new_group, partial(_require_one_order, comm), device_type, inside=inside) as world:
        ranks = range(comm.size)
        default = CommunicatorProcessGroup(comm, ranks, DEFAULT_NAME, "default_pg", device_type)
        made.append(default)
        register(world, default, _NoStore(), DEFAULT_NAME)
        world.pg_group_ranks[default] = {rank: rank for rank in ranks}
        world.group_count = 1
        c10d._update_default_pg(default)
        try:
            yield default
        finally:
            for group in made:
                group.forget_works()


def _communicator(comm: Communicator, ranks: list[int], name: str) -> Communicator:
    """A communicator of some ranks of `comm`; they alone call this.

    c10d numbers groups in the order in which a rank makes them, and real backends meet by that number. It is the tag here, so that
    ranks that make groups in different order wait for each other as they would there.
    """
    group = comm.Get_group().Incl(ranks)
    # The hash of a name may be the tag of another group too: not every MPI takes one above 0x7FFF. Creations are matched by ranks
    # and tag, so that can confuse groups of the same ranks alone, and only where these make them in different order.
    tag = int(name) if name.isdigit() else zlib.crc32(name.encode()) & 0x7FFF
    with called_as(CallLabel("new_group", (("ranks", list(ranks)), ("name", repr(name))))):
        made = comm.Create_group(group, tag)
    # It is torch's to forget it, with the default group at the latest.
    getattr(made, "keep", lambda: None)()
    return made


def _require_one_order(comm: Communicator, name: str, ranks: list[int]) -> None:
    """Raise :class:`GroupsInOtherOrder` where an earlier rank has made the group of this name of other ranks.

    If these are disjoint, each would be made here, and on a real backend members of different groups would meet. Only simulated
    ranks can know of each other without a message.
    """
    first_given = getattr(comm, "first_given", None)
    if first_given is not None:
        own = str(list(ranks))
        require_same_ranks(name, own, first_given(("process group", name), own))


class _NoStore:
    """Stands for the store of a group, which is for setting up backends."""

    def __getattr__(self, name: str) -> NoReturn:
        raise NotImplementedError("a process group of adjointlab has no key-value store")
