"""The default group of a case on real backends: made for the case, and removed after it with all state that torch keeps of it.

After the case, the state of torch.distributed from process groups that user code has made outside cases is restored.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final, NoReturn

import torch
import torch.distributed as dist

# Imported while there is no default group, because its functions bind the current one as a default argument.
import torch.distributed.nn.functional
from torch.distributed import distributed_c10d as c10d

from adjointlab.torch_distributed.meshes import forget_meshes, meshes_of_ranks
from adjointlab.torch_distributed.opening import require_same_ranks
from adjointlab.torch_distributed.tensor_metadata import shared_metadata
from adjointlab.torch_distributed.world_state import RankWorld, register_again
from adjointlab.worlds.torch.communicator import CaseGroup

__all__ = ["open_lone_group", "open_real_group"]

_module: Any = c10d
_in_c: Any = torch._C._distributed_c10d


_REPLACED: Final = ("_world", "_backend", "_default_pg_init_method", "_new_process_group_helper")
"""The variables of torch's module that a default group changes."""


@contextmanager
def open_real_group(case: CaseGroup) -> Iterator[dist.ProcessGroup]:
    """Context in which the ranks of a case are the default group. All leave it together, unless one has failed."""
    standing = _module._world
    if isinstance(standing, _CaseWorld):
        raise RuntimeError("a process group is open on this rank already: close it before you open another")
    log = case.waits.log
    with ExitStack() as stack:
        world = _CaseWorld()
        _put_back_by(stack)
        if standing.default_pg is not None:
            # The case's groups have the same names as those of that world; in this mode, names are looked up by thread.
            _in_c._set_thread_isolation_mode(True)
            stack.callback(_in_c._set_thread_isolation_mode, False)
        _module._world = world
        _module._new_process_group_helper = _hurried(_module._new_process_group_helper, case)
        stack.enter_context(meshes_of_ranks(lambda: world.identity))
        stack.enter_context(shared_metadata())
        stack.callback(_forget, world)
        stack.enter_context(log.recording(case.store))
        store: Any = case.store
        try:
            dist.init_process_group(
                case.backend, store=store, rank=case.rank, world_size=case.size, timeout=case.timeout
            )
            yield c10d._get_default_group()
        except BaseException:
            case.waits.summaries = log.summaries()
            _abort(world, case)
            raise
        case.waits.summaries = log.summaries()
        # A rank that closes its connections too early would discard data that others have not read yet.
        case.waits.meet()
        for group in tuple(world.pg_map):
            group.shutdown()


def _abort(world: _CaseWorld, case: CaseGroup) -> None:
    for group in tuple(world.pg_map):
        case.waits.groups.append(weakref.ref(group))
        with suppress(RuntimeError, AttributeError):  # gloo has nothing to abort
            group.abort()


@contextmanager
def open_lone_group() -> Iterator[None]:
    """Context in which this rank is the only one in its default group, nested in the context of a case's group."""
    case_world: _CaseWorld = _module._world
    with ExitStack() as stack:
        _put_back_by(stack)
        _in_c._unregister_all_process_groups()  # the inner groups have the same names
        stack.callback(register_again, case_world)
        world = _CaseWorld(is_alone=True)
        _module._world, _module._new_process_group_helper = world, case_world.make_group
        stack.callback(_forget, world)
        store = _in_c.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        yield
        for group in tuple(world.pg_map):
            group.shutdown()


def _put_back_by(stack: ExitStack) -> None:
    for name in _REPLACED:
        stack.callback(setattr, _module, name, getattr(_module, name))
    stack.callback(setattr, sys, "excepthook", sys.excepthook)


class _CaseWorld(RankWorld):
    """The state of torch.distributed in a case, or, with `is_alone`, of a single rank within a case."""

    def __init__(self, *, is_alone: bool = False) -> None:
        super().__init__(_made_by_torch)
        self.is_alone = is_alone
        self.make_group: Callable[..., Any] = _module._new_process_group_helper


def _made_by_torch(ranks: list[int], name: str, description: str) -> NoReturn:
    raise AssertionError("the groups of a case on real backends are made by torch")


def _forget(world: _CaseWorld) -> None:
    _in_c._unregister_all_process_groups()
    forget_meshes()
    world.default_pg = None
    for kept in (world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config):
        kept.clear()
    world.pg_to_tag.clear()
    world.tags_to_pg.clear()


def _require_one_order(case: CaseGroup, name: str, ranks: list[int]) -> None:
    """Raise :class:`GroupsInOtherOrder` if another rank has made the group of this name from other ranks, before the backend matches them."""
    if not ranks:  # the default group
        return
    store: Any = case.store
    own = str(list(ranks))
    require_same_ranks(name, own, store.compare_set(f"ranks of group {name}", "", own).decode())


def _hurried(make: Callable[..., Any], case: CaseGroup) -> Callable[..., Any]:
    """`make`, a function that makes groups, with timeouts of at most the case's: torch's default is half an hour."""

    def made(
        group_size: int, group_rank: int, ranks: list[int], *others: Any, timeout: Any = None, **keywords: Any
    ) -> Any:
        least = case.timeout if timeout is None else min(timeout, case.timeout)
        if not keywords.get("pg_tag"):
            _require_one_order(case, others[2] if len(others) > 2 else keywords["group_name"], ranks)
        group, store = make(group_size, group_rank, ranks, *others, timeout=least, **keywords)
        if ranks and isinstance(group, dist.ProcessGroup):
            case.waits.log.note_made(group, ranks)
        return group, store

    return made
