"""Functions that the subjects beside this module import; it knows nothing of the lab."""

from __future__ import annotations

from typing import Any

import numpy as np

STEP = 1


def shifted(comm: Any, x: Any, step: int) -> Any:
    """Move every rank's block `step` ranks on."""
    rank, size = comm.Get_rank(), comm.Get_size()
    result = np.empty_like(x)
    comm.Sendrecv(np.ascontiguousarray(x), (rank + step) % size, 0, result, (rank - step) % size, 0)
    return result


def forward(comm: Any, x: Any, factor: Any) -> Any:
    return factor["times 2"] * shifted(comm, x, STEP)


def adjoint(comm: Any, y: Any, factor: Any) -> Any:
    return shifted(comm, y, -STEP)
