"""torch's default process group while ranks run: it is refused unless it has just these ranks.

Simulated ranks are threads of one process, which is one rank of its process group, if there is any; and under MPI a case may
leave processes out. Code that talks over a group of other ranks would meet none of them, and be judged as if it had, or wait for
them for ever.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["default_process_group_of"]


class _ProcessGroup(Protocol):
    def size(self) -> int: ...


@contextmanager
def default_process_group_of(ranks: int | None) -> Iterator[None]:
    """Context in which what needs torch's default group raises, unless that has so many `ranks` (None: always).

    It takes effect if torch is imported by then.
    """
    # Every function of torch.distributed gets the group from this one (torch 2.1 to 2.13).
    module = sys.modules.get("torch.distributed.distributed_c10d")
    original: Callable[[], _ProcessGroup] | None = getattr(module, "_get_default_group", None)
    if original is None:
        yield
        return

    def checked() -> _ProcessGroup:
        group = original()
        if group.size() == ranks:
            return group
        raise RuntimeError(
            f"torch.distributed's default process group has {group.size()} ranks, and they are not those of the case: use the "
            "communicator that the operator is given"
        )

    module._get_default_group = checked  # type: ignore[union-attr]
    try:
        yield
    finally:
        module._get_default_group = original  # type: ignore[union-attr]
