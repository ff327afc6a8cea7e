"""A communicator that notes what a layer sends, on it and on the communicators that are made from it."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Counting", "Sent"]


class Sent(NamedTuple):
    """A collective, or a message: its kind, the ranks of its communicator, and the bytes of what is sent, summed or made whole."""

    kind: str
    ranks: int
    bytes: int


class Counting:
    """`sent` lists what this rank has sent in its order, on communicators of groups too.

    The all-reduction of one number by which ranks agree on their arguments is not counted.
    """

    def __init__(self, comm: Any, sent: list[Sent] | None = None) -> None:
        self.comm: Any = comm
        self.sent: list[Sent] = [] if sent is None else sent

    def __getattr__(self, name: str) -> Any:
        assert name not in ("Alltoallv", "Alltoallw", "Send", "Scatterv", "Gatherv"), f"{name} is not counted"
        return getattr(self.comm, name)

    def Create_group(self, group: Any) -> Counting:
        return Counting(self.comm.Create_group(group), self.sent)

    def Allgather(self, sent: Any, received: Any) -> None:
        self._note("gather", received)
        self.comm.Allgather(sent, received)

    def Allgatherv(self, sent: Any, received: Any) -> None:
        self._note("gather", received[0])
        self.comm.Allgatherv(sent, received)

    def Reduce_scatter(self, sent: Any, received: Any, recvcounts: Any) -> None:
        self._note("reduce-scatter", sent)
        self.comm.Reduce_scatter(sent, received, recvcounts=recvcounts)

    def Bcast(self, buffer: Any, root: int) -> None:
        self._note("broadcast", buffer)
        self.comm.Bcast(buffer, root=root)

    def Reduce(self, sent: Any, received: Any, root: int) -> None:
        self._note("reduce", sent)
        self.comm.Reduce(sent, received, root=root)

    def Isend(self, buffer: Any, dest: int, tag: int) -> Any:
        self._note("message", buffer)
        return self.comm.Isend(buffer, dest, tag)

    def _note(self, kind: str, array: Any) -> None:
        self.sent.append(Sent(kind, self.comm.Get_size(), array.nbytes))
