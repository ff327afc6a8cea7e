"""The kinds of collectives: their arguments, and which buffers have a block for each rank or are significant only at the root."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["COLLECTIVES", "Collective", "Counted", "collective_kind"]


class Counted(NamedTuple):
    """The buffer whose number of elements must be equal on all ranks, and the one that determines it if the first is ``IN_PLACE``."""

    buffer: str
    in_place: str | None = None
    is_per_rank: bool = False  # the second one has that number of elements for each rank


class Collective(NamedTuple):
    """One kind of collective, as MPI defines it."""

    parameters: tuple[str, ...]  # mpi4py's, in order
    counted: Counted | None = None
    sends_blocks: bool = False  # with separate counts
    receives_blocks: bool = False
    only_root_sends: bool = False
    only_root_receives: bool = False

    @property
    def only_root_in_place(self) -> str | None:
        """The buffer for which only the root may give ``IN_PLACE``; None if the collective has none."""
        return "sendbuf" if self.only_root_receives else "recvbuf" if self.only_root_sends else None

    @property
    def has_blocks(self) -> bool:
        """True if the numbers of elements may differ between ranks, so that senders and receivers must agree pairwise."""
        return self.sends_blocks or self.receives_blocks


_EXCHANGE: Final = ("sendbuf", "recvbuf")
_ROOTED: Final = (*_EXCHANGE, "root")
_REDUCTION: Final = (*_EXCHANGE, "op")

_ALL: Final = Counted("sendbuf", "recvbuf")
_ONE_BLOCK_SENT: Final = Counted("sendbuf", "recvbuf", is_per_rank=True)
_ONE_BLOCK_RECEIVED: Final = Counted("recvbuf", "sendbuf", is_per_rank=True)

COLLECTIVES: Final[Mapping[str, Collective]] = {
    "bcast": Collective(("buf", "root"), Counted("buf")),
    "gather": Collective(_ROOTED, _ONE_BLOCK_SENT, only_root_receives=True),
    "gatherv": Collective(_ROOTED, receives_blocks=True, only_root_receives=True),
    "scatter": Collective(_ROOTED, _ONE_BLOCK_RECEIVED, only_root_sends=True),
    "scatterv": Collective(_ROOTED, sends_blocks=True, only_root_sends=True),
    "allgather": Collective(_EXCHANGE, _ONE_BLOCK_SENT),
    "allgatherv": Collective(_EXCHANGE, receives_blocks=True),
    "alltoall": Collective(_EXCHANGE, _ALL),
    "alltoallv": Collective(_EXCHANGE, sends_blocks=True, receives_blocks=True),
    # Its blocks have separate datatypes, so their elements cannot be determined without MPI.
    "alltoallw": Collective(_EXCHANGE),
    "reduce": Collective(("sendbuf", "recvbuf", "op", "root"), _ALL, only_root_receives=True),
    "allreduce": Collective(_REDUCTION, _ALL),
    "reduce_scatter": Collective(("sendbuf", "recvbuf", "recvcounts", "op"), _ALL),
    "reduce_scatter_block": Collective(_REDUCTION, _ONE_BLOCK_RECEIVED),
    "scan": Collective(_REDUCTION, _ALL),
    "exscan": Collective(_REDUCTION, _ALL),
    **{
        f"neighbor_{name}": Collective(_EXCHANGE)
        for name in ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw")
    },
}
"""By the name in lower case, without the "I" of the non-blocking form."""


def collective_kind(name: str) -> Collective:
    """The kind of one of mpi4py's collectives; for an unknown name, a kind without parameters."""
    return COLLECTIVES.get(name.lower().removeprefix("i"), _UNKNOWN)


_UNKNOWN: Final = Collective(())
