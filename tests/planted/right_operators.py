"""Right operators as a user writes them, in plain calls on the communicator: the faulty ones derive from these."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

import adjointlab as al
from adjointlab import MPI

DTYPES = ("float64", "float32", "complex128", "complex64")


class Operator(al.LinearOperator):
    """The base of these operators, which knows its rank and their number."""

    def __init__(self, comm: Any, domain: al.Space, codomain: al.Space, gain: int | None = None) -> None:
        self.comm, self.domain, self.codomain = comm, domain, codomain
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.gain = self.fan_in = gain

    def shape_out(self, position: int = 0) -> tuple[int, ...]:
        """The local shape of an output of `forward`."""
        return self.codomain.tensors[position].layout.local_shape(self.rank)

    def shape_in(self, position: int = 0) -> tuple[int, ...]:
        """The local shape of an output of `adjoint`."""
        return self.domain.tensors[position].layout.local_shape(self.rank)

    def all_sum(self, x: Any, comm: Any = None) -> Any:
        """The sum over all ranks of a communicator, on all of them."""
        total = np.empty(x.shape, x.dtype)
        (comm or self.comm).Allreduce(np.array(x, order="C"), total, MPI.SUM)
        return total


def copies(shape: Sequence[int], ranks: int, dtype: str, kind: str, name: str = "x") -> al.Tensor:
    """The whole tensor on every rank, with the local type `kind`."""
    layout = al.Layout(shape, al.Partition((ranks,)), axes=(None,) * len(shape))
    return al.Tensor(layout, dtype, (al.LocalType(kind),), name)


def cut(shape: Sequence[int], ends: Sequence[int], dtype: str, name: str = "x") -> al.Tensor:
    """The tensor cut along its first dimension at `ends`, over all ranks in their order."""
    rest: list[None] = [None] * (len(shape) - 1)
    partition = al.Partition((len(ends) - 1,))
    layout = al.Layout.cut(shape, partition, [ends, *rest], axes=(0, *rest))
    return al.Tensor(layout, dtype, name=name)


class CopyToAll(Operator):
    """Broadcast: the tensor of `root`, on every rank; its adjoint sums to `root`."""

    def __init__(self, comm: Any, shape: Sequence[int], root: int, dtype: str) -> None:
        here = al.Layout(shape, al.Partition((1,) * len(shape), [root]))
        there = copies(shape, comm.Get_size(), dtype, "varying", "y")
        super().__init__(comm, al.Space(here, dtype=dtype), al.Space(there), comm.Get_size())
        self.root = root

    def forward(self, x: Any) -> Any:
        y = np.empty(self.shape_out(), self.codomain.tensors[0].dtype)
        if self.rank == self.root:
            y[...] = x
        self.comm.Bcast(y, self.root)
        return y

    def adjoint(self, y: Any) -> Any:
        total = np.empty(y.shape, y.dtype)
        self.comm.Reduce(np.ascontiguousarray(y), total, MPI.SUM, self.root)
        return self.at_root(total)

    def at_root(self, total: Any) -> Any:
        """The result on `root`; nothing elsewhere."""
        return total if self.rank == self.root else np.zeros(self.shape_in(), total.dtype)


class SumToRoot(Operator):
    """Sum-reduce: the sum of all ranks' summands, on `root`; its adjoint copies to all."""

    def __init__(self, comm: Any, shape: Sequence[int], root: int, dtype: str) -> None:
        there = al.Layout(shape, al.Partition((1,) * len(shape), [root]))
        here = copies(shape, comm.Get_size(), dtype, "partial")
        super().__init__(comm, al.Space(here), al.Space(there, dtype=dtype, name="y"), comm.Get_size())
        self.root = root

    def forward(self, x: Any) -> Any:
        total = np.empty(x.shape, x.dtype)
        self.comm.Reduce(np.ascontiguousarray(x), total, MPI.SUM, self.root)
        return total if self.rank == self.root else np.zeros(self.shape_out(), x.dtype)

    def adjoint(self, y: Any) -> Any:
        x = np.empty(self.shape_in(), y.dtype)
        if self.rank == self.root:
            x[...] = y
        self.comm.Bcast(x, self.root)
        return x


class SumAlong(Operator):
    """All-reduce along one dimension of a grid: summands become copies, `scale` times their sum.

    The tensor's first dimension is cut along the grid's other dimension. `turned` reads the grid transposed.
    """

    def __init__(
        self,
        comm: Any,
        grid: Sequence[int],
        along: int,
        shape: Sequence[int],
        ends: Sequence[int],
        dtype: str,
        turned: bool = False,
        scale: int = 1,
    ) -> None:
        self.grid = al.Partition(grid)
        partition = self.grid.transpose() if turned else self.grid
        rest: list[None] = [None] * (len(shape) - 1)
        layout = al.Layout.cut(shape, partition, [ends, *rest], axes=(1 - along, *rest))
        spaces = []
        for name, kind in (("x", "partial"), ("y", "replicated")):
            types = ["varying", "varying"]
            types[along] = kind
            spaces.append(al.Space(layout, dtype=dtype, types=types, name=name))
        super().__init__(comm, spaces[0], spaces[1], scale * partition.shape[along])
        self.partition, self.along, self.scale = partition, along, scale
        self.row = self.group(self.partition)

    def group(self, partition: al.Partition) -> Any:
        """The communicator of the ranks that are summed with this one."""
        place = partition.index(self.rank)
        return self.comm.Split(place[1 - self.along], place[self.along])

    def forward(self, x: Any) -> Any:
        return self.all_sum(x, self.row) * self.scale

    def adjoint(self, y: Any) -> Any:
        return self.all_sum(y, self.row) * self.scale


