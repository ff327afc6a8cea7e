"""HALOEXCHANGE in place [Hewett21, section 3.2.5]: workers refresh the halos of their padded tensors.

    H = H_{d-1} ... H_1 H_0              H_k = K_T C_U C_E C_P K_S                                   (eqs. 23, 22)
    H* = H_0* H_1* ... H_{d-1}*          H_k* = K_S* C_P* C_E* C_U* K_T*                             (eqs. 25, 24)

K_S and K_T set up and tear down the exchange buffers of phase k, C_P packs bulk into send buffers, C_E sends them, and
C_U unpacks receive buffers into the halo. The copies are in place, C = S K: so forward overwrites the halo, and the
adjoint, C* = K S*, adds it into its owners' bulk and clears it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product

from adjointlab.core import arrays
from adjointlab.core.arguments import check_argument, check_writable
from adjointlab.core.layout import Layout, Window
from adjointlab.core.partition import integers
from adjointlab.core.program import (
    Allocate,
    Buffer,
    Clear,
    Deallocate,
    Generator,
    Program,
    Region,
    buffers_by_rank,
    copy,
)
from adjointlab.core.space import Space
from adjointlab.primitives.boxes import Box, region_in
from adjointlab.primitives.collectives import result_with_views
from adjointlab.primitives.halo_exchange import HaloExchange, images
from adjointlab.primitives.halo_geometry import halo_geometry
from adjointlab.primitives.validation import arguments_renamed, check_layout
from adjointlab.typing import Array, Communicator

__all__ = ["HaloExchangeInPlace"]


class HaloExchangeInPlace(HaloExchange):
    """H on padded local tensors, the hulls of the bulks `layout` and the windows `windows`, over one partition.

    The arguments are those of :class:`~adjointlab.primitives.halo_exchange.HaloExchange`. The cells of a padded tensor outside the
    bulk are its halo: forward overwrites all of it with the values of its owners, with zeros beyond the tensor, and the
    adjoint adds it into its owners' bulks and clears it. Input that must be trimmed stays in the padded tensor.

    ``forward_(x)`` and ``adjoint_(y)`` work in the memory of their argument, in any memory order, and return it; they
    need no other memory than that of the faces that are sent. ``forward(x)`` and ``adjoint(y)`` do the same to a fresh copy, or in
    `out`: in place if that is the argument itself, else in row-major memory that shares none with it. A worker outside
    the partition holds a tensor of zero volume. Half precisions are summed in half precision: each addition of a halo is rounded.

    Raises the errors of HaloExchange.
    """

    def __init__(
        self,
        comm: Communicator,
        layout: Layout,
        windows: Layout,
        *,
        periodic: Iterable[int] = (),
        dtype: str = "float64",
    ) -> None:
        check_layout("layout", layout, comm)
        check_layout("windows", windows, comm)
        periodic_dims = integers("periodic", periodic)
        with arguments_renamed(bulk="layout", window="windows"):
            padded = halo_geometry(layout, windows, periodic_dims).padded
        # The exchange is one to the padded windows, whose whole halo is refreshed.
        super().__init__(comm, layout, padded, periodic=periodic_dims, dtype=dtype)
        self.bulk = layout
        self.domain = self.codomain = Space(padded, dtype=dtype, name="x")

    def specification(self) -> Program:
        """Clear the padding, then eqs. 23 and 22."""
        x = buffers_by_rank(self.domain)
        # Padding has no sender that would overwrite it. It is cleared once, and no phase passes it on.
        steps = [Clear(region) for buffer in x.values() for region in self._padding(buffer)]
        phases = (step for dim in range(self.bulk.order) for step in self._phase(dim, x))
        return Program(x.values(), [*steps, *phases])

    def _phase(self, dim: int, x: Mapping[int, Buffer]) -> list[Generator]:
        """H_k = K_T C_U C_E C_P K_S of all workers for tensor dimension k = `dim`.

        An exchange buffer that comes into scope is set up, and one that goes out of scope is torn down.
        """
        setup: list[Generator] = []
        pack: list[Generator] = []
        exchange: list[Generator] = []
        unpack: list[Generator] = []
        teardown: list[Generator] = []
        # One pair of buffers for each interval. In the implementation boxes share messages, which the paper leaves open.
        for number, (bulk, halo) in enumerate(self._transfers(dim, x)):
            send = Buffer(bulk.rank, f"send {dim}.{number}", bulk.shape, self.domain.tensors[0].dtype)
            receive = replace(send, rank=halo.rank, name=f"receive {dim}.{number}")
            setup += [Allocate(send), Allocate(receive)]
            pack += copy(bulk, send.whole)
            exchange += copy(send.whole, receive.whole)
            unpack += copy(receive.whole, halo)
            teardown += [Deallocate(send), Deallocate(receive)]
        return [*setup, *pack, *exchange, *unpack, *teardown]

    def _transfers(self, dim: int, x: Mapping[int, Buffer]) -> Iterator[tuple[Region, Region]]:
        """Yield a region of a bulk and one of a halo, for each interval of a halo that a worker needs along `dim`.

        The regions span the padded tensor in the dimensions whose phases are done, where its halo is filled, and the bulk in
        later dimensions.
        """
        padded, shape = self.domain.tensors[0].layout, self.bulk.shape
        for sender, receiver in product(x, x):
            if not self._differ_along(dim, sender, receiver):
                continue
            owner_bulk, owner_window = self.bulk.window(sender), padded.window(sender)
            window = padded.window(receiver)
            assert owner_bulk
            assert owner_window
            assert window
            period = shape[dim] if dim in self.geometry.periodic else None
            # Owner and receiver differ only along `dim`, so their windows are the same in all other dimensions.
            done = [self._within_tensor(k, window[k]) for k in range(dim)]
            to_come = owner_bulk[dim + 1 :]
            for source, target in images(owner_bulk[dim], window[dim], period):
                if sender == receiver and source == target:
                    continue  # the bulk itself
                bulk_region = region_in(x[sender], owner_window, (*done, source, *to_come))
                halo_region = region_in(x[receiver], window, (*done, target, *to_come))
                if 0 not in bulk_region.shape:
                    yield bulk_region, halo_region

    def _differ_along(self, dim: int, one: int, other: int) -> bool:
        """Return True if two workers differ at most along the grid dimension that tensor dimension `dim` is cut along."""
        indices = zip(*(self.bulk.partition.index(rank) for rank in (one, other)), strict=True)
        return all(i == j or axis == self.bulk.axes[dim] for axis, (i, j) in enumerate(indices))

    def _within_tensor(self, dim: int, window: Window) -> Window:
        """The part of a window that is not padding, which may be empty."""
        if dim in self.geometry.periodic:
            return window
        start = max(window[0], 0)
        return start, max(min(window[1], self.bulk.shape[dim]), start)

    def _padding(self, buffer: Buffer) -> Iterator[Region]:
        """The slabs of a padded tensor that lie beyond the tensor; they share their corners."""
        window = self.domain.tensors[0].layout.window(buffer.rank)
        assert window is not None
        for dim, (start, stop) in enumerate(window):
            first, last = self._within_tensor(dim, (start, stop))
            for beyond in ((start, min(first, stop)), (min(last, stop), stop)):
                slab: Box = (*window[:dim], beyond, *window[dim + 1 :])
                yield region_in(buffer, window, slab)

    def forward(self, x: Array, out: Array | None = None) -> Array:
        """The local tensor of H x, in `out` if given, which may be x."""
        if out is x:
            return self.forward_(x)
        batch = check_argument(self.domain.tensors[0], x, self._rank)
        if self._phases is None:
            return arrays.copy(x)
        y, before, after = result_with_views(self.codomain.tensors[0], x, out, self._rank, batch)
        bulk = self._bulk(before)
        # The faces are sent from x, while its bulk is copied to y.
        self._phases.forward(bulk, after, batch, meanwhile=lambda: arrays.copy_into(self._bulk(after), bulk))
        return y

    def adjoint(self, y: Array, out: Array | None = None) -> Array:
        """The local tensor of H* y, in `out` if given, which may be y."""
        if out is y:
            return self.adjoint_(y)
        batch = check_argument(self.codomain.tensors[0], y, self._rank)
        if self._phases is None:
            return arrays.copy(y)
        x, before, after = result_with_views(self.domain.tensors[0], y, out, self._rank, batch)
        bulk = self._bulk(after)

        def keep_bulk() -> None:
            self._clear_halo(after)
            arrays.copy_into(bulk, self._bulk(before))

        self._phases.adjoint(before, bulk, batch, meanwhile=keep_bulk)
        return x

    def forward_(self, x: Array) -> Array:
        """H in place: x with its halo overwritten."""
        batch = check_argument(self.domain.tensors[0], x, self._rank)
        check_writable("x", x, self._rank)
        if self._phases is not None:
            (padded,) = arrays.in_numpy(x)
            arrays.note_change(x)
            self._phases.forward(self._bulk(padded), padded, batch)
        return x

    def adjoint_(self, y: Array) -> Array:
        """H* in place: y with its halo added into the bulks of its owners and cleared."""
        batch = check_argument(self.codomain.tensors[0], y, self._rank)
        check_writable("y", y, self._rank)
        if self._phases is not None:
            (padded,) = arrays.in_numpy(y)
            arrays.note_change(y)
            self._phases.adjoint(padded, self._bulk(padded), batch)
            self._clear_halo(padded)  # last: the phases read it
        return y

    def _bulk(self, padded: Array) -> Array:
        """The view of this worker's bulk in its padded tensor."""
        assert self._phases is not None
        view: Array = padded[self._phases.plan.own_in_window]
        return view

    def _clear_halo(self, padded: Array) -> None:
        assert self._phases is not None
        for slab in self._phases.plan.halo:
            arrays.clear(padded[slab])
