"""HALOEXCHANGE out of place [Hewett21, section 3.2.5]: every worker gets its window of a tensor that is cut.

    H = H_{d-1} ... H_1 H_0              H_k = K_T C_U C_E C_P K_S                                   (eqs. 23, 22)
    H* = H_0* H_1* ... H_{d-1}*          H_k* = K_S* C_P* C_E* C_U* K_T*                             (eqs. 25, 24)

The phases H_k, one for each dimension, pack, exchange and unpack; their adjoints add into the bulk. All of them together
make one step: each element goes from the worker that owns it to every worker whose window it is in,

    H = Π_s D_s  Π_{r,s} S_{s→r}  Π_r A_r.

This one step is the specification here. The in-place form (:mod:`adjointlab.primitives.halo_exchange_in_place`) has the
paper's, phase by phase. Both are implemented by the phases in :mod:`adjointlab.primitives.halo_phases`;
:mod:`adjointlab.primitives.halo_geometry` defines, with pictures, the cells that each worker needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import product

from adjointlab.core import arrays
from adjointlab.core.arguments import check_argument
from adjointlab.core.layout import Layout, Window
from adjointlab.core.operator import LinearOperator
from adjointlab.core.partition import integers
from adjointlab.core.program import Add, Allocate, Buffer, Deallocate, Generator, Program, buffers_by_rank
from adjointlab.core.space import Space
from adjointlab.primitives.boxes import Box, region_in
from adjointlab.primitives.collectives import result_with_views
from adjointlab.primitives.halo_geometry import halo_geometry
from adjointlab.primitives.halo_phases import HaloPhases
from adjointlab.primitives.halo_plan import halo_plan
from adjointlab.primitives.validation import arguments_renamed, check_layout
from adjointlab.typing import Array, Communicator

__all__ = ["HaloExchange", "OverlappedHaloExchange", "images"]


class HaloExchange(LinearOperator):
    """H from the bulks `layout` to the windows `windows` of the same tensor, over the same partition.

    `layout` cuts every dimension of x, or leaves it whole; workers along a partition dimension that it does not use hold
    separate copies, and exchange with workers of the same copy. `windows` is any layout over the same partition:
    windows may be wider than the bulk by any number of workers, trimmed, empty, and apart from the bulk. Beyond the
    tensor they hold zeros (and cotangents there are ignored) or, in the tensor dimensions listed in `periodic`, the elements
    from the other end. :class:`~adjointlab.primitives.halo_geometry.HaloGeometry` derives windows from kernels and
    from halo widths.

    ``forward(x)`` takes the local tensor of x and returns a fresh one of y, or `out` (row-major, sharing no memory with
    the argument); ``adjoint(y)`` sums back. A worker outside the partition returns a copy of its tensor of zero volume.
    In each phase a pair of workers exchanges at most one message in each direction, and none if nothing is needed. Half
    precisions are summed in half precision: each addition of a halo is rounded.

    Raises `ValueError` for bulks that do not cut the tensor, for windows of another tensor or partition, for windows that
    no data can fill, for ranks beyond the communicator's, and in a call, before its first message, for a local tensor
    that does not match the layout.
    """

    symbol = "H"
    batched = True

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
        with arguments_renamed(bulk="layout", window="windows"):
            self.geometry = halo_geometry(layout, windows, integers("periodic", periodic))
        self.comm = comm
        self.domain = Space(layout, dtype=dtype, name="x")
        self.codomain = Space(windows, dtype=dtype, name="y")
        self.gain = self.fan_in = max(1, self.geometry.copies)
        self.is_identity = windows == layout
        self._rank = comm.Get_rank()
        self._phases: HaloPhases | None = None
        if layout.partition.is_active(self._rank):
            self._phases = HaloPhases(
                comm, halo_plan(self.geometry, self._rank), self.domain.tensors[0].dtype
            )

    def specification(self) -> Program:
        """One Add for each box of each worker's window, from its sender's bulk."""
        x = buffers_by_rank(self.domain)
        y = buffers_by_rank(self.codomain)
        steps: list[Generator] = [Allocate(buffer) for buffer in y.values()]
        layout, windows = self.domain.tensors[0].layout, self.codomain.tensors[0].layout
        # Every pair of workers: slow, but right by inspection, without any table that the implementation uses too.
        for sender, receiver in product(x, y):
            if self._hold_the_same_copy(sender, receiver):
                bulk, window = layout.window(sender), windows.window(receiver)
                assert bulk is not None
                assert window is not None
                steps += self._adds(x[sender], bulk, y[receiver], window)
        return Program(x.values(), [*steps, *map(Deallocate, x.values())])

    def _hold_the_same_copy(self, sender: int, receiver: int) -> bool:
        """Return True unless the ranks differ along a grid dimension of copies: each copy is exchanged separately."""
        layout = self.domain.tensors[0].layout
        both = zip(layout.partition.index(sender), layout.partition.index(receiver), strict=True)
        return all(i == j or grid_dim in layout.axes for grid_dim, (i, j) in enumerate(both))

    def _adds(self, x: Buffer, bulk: Box, y: Buffer, window: Box) -> Iterator[Generator]:
        """S_{s→r}, from x, which holds `bulk`, to y, which holds `window`."""
        images_of = [
            images(owned, needed, side if dim in self.geometry.periodic else None)
            for dim, (owned, needed, side) in enumerate(
                zip(bulk, window, self.geometry.bulk.shape, strict=True)
            )
        ]
        for intervals in product(*images_of):  # in each dimension one of the images
            in_bulk = tuple(source for source, _ in intervals)
            in_window = tuple(target for _, target in intervals)
            yield Add(region_in(x, bulk, in_bulk), region_in(y, window, in_window))

    def forward(self, x: Array, out: Array | None = None) -> Array:
        """The local tensor of y = H x, in `out` if given."""
        return self._forward(x, out)

    def adjoint(self, y: Array, out: Array | None = None) -> Array:
        """The local tensor of H* y, in `out` if given."""
        return self._adjoint(y, out)

    def _forward(
        self, x: Array, out: Array | None, meanwhile: Callable[[Array], None] | None = None
    ) -> Array:
        batch = check_argument(self.domain.tensors[0], x, self._rank)
        if self._phases is None:
            return arrays.copy(x)
        y, bulk, window = result_with_views(self.codomain.tensors[0], x, out, self._rank, batch)
        plan = self._phases.plan

        def keep_own() -> None:
            arrays.copy_into(window[plan.own_in_window], bulk[plan.own_in_bulk])
            if meanwhile is not None:
                meanwhile(y)

        self._phases.forward(bulk, window, batch, meanwhile=keep_own)
        return y

    def _adjoint(self, y: Array, out: Array | None, meanwhile: Callable[[], None] | None = None) -> Array:
        batch = check_argument(self.codomain.tensors[0], y, self._rank)
        if self._phases is None:
            return arrays.copy(y)
        x, window, bulk = result_with_views(self.domain.tensors[0], y, out, self._rank, batch)
        plan = self._phases.plan

        def keep_own() -> None:
            if plan.trims:  # other workers may add to cells that this one does not need
                arrays.clear(bulk)
            arrays.copy_into(bulk[plan.own_in_bulk], window[plan.own_in_window])
            if meanwhile is not None:
                meanwhile()

        self._phases.adjoint(window, bulk, batch, meanwhile=keep_own)
        return x


class OverlappedHaloExchange(HaloExchange):
    """H, overlapped with a computation while messages are in flight; a worker outside the partition computes nothing.

    An error of `meanwhile` is raised after its phase's messages are complete, so that nothing is received into freed memory.
    """

    def forward_while(self, x: Array, meanwhile: Callable[[Array], None]) -> Array:
        """The local tensor of y = H x. ``meanwhile(y)`` may read the cells of y outside the halo: own cells, and padding."""
        return self._forward(x, None, meanwhile)

    def adjoint_while(self, y: Array, meanwhile: Callable[[], None]) -> Array:
        """The local tensor of H* y. ``meanwhile()`` may read y, but not write it."""
        return self._adjoint(y, None, meanwhile)


# Many exchanges, and several dimensions of one, have the same pairs of intervals.
@lru_cache(maxsize=1024)
def images(owned: Window, needed: Window, period: int | None) -> tuple[tuple[Window, Window], ...]:
    """Return the intervals of the bulk `owned` that lie in the window `needed`, each with its place there.

    The two differ for images, which are moved by all multiples of `period`, if there is one. With period 8, the bulk 5:8 and the
    window -2:7 share (5:7, 5:7) and, as an image moved by -8, (6:8, -2:0).
    """
    shifts = [0]
    if period:
        # Images further away than the window's far end cannot overlap it.
        reach = max(map(abs, needed)) // period + 1
        shifts = [shift * period for shift in range(-reach, reach + 1)]
    met = [(max(owned[0] + shift, needed[0]), min(owned[1] + shift, needed[1]), shift) for shift in shifts]
    return tuple(((start - shift, stop - shift), (start, stop)) for start, stop, shift in met if start < stop)
