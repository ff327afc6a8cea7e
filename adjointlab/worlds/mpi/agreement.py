"""Before a communicator is made, all its makers agree that they are about to.

Making a communicator blocks inside MPI, where no wait can be called off. So each maker first sends a token to every
other, and goes on only with the tokens of all. Either all makers get them or none does, save for the time they
travel: a rank that is called out of its wait for tokens may leave others behind who have them all and sit in MPI.
Such a rank keeps the creation *pending*, and joins in from its next idle wait if the last token still comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from adjointlab.worlds.mpi.calls import Call
from adjointlab.worlds.mpi.control_channel import TOKEN, Control, Token
from adjointlab.worlds.mpi.guard import Guard
from adjointlab.worlds.mpi.keepalive import keep_alive
from adjointlab.worlds.world import Cancelled, Exhausted

__all__ = ["Agreements"]

Create = Callable[[Sequence[Any]], Any]  # from the arguments of all members, in order


@dataclass
class _Creation:
    members: tuple[int, ...]
    tokens: dict[int, Any]
    create: Create

    def is_agreed(self) -> bool:
        return len(self.tokens) == len(self.members)

    def missing(self) -> tuple[int, ...]:
        return tuple(rank for rank in self.members if rank not in self.tokens)

    def carry_out(self) -> Any:
        return self.create([self.tokens[rank] for rank in self.members])


class Agreements:
    """The agreements that this process takes part in."""

    def __init__(self, control: Control, guard: Guard) -> None:
        self._control = control
        self._guard = guard
        self._tokens: dict[tuple[int, Any], dict[int, Any]] = {}  # by run and key, then rank
        self._pending: list[_Creation] = []

    def agree(self, key: Any, members: tuple[int, ...], arguments: Any, create: Create, call: Call) -> Any:
        """``create(the arguments of all members)``, once all `members` stand before the creation `key`."""
        run, here = self._guard.run, self._control.rank
        for rank in members:
            if rank != here:
                self._control.send(Token(run, here, key, arguments), rank, TOKEN)
        tokens = self._tokens.setdefault((run, key), {})
        tokens[here] = arguments
        creation = _Creation(members, tokens, create)

        def agreed() -> bool:
            self._collect()
            return creation.is_agreed()

        try:
            self._guard.until(agreed, call._replace(missing=creation.missing))
        except Cancelled:
            self._pending.append(creation)
            raise
        del self._tokens[run, key]
        try:
            return creation.carry_out()
        except MPI.Exception as problem:
            if self._guard.is_littered:
                # Not what user code has made is too much, but what is left of runs that failed.
                raise Exhausted(str(problem)) from problem
            raise

    def honour(self) -> None:
        """Join the pending creations that have been agreed after all; call it while idle."""
        if not self._pending:
            return
        self._collect()
        for creation in [pending for pending in self._pending if pending.is_agreed()]:
            self._pending.remove(creation)
            try:
                keep_alive(creation.carry_out())
            except Exception:  # noqa: S112 - the others see the same error, and report it
                continue

    def begin(self) -> None:
        """A run begins: what was not agreed in earlier ones never will be."""
        self._pending.clear()
        for run, key in list(self._tokens):
            if run < self._guard.run:
                del self._tokens[run, key]

    def _collect(self) -> None:
        while (token := self._control.poll(MPI.ANY_SOURCE, TOKEN)) is not None:
            if token.run >= self._guard.run:
                self._tokens.setdefault((token.run, token.key), {})[token.rank] = token.arguments
