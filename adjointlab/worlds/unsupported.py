"""Error for methods that a communicator does not have."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Final

__all__ = ["ONLY_MPI", "ONLY_SIMULATED", "missing"]

# Listed here, because neither world may import the other, and the simulated one must work without MPI.
ONLY_SIMULATED: Final = frozenset({"Bsend", "Improbe", "Mprobe", "Split_type", "bsend", "improbe", "mprobe"})
ONLY_MPI: Final = frozenset({"Alltoallw", "Clone", "Disconnect", "Ialltoallw"})


def missing(kind: str, name: str, methods: Iterable[str], elsewhere: str = "") -> AttributeError:
    """Error for a `kind` of communicator that has `methods` and no `name`, which the one `elsewhere` may have."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if elsewhere:
        known = f", but {elsewhere} has"
    elif mpi is not None and hasattr(mpi.Cartcomm, name):
        known = ", though MPI has: a call that the lab does not know could block for ever"
    else:
        known = ""
    return AttributeError(
        f"the {kind} communicator has no {name!r}{known}. It has {', '.join(sorted(methods))}"
    )
