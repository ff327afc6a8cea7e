"""Revocable agreement of all members before a communicator is created.

Creating a communicator blocks inside MPI, where a wait cannot be revoked. So each member first sends a token to every other,
and enters MPI only when it has the tokens of all. All members get all tokens or none does, with one exception: the tokens
arrive at different times, so when a waiting rank is cancelled, others may already have all tokens and block in MPI.

    rank 0   token →  ... has all tokens ... MPI_Comm_split ........... (blocked until rank 1 joins)
    rank 1   token →  ... cancelled, one token still on its way ... report ... last token arrives: joins

So the cancelled rank keeps the creation *pending* and joins it from its next idle wait if the last token arrives. The
resulting communicator is never used.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mpi4py import MPI

from adjointlab.worlds.mpi.calls import GuardedCall
from adjointlab.worlds.mpi.control_channel import TOKEN, ControlChannel, Token
from adjointlab.worlds.mpi.guard import Guard
from adjointlab.worlds.polling import keep_alive
from adjointlab.worlds.world import Cancelled, Exhausted

__all__ = ["Agreements"]

T = TypeVar("T")


@dataclass
class _Agreement:
    members: tuple[int, ...]
    arguments: dict[int, Any]  # of the members whose tokens have arrived, by rank
    action: Callable[[Sequence[Any]], object]

    def is_reached(self) -> bool:
        return len(self.arguments) == len(self.members)

    def missing(self) -> tuple[int, ...]:
        return tuple(rank for rank in self.members if rank not in self.arguments)

    def in_rank_order(self) -> list[Any]:
        return [self.arguments[rank] for rank in self.members]


class Agreements:
    """The agreements that this process takes part in."""

    def __init__(self, control: ControlChannel, guard: Guard) -> None:
        self._control = control
        self._guard = guard
        # Tokens may arrive before this process reaches the agreement, so they are stored by run and key.
        self._arguments: dict[tuple[int, Hashable], dict[int, Any]] = {}
        self._pending: list[_Agreement] = []

    def agree(
        self,
        key: Hashable,
        members: tuple[int, ...],
        arguments: object,
        action: Callable[[Sequence[Any]], T],
        call: GuardedCall,
    ) -> T:
        """Call `action` with the arguments of all `members`, in order, once all of them have reached `key`.

        `key` is the same on all members and used once in a run. Reports show the wait as `call`.
        """
        run, rank = self._guard.run_number, self._control.rank
        for member in members:
            if member != rank:
                self._control.send(Token(run, rank, key, arguments), member, TOKEN)
        # Early tokens are here already; late ones are stored in the same dictionary, even after this rank is cancelled.
        collected = self._arguments.setdefault((run, key), {})
        collected[rank] = arguments
        agreement = _Agreement(members, collected, action)

        def is_reached() -> bool:
            self._collect()
            return agreement.is_reached()

        try:
            self._guard.wait_until(is_reached, call._replace(missing=agreement.missing))
        except Cancelled:
            self._pending.append(agreement)
            raise
        del self._arguments[run, key]
        try:
            return action(agreement.in_rank_order())
        except MPI.Exception as problem:
            if self._guard.has_leaked_many:
                # Not the fault of user code: the communicators leaked by failed runs have exhausted MPI.
                raise Exhausted(str(problem)) from problem
            raise

    def join_pending(self) -> None:
        """Join pending creations that the other members have entered; call this in every idle wait."""
        if not self._pending:
            return
        self._collect()
        for agreement in [pending for pending in self._pending if pending.is_reached()]:
            self._pending.remove(agreement)
            try:
                keep_alive(agreement.action(agreement.in_rank_order()))
            except (Exception, Cancelled):  # noqa: S112 - the others see the same error or mismatch, and report it
                continue

    def start_run(self) -> None:
        """Drop the agreements of earlier runs: all their members have reported, so none of them waits."""
        self._pending.clear()
        for run, key in list(self._arguments):
            if run < self._guard.run_number:
                del self._arguments[run, key]

    def _collect(self) -> None:
        while (token := self._control.poll(MPI.ANY_SOURCE, TOKEN)) is not None:
            # A token of a later run arrives early if its sender has already received the leader's next command.
            if token.run >= self._guard.run_number:
                self._arguments.setdefault((token.run, token.key), {})[token.rank] = token.arguments
