"""Log of a rank's calls of torch.distributed in one case, to name mismatches that a real backend accepts, or crashes on.

The log has the calls that Python code makes on process groups. Functional collectives and torch's own C++ code (such as the reducer of
DistributedDataParallel) bypass Python. Each group counts its operations itself, which shows whether the log is complete.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from adjointlab.replacement import replaced
from adjointlab.worlds.backward import is_in_backward
from adjointlab.worlds.call_labels import CallLabel
from adjointlab.worlds.call_sites import CallSite, call_site
from adjointlab.worlds.parts import counts_text
from adjointlab.worlds.torch.splits import SplitBoard, Splits, splits_of
from adjointlab.worlds.torch.store import Store, prefixed

__all__ = ["CallLog", "GroupSummary", "LoggedCall"]

_NAMES: Final = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "_allgather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "all_gather_single_coalesced": "all_gather_into_tensor",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    **{
        name: name
        for name in [
            "all_to_all_single",
            "barrier",
            "broadcast",
            "gather",
            "reduce",
            "reduce_scatter",
            "scatter",
            "send",
            "recv",
            "recv_anysource",
        ]
    },
}
"""Methods of a process group, and the functions by which user code calls them."""

_MESSAGES: Final = ("send", "recv", "recv_anysource")
_SAME_COUNT: Final = ("all_gather_into_tensor", "all_reduce", "broadcast", "reduce")
"""Collectives for which the number of elements must be equal on all ranks."""


class LoggedCall(NamedTuple):
    """A collective, and the line of user code that called it."""

    label: CallLabel
    where: str
    in_backward: bool = False
    splits: Splits | None = None

    def __str__(self) -> str:
        # Not part of the label, which must be equal on all ranks.
        counts = "" if self.splits is None else counts_text(*self.splits)
        return f"{self.label} at {self.where}{counts}"


class GroupSummary(NamedTuple):
    """The collectives of one rank on one group; not `is_complete` if other operations have bypassed the log."""

    members: tuple[int, ...]
    made_at: str
    operations: int
    collectives: tuple[LoggedCall, ...]
    is_complete: bool


@dataclass
class _OfGroup:
    group: Any  # a ProcessGroup; torch's stubs lack most of its methods
    members: tuple[int, ...]
    made_at: str = ""
    collectives: list[tuple[CallLabel, CallSite, bool, Splits | None]] = field(default_factory=list)
    messages: int = 0
    counted: int = 0  # operations that the group had counted after the last call
    is_complete: bool = True

    def count(self) -> int:
        """Operations that the backends of the group have counted so far; 0 if they do not count."""
        counted = 0
        for device in self.group._device_types:
            with suppress(RuntimeError):
                counted += self.group._get_backend(device)._get_sequence_number_for_group()
        return counted

    def before_call(self) -> None:
        """Check for operations since the last call that have bypassed the log."""
        self.is_complete = self.is_complete and self.count() == self.counted

    def after_failed_collective(self) -> None:
        """Remove the call from the log if the group has refused it before starting it: user code may try again."""
        if self.count() == self.counted:
            self.collectives.pop()

    def after_call(self) -> None:
        """Record the group's count. One call may count as several operations."""
        self.counted = self.count()

    def summary(self) -> GroupSummary:
        self.before_call()
        calls = tuple(
            LoggedCall(label, str(site), in_backward, splits)
            for label, site, in_backward, splits in self.collectives
        )
        operations = max(self.counted, self.count(), len(calls) + self.messages)
        return GroupSummary(self.members, self.made_at, operations, calls, self.is_complete)


