"""HALOEXCHANGE in place [Hewett21, section 3.2.5]: workers refresh the halos of their padded tensors.

    H = H_{d-1} ... H_1 H_0              H_k = K_T C_U C_E C_P K_S                                   (eqs. 23, 22)
    H* = H_0* H_1* ... H_{d-1}*          H_k* = K_S* C_P* C_E* C_U* K_T*                             (eqs. 25, 24)

K_S and K_T set up and tear down the exchange buffers of phase k, C_P packs bulk into send buffers, C_E sends them, and
C_U unpacks receive buffers into the halo. The copies are in place, C = S K: so forward overwrites the halo, and the
adjoint, C* = K S*, adds it into its owners' bulk and clears it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from adjointlab.core import arrays
from adjointlab.core.arguments import check_argument, check_writable
from adjointlab.core.layout import Layout, Window
from adjointlab.core.operator import LinearOperator
from adjointlab.core.partition import integers
from adjointlab.core.program import (
    Allocate,
    Buffer,
    Clear,
    Deallocate,
    Generator,
    Program,
    Region,
    buffers,
    copy,
)
from adjointlab.core.space import Space
from adjointlab.primitives.collectives import result_array
from adjointlab.primitives.halo_exchange import images
from adjointlab.primitives.halo_geometry import halo_geometry
from adjointlab.primitives.halo_phases import HaloPhases
from adjointlab.primitives.halo_plan import halo_plan
from adjointlab.primitives.validation import called, check_layout

__all__ = ["HaloExchangeInPlace"]


class HaloExchangeInPlace(LinearOperator):
    """H on padded local tensors, the hulls of the bulks `layout` and the windows `windows`, over one partition.

    The arguments are those of :class:`~adjointlab.primitives.halo_exchange.HaloExchange`. What of a padded tensor is
    not bulk is halo: forward overwrites all of it with what its owners have, with zeros beyond the tensor, and the
    adjoint adds it into its owners' bulks and clears it. What input must be trimmed stays in the padded tensor.

    ``forward_(x)`` and ``adjoint_(y)`` work in the memory of their argument, in any memory order, and return it; they
    need nothing beside it but the faces that travel. ``forward(x)`` and ``adjoint(y)`` do the same to a fresh copy, or in
    `out`: if that is the argument itself, in place, else row-major memory that shares none with it. A worker outside
    the partition holds a tensor of zero volume. Half precisions are summed as they are: each addition of a halo is rounded.

    Raises `ValueError` for what HaloExchange does.
    """

    symbol = "H"
    batched = True

    def __init__(
        self,
        comm: Any,
        layout: Layout,
        windows: Layout,
        *,
        periodic: Iterable[int] = (),
        dtype: str = "float64",
    ) -> None:
        check_layout("layout", layout, comm.Get_size())
        check_layout("windows", windows, comm.Get_size())
        around = integers("periodic", periodic)
        with called(bulk="layout", window="windows"):
            self.bulk, padded = layout, halo_geometry(layout, windows, around).padded
        self.geometry = halo_geometry(layout, padded, around)
        self.comm = comm
        self.domain = self.codomain = Space(padded, dtype=dtype, name="x")
        self.gain = self.fan_in = max(1, self.geometry.copies)
        self._rank = comm.Get_rank()
        self._phases: HaloPhases | None = None
        if layout.partition.is_active(self._rank):
            self._phases = HaloPhases(comm, halo_plan(self.geometry, self._rank), dtype)

    def specification(self) -> Program:
        """The padding is cleared, then come eqs. 23 and 22."""
        x = {buffer.rank: buffer for buffer in buffers(self.domain)}
        steps = [Clear(region) for buffer in x.values() for region in self._padding(buffer)]
        phases = (step for dim in range(self.bulk.order) for step in self._phase(dim, x))
        return Program(x.values(), [*steps, *phases])

    def _phase(self, dim: int, x: Mapping[int, Buffer]) -> list[Generator]:
        """H_k = K_T C_U C_E C_P K_S of all workers; coming into scope sets a buffer up, going out of it tears it down."""
        setup: list[Generator] = []
        pack: list[Generator] = []
        exchange: list[Generator] = []
        unpack: list[Generator] = []
        teardown: list[Generator] = []
        for bulk, halo in self._transfers(dim, x):
            number = len(setup) // 2
            send = Buffer(bulk.rank, f"send {dim}.{number}", bulk.shape, self.domain.tensors[0].dtype)
            receive = replace(send, rank=halo.rank, name=f"receive {dim}.{number}")
            setup += [Allocate(send), Allocate(receive)]
            pack += copy(bulk, send.whole)
            exchange += copy(send.whole, receive.whole)
            unpack += copy(receive.whole, halo)
            teardown += [Deallocate(send), Deallocate(receive)]
        return [*setup, *pack, *exchange, *unpack, *teardown]

    def _transfers(self, dim: int, x: Mapping[int, Buffer]) -> Iterator[tuple[Region, Region]]:
        """Region of a bulk and region of a halo, for each piece of a halo that a worker needs along a dimension.

        Across, they span the padded tensor in the dimensions that are done and the bulk in those to come.
        """
        padded, shape = self.domain.tensors[0].layout, self.bulk.shape
        for owner, needer in product(x, x):
            if not self._alike_but_along(dim, owner, needer):
                continue
            owned, needed, window = self.bulk.window(owner), padded.window(needer), padded.window(owner)
            assert owned
            assert needed
            assert window
            period = shape[dim] if dim in self.geometry.periodic else None
            below = [self._in_the_tensor(k, needed[k]) for k in range(dim)]
            for source, target in images(owned[dim], needed[dim], period):
                if owner == needer and source == target:
                    continue  # the bulk itself
                regions = (
                    _region(x[owner], window, (*below, source, *owned[dim + 1 :])),
                    _region(x[needer], needed, (*below, target, *owned[dim + 1 :])),
                )
                if 0 not in regions[0].shape:
                    yield regions

    def _alike_but_along(self, dim: int, one: int, other: int) -> bool:
        """Whether two workers differ at most along the partition dimension that a tensor dimension is cut along."""
        places = zip(*(self.bulk.partition.index(rank) for rank in (one, other)), strict=True)
        return all(i == j or axis == self.bulk.axes[dim] for axis, (i, j) in enumerate(places))

    def _in_the_tensor(self, dim: int, window: Window) -> Window:
        if dim in self.geometry.periodic:
            return window
        return max(window[0], 0), max(min(window[1], self.bulk.shape[dim]), max(window[0], 0))

    def _padding(self, buffer: Buffer) -> Iterator[Region]:
        """What of a padded tensor lies beyond the tensor."""
        window = self.domain.tensors[0].layout.window(buffer.rank)
        assert window is not None
        for dim, (start, stop) in enumerate(window):
            first, last = self._in_the_tensor(dim, (start, stop))
            for beyond in ((start, min(first, stop)), (min(last, stop), stop)):
                yield _region(buffer, window, (*window[:dim], beyond, *window[dim + 1 :]))

    def forward(self, x: Any, out: Any = None) -> Any:
        """The local tensor of H x, in `out` if given, which may be x."""
        if out is x:
            return self.forward_(x)
        batch = check_argument(self.domain.tensors[0], x, self._rank)
        if self._phases is None:
            return arrays.copy(x)
        y = result_array(self.codomain.tensors[0], x, out, self._rank, batch)
        bulk = self._bulk(x)

        def keep() -> None:
            if bulk is not None:
                arrays.copy_into(self._bulk(y), bulk)

        self._phases.forward(bulk, y, batch, meanwhile=keep)
        return y

    def adjoint(self, y: Any, out: Any = None) -> Any:
        """The local tensor of H* y, in `out` if given, which may be y."""
        if out is y:
            return self.adjoint_(y)
        batch = check_argument(self.codomain.tensors[0], y, self._rank)
        if self._phases is None:
            return arrays.copy(y)
        x = result_array(self.domain.tensors[0], y, out, self._rank, batch)
        bulk = self._bulk(x)

        def keep() -> None:
            self._clear_halo(x)
            if bulk is not None:
                arrays.copy_into(bulk, self._bulk(y))

        self._phases.adjoint(y, bulk, batch, meanwhile=keep)
        return x

    def forward_(self, x: Any) -> Any:
        """H in place: x with its halo overwritten."""
        batch = check_argument(self.domain.tensors[0], x, self._rank)
        check_writable("x", x, self._rank)
        if self._phases is not None:
            self._phases.forward(self._bulk(x), x, batch)
        return x

    def adjoint_(self, y: Any) -> Any:
        """H* in place: y with its halo added into the bulks of its owners and cleared."""
        batch = check_argument(self.codomain.tensors[0], y, self._rank)
        check_writable("y", y, self._rank)
        if self._phases is not None:
            self._phases.adjoint(y, self._bulk(y), batch)
            self._clear_halo(y)
        return y

    def _bulk(self, padded: Any) -> Any:
        """The view of this worker's bulk in its padded tensor; `None` if it has none."""
        assert self._phases is not None
        place = self._phases.plan.kept
        return None if place is None else padded[place]

    def _clear_halo(self, padded: Any) -> None:
        assert self._phases is not None
        for place in self._phases.plan.halo:
            arrays.clear(padded[place])


def _region(buffer: Buffer, window: Sequence[Window], region: Sequence[Window]) -> Region:
    """A region in global indices as one of the buffer that lies over a window."""
    return buffer[
        tuple(slice(a - start, b - start) for (a, b), (start, _) in zip(region, window, strict=True))
    ]
