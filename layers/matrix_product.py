"""Matrix multiplication C = A B with all three matrices cut over a grid of rows and columns: SUMMA [VandeGeijn97].

One matrix is not moved, and panels of the others are sent to its workers. With ◦_R and ◦_C for dimensions that are cut over the rows
and the columns of the grid, and * for one that every worker has whole, the three are A[◦_R, ◦_C], B[◦_R, ◦_C] and C[◦_R, ◦_C].

    stationary-c    for each panel p of the inner dimension
                        Ã[◦_R, *] ← A[◦_R, p]                       broadcast along the rows
                        B̃[*, ◦_C] ← B[p, ◦_C]                       broadcast along the columns
                        C[◦_R, ◦_C] += Ã[◦_R, *] B̃[*, ◦_C]
        adjoint         the same panels again, and                  δA[◦_R, p] ← Σ̃_C δC B̃ᵀ    δB[p, ◦_C] ← Σ̃_R Ãᵀ δC
    stationary-a    for each panel p of the columns of B and C
                        B̃[◦_C, *] ← B[◦_R, p]                       to one row of the grid, and broadcast along the columns
                        T[◦_R, *] ← A[◦_R, ◦_C] B̃[◦_C, *]
                        C[◦_R, p] ← Σ̃_C T[◦_R, *]                   summed along the rows
        adjoint         the same panel again, and                   δT ← δC[◦_R, p]    δA += δT B̃ᵀ    δB[◦_R, p] ← Σ̃_R Aᵀ δT
    stationary-b    stationary-a of Cᵀ = Bᵀ Aᵀ over the transposed grid

So the backward pass of each does not move the same matrix, or its gradient, either. No panel is saved for it: each is sent a second
time. Over a single row or column the algorithms are one-dimensional, and steps that would send nothing are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import nn

from adjointlab.core.layout import Layout
from adjointlab.core.partition import PartitionLike, whole_number
from adjointlab.core.space import Space, Tensor
from adjointlab.layers.arguments import shape_of
from adjointlab.layers.differentiable import in_graph
from adjointlab.layers.distributed import DistributedModule
from adjointlab.layers.summa import LocalProduct, Panels, StationaryA, StationaryC, transposed
from adjointlab.layers.torch_modules import dtype_name, result_of
from adjointlab.typing import Communicator

__all__ = ["ALGORITHMS", "MatrixProduct", "Product"]

ALGORITHMS: Final = ("auto", "stationary-a", "stationary-b", "stationary-c")


class Product(nn.Module):
    """`torch.matmul` as a module."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Return the product."""
        return torch.matmul(a, b)


class MatrixProduct(DistributedModule):
    """`torch.matmul` of matrices, or of batches of them, of shapes `a_shape` and `b_shape`, over `partition` = P_lead... x P_r x P_c.

    Called with (a, b), (*lead, m, k) and (*lead, k, n): both, and the product (*lead, m, n), are balanced over the partition.

    `algorithm` is "stationary-a", "-b" or "-c" for the matrix that is not moved, or "auto" (default) for the largest one, the product
    if they are equal; :attr:`algorithm` has the choice. `panel` is the largest width that is sent at a time, by default that of a block.
    With `recompute` panels are sent again in the backward pass, as in SUMMA; False saves them for it, as forward mode always does.
    torch.func's transforms do not support `torch.utils.checkpoint`, and so need False.

    Raises `ValueError`, with torch's message, for shapes that do not fit, and for other leading dimensions, a partition of another
    order, another algorithm, and a panel without width.
    """

    algorithm: str

    def __init__(
        self,
        comm: Communicator,
        partition: PartitionLike,
        a_shape: Sequence[int],
        b_shape: Sequence[int],
        *,
        algorithm: str = "auto",
        panel: int | None = None,
        recompute: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        module = Product()
        super().__init__(comm, partition, module)
        partition = self.partition
        shapes = [shape_of("a_shape", a_shape), shape_of("b_shape", b_shape)]
        shapes.append(
            tuple(result_of(module, *(torch.empty(shape, device="meta") for shape in shapes)).shape)
        )
        if min(map(len, shapes)) < 2 or len({shape[:-2] for shape in shapes}) > 1:
            raise ValueError(
                f"b_shape: {shapes[1]}, but a is {shapes[0]}; both need the same leading dimensions"
            )
        self.check_order(shapes[0])
        if algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm: {algorithm!r} is not one of {', '.join(ALGORITHMS)}")
        if panel is not None and whole_number("panel", panel) < 1:
            raise ValueError(f"panel: {panel} is not a width; it is at least 1, or None for that of a block")
        name = dtype_name(dtype)
        a, b, c = (Layout(shape, partition) for shape in shapes)
        self.domain = Space(Tensor(a, name, name="a"), Tensor(b, name, name="b"))
        self.codomain = Space(c, dtype=name, name="c")
        if algorithm == "auto":
            sizes = {
                f"stationary-{matrix}": math.prod(shape) for matrix, shape in zip("abc", shapes, strict=True)
            }
            algorithm = max(reversed(sizes), key=lambda which: sizes[which])
        self.algorithm, panels = algorithm, Panels(panel, recompute)
        self.product: LocalProduct
        if algorithm == "stationary-c":
            self.product = StationaryC(comm, a, b, c, name, panels)
        elif algorithm == "stationary-a":
            self.product = StationaryA(comm, a, b, c, name, panels)
        else:
            self.product = StationaryA(comm, transposed(b), transposed(a), transposed(c), name, panels)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """The local block of the product, from those of a and b."""
        a, b = self.check_inputs(a, b)
        # Without panels, as for an empty inner dimension, nothing is sent.
        if self.algorithm == "stationary-b":
            return in_graph(self.product(b.mT, a.mT)).mT
        return in_graph(self.product(a, b))