class CallLog:
    """The calls of this rank."""

    def __init__(self) -> None:
        self.calls = 0
        self.last: LoggedCall | None = None
        self.last_at = time.monotonic()
        self._groups: dict[str, _OfGroup] = {}
        self._openings = 0
        self._board: SplitBoard | None = None

    @contextmanager
    def recording(self, store: Store) -> Iterator[None]:
        """Context in which calls are logged, and split sizes compared through `store`, which is the case's own."""
        self._openings += 1
        # A new prefix, because keys of an earlier default group of the same case may still exist.
        self._board = SplitBoard(prefixed(store, f"adjointlab/splits/{self._openings}"))
        kind: Any = dist.ProcessGroup
        with ExitStack() as stack:
            for method, name in _NAMES.items():
                if method in vars(kind):
                    logged = self._logged(getattr(kind, method), name)
                    stack.enter_context(replaced(kind, method, logged))
            yield

    def note_made(self, group: dist.ProcessGroup, members: Sequence[int]) -> None:
        """Record that user code has made a group."""
        self._groups[group.group_name] = _OfGroup(group, tuple(members), str(call_site()))

    def summaries(self) -> dict[str, GroupSummary]:
        """Return the collectives called on each group, by its name, and drop the references to the groups."""
        for group in list(c10d._world.pg_map):
            self._of(group)
        summaries = {name: each.summary() for name, each in self._groups.items()}
        self._groups.clear()
        return summaries

    def _of(self, group: dist.ProcessGroup) -> _OfGroup:
        name = group.group_name
        if name not in self._groups:
            members = c10d._world.pg_group_ranks.get(group, {})
            self._groups[name] = _OfGroup(group, tuple(sorted(members)))
        return self._groups[name]

    def _logged(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(group: Any, /, *arguments: Any, **keywords: Any) -> Any:
            # Groups of the sequential module have the same names as those of the case, but involve no other rank.
            if getattr(c10d._world, "is_alone", False):
                return original(group, *arguments, **keywords)
            of_group = self._of(group)
            label = _label(name, of_group.members, (*arguments, *keywords.values()))
            of_group.before_call()
            splits = None
            if name == "all_to_all_single":
                splits = splits_of(len(of_group.members), *arguments[:4])
            self._note(of_group, label, call_site(), splits)
            self._compare(of_group, splits)
            try:
                return original(group, *arguments, **keywords)
            except BaseException:
                if name not in _MESSAGES:
                    of_group.after_failed_collective()
                raise
            finally:
                of_group.after_call()

        return call

    def _compare(self, of_group: _OfGroup, splits: Splits | None) -> None:
        """Compare `splits` of the last call with those of other ranks. Raises :class:`SplitMismatch`."""
        # If calls have bypassed the log, its entries cannot be matched.
        if splits is not None and self._board is not None and of_group.is_complete:
            call = f"{of_group.group.group_name}/{len(of_group.collectives)}"
            self._board.publish(call, of_group.members, dist.get_rank(), splits)

    def _note(self, of_group: _OfGroup, label: CallLabel, site: CallSite, splits: Splits | None) -> None:
        self.calls += 1
        self.last, self.last_at = LoggedCall(label, str(site)), time.monotonic()
        if label.name in _MESSAGES:
            of_group.messages += 1
        else:
            of_group.collectives.append((label, site, is_in_backward(), splits))


def _label(name: str, members: tuple[int, ...], arguments: tuple[Any, ...]) -> CallLabel:
    """The call in terms of torch's API, with the arguments that must be equal on all ranks."""
    tensor = next(_tensors(arguments), None)
    op = next((each.reduceOp for each in arguments if hasattr(each, "reduceOp")), None)
    root = next((each.rootRank for each in arguments if hasattr(each, "rootRank")), None)
    shown: list[tuple[str, object]] = []
    if op is not None:
        shown.append(("op", str(getattr(op, "op", op)).rpartition(".")[2]))
    if root is not None and 0 <= root < len(members):
        shown.append(("src" if name in ("broadcast", "scatter") else "dst", members[root]))
    if tensor is not None:
        if name in _SAME_COUNT:
            shown.append(("count", tensor.numel()))
        shown.append(("dtype", str(tensor.dtype).removeprefix("torch.")))
    if len(members) < dist.get_world_size():
        shown.append(("group", list(members)))
    return CallLabel(name, tuple(shown))


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
