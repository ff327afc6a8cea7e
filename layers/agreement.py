"""Bad input on one rank is everybody's: all ranks raise the same error, before anything else is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["raise_together"]


def raise_together(comm: Any, check: Callable[[], None]) -> None:
    """Collective: run `check` on every rank, and where it raises `TypeError` or `ValueError` on some, raise that on all.

    Of several errors, that of the lowest rank. It costs an all-reduce of one number.
    """
    error: TypeError | ValueError | None = None
    try:
        check()
    except (TypeError, ValueError) as raised:
        error = raised
    failed, anywhere = np.array([error is not None], np.int64), np.zeros(1, np.int64)
    comm.Allreduce(failed, anywhere)
    if not anywhere[0]:
        return
    told = comm.allgather(None if error is None else (isinstance(error, TypeError), str(error)))
    is_type, text = next(entry for entry in told if entry is not None)
    raise (TypeError if is_type else ValueError)(text) from None
