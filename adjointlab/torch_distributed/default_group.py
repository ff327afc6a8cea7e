"""The default group of a rank, and the groups made from it, each over its own communicator."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import torch.distributed as dist

# Imported while there is no default group, because its functions bind the current one as a default argument.
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
    """Context in which this rank is the only one in its default group, nested in the context of the group of all ranks of `comm`."""
    around: Any = c10d._get_default_group()
    alone = _communicator(comm, [comm.rank], "alone")
    with open_default_group(alone, around.device_type, inside=True):
        yield


@contextmanager
def open_default_group(
    comm: Communicator, device_type: DeviceType = "cpu", *, inside: bool = False
) -> Iterator[dist.ProcessGroup]:
    """Context in which `comm` is the default group of this rank, which computes on `device_type`; nested in another one only if `inside`."""
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
    """A communicator of some ranks of `comm`; only these call this.

    c10d numbers groups in the order in which a rank makes them, and real backends match them by that number. Here it is the tag, so that
    ranks that make groups in different order wait for each other as they would there.
    """
    group = comm.Get_group().Incl(ranks)
    # The hash of a name may collide with another group's tag, because not every MPI takes tags above 0x7FFF. Creations are matched by
    # ranks and tag, so a collision can confuse only groups of the same ranks, and only if these make them in different order.
    tag = int(name) if name.isdigit() else zlib.crc32(name.encode()) & 0x7FFF
    with called_as(CallLabel("new_group", (("ranks", list(ranks)), ("name", repr(name))))):
        made = comm.Create_group(group, tag)
    # torch drops it, with the default group at the latest, so it does not count as leaked.
    getattr(made, "keep", lambda: None)()
    return made


def _require_one_order(comm: Communicator, name: str, ranks: list[int]) -> None:
    """Raise :class:`GroupsInOtherOrder` if an earlier rank has made the group of this name from other ranks.

    If the sets of ranks are disjoint, both groups would be made here, but a real backend would match members of different groups. Only
    simulated ranks can compare without a message.
    """
    first_given = getattr(comm, "first_given", None)
    if first_given is not None:
        own = str(list(ranks))
        require_same_ranks(name, own, first_given(("process group", name), own))


class _NoStore:
    """Placeholder for the store of a group, which only backends need for their set-up."""

    def __getattr__(self, name: str) -> NoReturn:
        raise NotImplementedError("a process group of adjointlab has no key-value store")