class GatherToAll(Operator):
    """All-gather of a tensor cut along its first dimension; its adjoint sums and cuts up again."""

    def __init__(self, comm: Any, shape: Sequence[int], ends: Sequence[int], dtype: str) -> None:
        size = comm.Get_size()
        super().__init__(
            comm,
            al.Space(cut(shape, ends, dtype)),
            al.Space(copies(shape, size, dtype, "varying", "y")),
            size,
        )
        self.ends = list(ends)
        self.sizes = [stop - start for start, stop in itertools.pairwise(ends)]

    def forward(self, x: Any) -> Any:
        y = np.empty(self.shape_out(), x.dtype)
        row = int(np.prod(y.shape[1:], dtype=int))
        counts, starts = [size * row for size in self.sizes], [start * row for start in self.ends[:-1]]
        self.comm.Allgatherv(np.ascontiguousarray(x), [y, (counts, starts)])
        return y

    def adjoint(self, y: Any) -> Any:
        return self.mine(self.all_sum(y))

    def mine(self, total: Any) -> Any:
        """This rank's rows."""
        return total[self.ends[self.rank] : self.ends[self.rank + 1]]


class Ring(Operator):
    """Every rank's rows go `step` ranks on, each row i times ``weight(i)``."""

    def __init__(self, comm: Any, shape: Sequence[int], ends: Sequence[int], step: int, dtype: str) -> None:
        size = comm.Get_size()
        here = cut(shape, ends, dtype)
        windows = [here.layout.windows[0][(rank - step) % size] for rank in range(size)]
        rest = list(here.layout.windows[1:])
        there = al.Layout(shape, here.layout.partition, [windows, *rest], here.layout.axes)
        super().__init__(comm, al.Space(here), al.Space(there, dtype=dtype, name="y"), 4)
        self.step = step

    def weights(self) -> Any:
        """The weights of the rows that arrive here: small Gaussian integers where the tensor is complex."""
        start, stop = self.codomain.tensors[0].layout.windows[0][self.rank]
        rows = np.arange(start, stop)
        values = rows % 3 + 1 + (1j if "complex" in self.domain.tensors[0].dtype else 0)
        return values.reshape(-1, *(1 for _ in self.shape_out()[1:])).astype(self.domain.tensors[0].dtype)

    def carry(self, x: Any, shape: Sequence[int], step: int) -> Any:
        """`x` to the rank `step` on; what comes has `shape`."""
        received = np.empty(shape, x.dtype)
        to, source = (self.rank + step) % self.size, (self.rank - step) % self.size
        self.comm.Sendrecv(self.packed(x), to, 0, received, source, 0)
        return received

    def packed(self, x: Any) -> Any:
        """`x` in row-major memory."""
        return np.ascontiguousarray(x)

    def forward(self, x: Any) -> Any:
        return self.weights() * self.carry(x, self.shape_out(), self.step)

    def adjoint(self, y: Any) -> Any:
        return self.carry(self.weights().conj() * y, self.shape_in(), -self.step)


# How cases are drawn: everything that may hurt, nothing that a particular fault needs.


def shapes(draw: Any, orders: tuple[int, int] = (1, 3)) -> tuple[int, ...]:
    return tuple(draw(al.strategies.shapes(draw(st.integers(*orders)))))


def with_root(draw: Any, ranks: int) -> Mapping[str, Any]:
    return {
        "shape": shapes(draw),
        "root": draw(st.integers(0, ranks - 1)),
        "dtype": draw(st.sampled_from(DTYPES)),
    }


def with_cuts(draw: Any, ranks: int) -> Mapping[str, Any]:
    shape = shapes(draw)
    return {
        "shape": shape,
        "ends": draw(al.strategies.cuts(shape[0], ranks)),
        "dtype": draw(st.sampled_from(DTYPES)),
    }


def on_ring(draw: Any, ranks: int) -> Mapping[str, Any]:
    return {**with_cuts(draw, ranks), "step": draw(st.integers(0, ranks))}


def on_grid(draw: Any, ranks: int) -> Mapping[str, Any]:
    grid = draw(st.sampled_from([(side, ranks // side) for side in range(1, ranks + 1) if ranks % side == 0]))
    along, shape, turned = draw(st.integers(0, 1)), shapes(draw), draw(st.booleans())
    across = grid[::-1][1 - along] if turned else grid[1 - along]
    return {
        "grid": grid,
        "along": along,
        "shape": shape,
        "ends": draw(al.strategies.cuts(shape[0], across)),
        "dtype": draw(st.sampled_from(DTYPES)),
        "turned": turned,
        "scale": draw(st.integers(1, 3)),
    }


# The sequential twins.


def unchanged(x: Any, **_: Any) -> Any:
    return x


def scaled(x: Any, scale: int, **_: Any) -> Any:
    return x * scale


def weighted(x: Any, dtype: str, **_: Any) -> Any:
    rows = np.arange(x.shape[0]) % 3 + 1 + (1j if "complex" in dtype else 0)
    return x * rows.reshape(-1, *(1 for _ in x.shape[1:])).astype(dtype)
