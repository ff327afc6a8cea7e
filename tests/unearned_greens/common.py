"""The base of the subjects of this corpus: an operator that is right, for its fault to stand out."""

from __future__ import annotations

from typing import Any

import numpy as np

import adjointlab as al


class Copying(al.LinearOperator):
    """The identity on local tensors, with a barrier, so that ranks do meet."""

    gain = fan_in = 1

    def __init__(self, comm: Any, layout: al.Layout) -> None:
        self.comm, self.domain, self.codomain = comm, al.Space(layout), al.Space(layout, name="y")

    def forward(self, x: Any) -> Any:
        self.comm.Barrier()
        return np.array(x)

    def adjoint(self, y: Any) -> Any:
        self.comm.Barrier()
        return np.array(y)


def blocks(draw: Any, ranks: int) -> dict[str, Any]:
    """A vector of two elements for each rank."""
    return {"layout": al.Layout((2 * ranks,), al.Partition((ranks,)))}
