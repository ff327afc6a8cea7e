"""What a communicator says of a method that it has not."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Final

__all__ = ["ONLY_MPI", "ONLY_SIMULATED", "missing"]

# Said here, because simulated ranks know nothing of a world that needs MPI.
ONLY_SIMULATED: Final = frozenset({"Bsend", "Improbe", "Mprobe", "Split_type", "bsend", "improbe", "mprobe"})
ONLY_MPI: Final = frozenset({"Alltoallw", "Clone", "Disconnect", "Ialltoallw"})


def missing(kind: str, name: str, there: Iterable[str], elsewhere: str = "") -> AttributeError:
    """The error: `kind` of communicator has no `name`; `elsewhere` has it."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if elsewhere:
        known = f", but {elsewhere} has"
    elif mpi is not None and hasattr(mpi.Cartcomm, name):
        known = ", though MPI has: a call that the lab does not know could block for ever"
    else:
        known = ""
    return AttributeError(
        f"the {kind} communicator has no {name!r}{known}. It has {', '.join(sorted(there))}"
    )
