"""The module-level state of torch.distributed, separate for each rank: simulated ranks are threads and would share it.

c10d keeps its groups in ``distributed_c10d._world``, and functional collectives find them by name in a C++ registry. While
some rank has process groups open, the first is replaced by a proxy for a thread-local object, and the second is switched to a
thread-local mode that torch has. When the last rank has closed its groups, everything is restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import local
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from adjointlab.core.arrays import DeviceType
from adjointlab.replacement import replaced
from adjointlab.torch_distributed.meshes import forget_meshes, meshes_of_ranks
from adjointlab.torch_distributed.tensor_metadata import shared_metadata

__all__ = ["NewGroup", "NoteGroup", "RankWorld", "rank_state", "register", "register_again"]

_in_c: Any = torch._C._distributed_c10d

NewGroup = Callable[[list[int], str, str], dist.ProcessGroup]
"""Makes a process group of some global ranks, with a name and a description."""

NoteGroup = Callable[[str, list[int]], None]
"""Records a group that a rank asks for, by its name and its global ranks."""


@contextmanager
def rank_state(
    new_group: NewGroup, note_group: NoteGroup, device_type: DeviceType, *, inside: bool
) -> Iterator[RankWorld]:
    """Context in which this thread has its own state of torch.distributed, with groups made by `new_group`, to compute on `device_type`.

    ``note_group(name, ranks)`` is called for every group that this rank asks for, even if it is not a member.

    Raises `RuntimeError` if it has one already, unless this one is nested `inside` that.
    """
    standing: Any = c10d._world
    installation = standing.installation if isinstance(standing, _WorldOfThread) else _Installation()
    with installation.opened(RankWorld(new_group, note_group, device_type), inside=inside) as world:
        yield world


class RankWorld(c10d._World):
    """The state of one rank, which c10d keeps in module-level variables."""

    pg_map: Any = None
    pg_names: Any = None
    pg_group_ranks: Any = None
    pg_backend_config: Any = None
    group_count: int = 0
    tags_to_pg: Any = None
    pg_to_tag: Any = None

    def __init__(
        self,
        new_group: NewGroup,
        note_group: NoteGroup = lambda name, ranks: None,
        device_type: DeviceType = "cpu",
    ) -> None:
        super().__init__()
        self.new_group, self.note_group, self.device_type = new_group, note_group, device_type
        self.identity = uuid4().int  # unique in each case and process
        self.pg_map, self.pg_names, self.pg_group_ranks = {}, {}, {}
        self.pg_backend_config, self.tags_to_pg, self.pg_to_tag = {}, {}, {}


class _WorldOfThread:
    """Proxy for ``distributed_c10d._world``: every access goes to the state of the calling thread."""

    installation: _Installation
    of_thread: local
    before: Any

    def __init__(self, installation: _Installation) -> None:
        vars(self)["installation"] = installation
        # Stored here for speed: torch reads attributes some fifty times in each operation of a DTensor.
        vars(self)["of_thread"], vars(self)["before"] = installation.of_thread, installation.world_before

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(self.of_thread, "world", self.before), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.installation.current(), name, value)


class _Installation:
    """The replacements in torch, in place from the first rank that opens a group to the last that closes its own."""

    def __init__(self) -> None:
        self._module: Any = c10d
        self.world_before = self._module._world
        self._make_before = self._module._new_process_group_helper
        self.of_thread = local()
        self._open = 0
        self._replacements = ExitStack()

    def current(self) -> Any:
        """The state of the calling thread: its own, or the original one if it has none."""
        return getattr(self.of_thread, "world", self.world_before)

    @contextmanager
    def opened(self, world: RankWorld, *, inside: bool) -> Iterator[RankWorld]:
        """Context in which `world` is the state of this thread."""
        outer: RankWorld | None = getattr(self.of_thread, "world", None)
        if outer is not None and not inside:
            raise RuntimeError(
                "a process group is open on this rank already: close it before you open another"
            )
        if outer is not None:
            _in_c._unregister_all_process_groups()  # the inner groups have the same names
        if not self._open:
            self._install()
        self._open += 1
        self.of_thread.world = world
        try:
            yield world
        finally:
            _in_c._unregister_all_process_groups()  # of this thread
            forget_meshes()
            if outer is None:
                del self.of_thread.world
            else:
                self.of_thread.world = outer
                register_again(outer)
            self._open -= 1
            if not self._open:
                self._uninstall()

    def _install(self) -> None:
        enter = self._replacements.enter_context
        enter(replaced(self._module, "_world", _WorldOfThread(self)))
        enter(replaced(self._module, "_new_process_group_helper", self._new_process_group))
        _in_c._set_thread_isolation_mode(True)
        self._replacements.callback(_in_c._set_thread_isolation_mode, False)
        enter(meshes_of_ranks(lambda: getattr(self.current(), "identity", None)))
        enter(shared_metadata())

    def _uninstall(self) -> None:
        self._replacements.close()
        default = self.world_before.default_pg
        _in_c._set_global_rank(-1 if default is None else default.rank())

    def _new_process_group(
        self,
        group_size: int,
        group_rank: int,
        global_ranks_in_group: list[int],
        backend: object,
        store: object,
        group_name: str,
        *options: Any,
        pg_tag: str | None = None,
        group_desc: str | None = None,
        **others: Any,
    ) -> Any:
        """Make a group in place of c10d's function of this name, for any backend."""
        world = self.current()
        if not isinstance(world, RankWorld):
            arguments = (group_size, group_rank, global_ranks_in_group, backend, store, group_name, *options)
            return self._make_before(*arguments, pg_tag=pg_tag, group_desc=group_desc, **others)
        if not pg_tag:
            world.note_group(group_name, global_ranks_in_group)
        if pg_tag and (existing := self._module._find_pg_by_ranks_and_tag(pg_tag, global_ranks_in_group)):
            return existing, world.pg_map[existing][1]
        if world.default_pg is not None and world.default_pg.rank() not in global_ranks_in_group:
            return dist.GroupMember.NON_GROUP_MEMBER, None
        group = world.new_group(global_ranks_in_group, group_name, group_desc or "undefined")
        register(world, group, store, group_name, pg_tag)
        return group, store


def register_again(world: Any) -> None:
    """Register the groups of `world` under their names again, for functional collectives, after those of another world."""
    for group, name in world.pg_names.items():
        _in_c._register_process_group(name, group)
    _in_c._set_global_rank(world.default_pg.rank())


def register(
    world: RankWorld, group: dist.ProcessGroup, store: object, name: str, tag: str | None = None
) -> None:
    """Add a group to the state of a rank."""
    # Report the backend that code expects: only gloo has `monitored_barrier`, say.
    is_on_host = world.device_type == "cpu"
    world.pg_map[group] = ("gloo" if is_on_host else "nccl", store)
    world.pg_names[group] = name
    world.pg_backend_config[group] = "cpu:gloo" if is_on_host else "cpu:gloo,cuda:nccl"
    if tag:
        tag = f"user:{tag}"
    else:
        tag = f"ptd:{name}"
        world.tags_to_pg.setdefault("", []).append(group)
    world.tags_to_pg.setdefault(tag, []).append(group)
    world.pg_to_tag[group] = tag
    _in_c._register_process_group(name, group)
