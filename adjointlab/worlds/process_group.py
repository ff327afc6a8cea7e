"""Refusal of torch's process groups during a run, unless the default group has exactly the run's ranks, or is the lab's own.

Simulated ranks are threads of one process, which is a single rank of any real process group; and under MPI a case may
leave processes out. Code that communicates over a group of other ranks would find none of them there, and either be judged as if it
had, or wait for them for ever.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from adjointlab.replacement import replaced
from adjointlab.worlds.current_run import CurrentRun
from adjointlab.worlds.run import FindingKind

__all__ = ["process_groups_of"]

_ENTRANCES = {
    "torch.distributed.distributed_c10d": ("_get_default_group", "_rank_not_in_group"),
    "torch.distributed._functional_collectives": ("_resolve_group", "_resolve_group_name"),
}
"""Functions through which every collective of torch.distributed (2.1 to 2.14) obtains its group."""

_WITHOUT_A_GROUP = "Code that calls torch.distributed is checked with the subject's option process_group=True, or in al.process_group(comm)"

_OPEN_ALREADY = "In a case the lab has opened it: call init_process_group only if not dist.is_initialized()"

_ON_A_THREAD = (
    "This thread does not belong to a rank: simulated ranks are threads, each with its own process groups, so call collectives on the "
    "thread that runs the operator or module"
)


@contextmanager
def process_groups_of(run: CurrentRun, ranks: int | None) -> Iterator[None]:
    """Context in which `run` refuses collectives of process groups, unless the default group has so many `ranks` (None: always).

    It has no effect if torch has not been imported before.
    """
    with ExitStack() as stack:
        for name, functions in _ENTRANCES.items():
            module: Any = sys.modules.get(name)
            for function in filter(partial(hasattr, module), functions):
                takes_groups_only = function == "_rank_not_in_group"  # the others also take names of groups
                checked = _checked(getattr(module, function), run, ranks, takes_groups_only)
                stack.enter_context(replaced(module, function, checked))
        dist: Any = sys.modules.get("torch.distributed")
        if hasattr(dist, "init_process_group"):
            opening = _opening(dist.init_process_group)
            stack.enter_context(replaced(dist, "init_process_group", opening))
        yield


def _opening(original: Callable[..., Any]) -> Callable[..., Any]:
    def init_process_group(*arguments: Any, **keywords: Any) -> Any:
        try:
            return original(*arguments, **keywords)
        except ValueError as error:
            if "twice" in str(error):
                raise ValueError(f"{error} {_OPEN_ALREADY}") from None
            raise

    return init_process_group


def _is_no_group(value: object) -> bool:
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    return not (
        value is None or isinstance(value, c10d.ProcessGroup) or value is c10d.GroupMember.NON_GROUP_MEMBER
    )


def _checked(
    original: Callable[..., Any], run: CurrentRun, ranks: int | None, takes_groups_only: bool
) -> Callable[..., Any]:
    is_compiling = sys.modules["torch"].compiler.is_compiling

    def checked(*arguments: Any, **keywords: Any) -> Any:
        # torch.compile traces this function too, and cannot look up attributes of groups.
        if is_compiling():
            return original(*arguments, **keywords)
        world = sys.modules["torch.distributed.distributed_c10d"]._world
        default, is_alone = world.default_pg, getattr(world, "is_alone", False)
        owners = [group.rank_of_run for group in (default, *arguments) if hasattr(group, "rank_of_run")]
        if len(owners) > 1 and len(set(owners)) > 1:
            run.refuse(
                f"a process group of rank {owners[1]} is used: the simulated ranks are threads and share module-level state; keep "
                "groups and meshes in the operator or module, make them in each call, or name the package in the option `rank_local`",
                FindingKind.GROUP_OF_ANOTHER_RANK,
            )
        # A group of the lab's is over a communicator of this run, or has only this rank.
        if default is not None and not owners and not is_alone and default.size() != ranks:
            run.refuse(
                f"a process group of torch.distributed is used, whose default group has {default.size()} ranks, and they are not "
                "those of the case: use the communicator that the operator is given"
            )
        if default is None and takes_groups_only and (others := list(filter(_is_no_group, arguments))):
            # Otherwise torch would raise an error that does not mention groups, for example if a communicator was passed first and
            # has shifted the other arguments to the right.
            raise ValueError(
                f"no process group is open, and {others[0]!r} is not a process group. {_WITHOUT_A_GROUP}"
            )
        try:
            return original(*arguments, **keywords)
        except ValueError as error:
            if default is not None:
                raise
            advice = _ON_A_THREAD if hasattr(world, "of_thread") else _WITHOUT_A_GROUP
            raise ValueError(f"{error} {advice}") from None

    return checked
