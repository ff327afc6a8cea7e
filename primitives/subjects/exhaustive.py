"""Every case of the built-in primitives up to a bound, for ``adjointlab exhaust``, from the small to the large.

Element types, memory orders and batches are not listed: what moves does not depend on them. Partitions use the ranks from
0 on where nothing else is said; where two partitions meet, the second one lies on any ranks in any order. What each list has
is said in ``docs/primitives.md``, and so is what it has not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations_with_replacement, pairwise, permutations, product
from math import prod
from typing import Any

from adjointlab.core.layout import Layout, Window
from adjointlab.core.partition import Partition
from adjointlab.primitives.broadcast_rules import broadcast_pattern
from adjointlab.primitives.halo_geometry import HaloGeometry

__all__ = [
    "all_gathers",
    "all_sum_reduces",
    "broadcasts",
    "discards",
    "gathers",
    "halo_exchanges",
    "halo_exchanges_in_place",
    "memory_operations",
    "memory_operations_in_both_forms",
    "redistributes",
    "reduce_scatters",
    "repartitions",
    "scatters",
    "send_receives",
    "sum_reduces",
]

Case = tuple[int, dict[str, Any]]


def broadcasts(*, ranks: int = 4, order: int = 2, side: int = 2) -> Iterator[Case]:
    """P_x in any place, P_y in any place, every cut of every tensor along P_x."""
    for world, source, target, flags in _broadcasting(ranks, order):
        for layout in layouts(source, side):
            yield world, {"layout": layout, "partition": target, **flags}


def sum_reduces(*, ranks: int = 4, order: int = 2, side: int = 2) -> Iterator[Case]:
    """The same the other way round; tensors are cut along what is not summed over."""
    for world, source, target, flags in _broadcasting(ranks, order):
        pattern = broadcast_pattern(
            source, target, transpose_one=flags["transpose_src"], transpose_many=flags["transpose_dest"]
        )
        for layout in layouts(target, side, along=pattern.kept.values()):
            yield (
                world,
                {
                    "layout": layout,
                    "partition": source,
                    "transpose_src": flags["transpose_dest"],
                    "transpose_dest": flags["transpose_src"],
                },
            )


def all_sum_reduces(*, ranks: int = 4, order: int = 3, side: int = 2) -> Iterator[Case]:
    """Every subset of the dimensions of every grid is summed over."""
    for grid in grids(ranks, order):
        partition = Partition(grid)
        for chosen in product((False, True), repeat=len(grid)):
            dims = tuple(dim for dim, summed in enumerate(chosen) if summed)
            kept = [dim for dim, summed in enumerate(chosen) if not summed]
            for layout in layouts(partition, side, along=kept):
                yield partition.size, {"layout": layout, "dims": dims}


def send_receives(*, ranks: int = 3, order: int = 2, side: int = 2) -> Iterator[Case]:
    """Any two workers, both forms."""
    for world in range(1, ranks + 1):
        for dims, source, target, form in product(
            range(order + 1), range(world), range(world), ("copy", "move")
        ):
            partition = Partition((1,) * dims, [source])
            for shape in shapes(dims, side):
                yield world, {"layout": Layout(shape, partition), "destination": target, "form": form}


def memory_operations(*, ranks: int = 3, order: int = 2, side: int = 2) -> Iterator[Case]:
    """Buffers of every layout."""
    for grid in grids(ranks, order):
        for layout in layouts(Partition(grid), side):
            yield prod(grid), {"layout": layout}


def memory_operations_in_both_forms(*, ranks: int = 3, order: int = 2, side: int = 2) -> Iterator[Case]:
    """Buffers of every layout, in place and out of place."""
    for world, parameters in memory_operations(ranks=ranks, order=order, side=side):
        for in_place in (False, True):
            yield world, {**parameters, "in_place": in_place}


def repartitions(*, ranks: int = 3, order: int = 2, side: int = 2) -> Iterator[Case]:
    """Every cut to every cut; for tensors of order 1 every window in the target; and every local type of copies.

    Copies lie along one more dimension of either grid: tensors of order d on ``ranks + 1 - d`` ranks at most. Those of a
    scalar lie along both dimensions of either grid, on ``ranks + 1`` ranks.
    """
    for world in range(1, ranks + 1):
        for dims in range(1, order + 1):
            for source, target in _pairs(world, dims):
                for shape in shapes(dims, side):
                    for ends, new_ends in product(
                        _all_cuts(shape, source.shape), _all_cuts(shape, target.shape)
                    ):
                        yield (
                            world,
                            {
                                "layout": Layout.cut(shape, source, ends),
                                "target": Layout.cut(shape, target, new_ends),
                            },
                        )
            if world + dims <= ranks + 1:
                yield from _between_copies(world, dims, side)
        yield from _onto_windows(world, side)
    yield from _between_scalars(ranks + 1)


def scatters(*, ranks: int = 4, order: int = 2, side: int = 3) -> Iterator[Case]:
    """From any worker to every cut."""
    for grid in grids(ranks, order):
        for root in range(prod(grid) + 1):
            for layout in layouts(Partition(grid), side):
                yield max(prod(grid), root + 1), {"layout": layout, "root": root}


def gathers(*, ranks: int = 4, order: int = 2, side: int = 3) -> Iterator[Case]:
    """From every cut to any worker."""
    yield from scatters(ranks=ranks, order=order, side=side)


def all_gathers(*, ranks: int = 4, order: int = 3, side: int = 2, permuted: int = 3) -> Iterator[Case]:
    """Every dimension of every cut, for each local type of the copies; on lines of workers in any order too."""
    for world, partition in _placed(ranks, order, permuted):
        for layout in layouts(partition, side):
            for dim, copies in product(range(partition.order), ("varying", "replicated", "invariant")):
                yield world, {"layout": layout, "dim": dim, "copies": copies}


def reduce_scatters(*, ranks: int = 4, order: int = 3, side: int = 2, permuted: int = 3) -> Iterator[Case]:
    """Every dimension that is whole on all workers of some dimension of the grid, cut in every way."""
    for world, parameters in _whole(ranks, order, side, permuted):
        for summands in ("varying", "partial"):
            yield world, {**parameters, "summands": summands}


def discards(*, ranks: int = 4, order: int = 3, side: int = 2, permuted: int = 3) -> Iterator[Case]:
    """The same dimensions, for each local type of what is cut."""
    for world, parameters in _whole(ranks, order, side, permuted):
        for copies in ("varying", "replicated", "invariant"):
            yield world, {**parameters, "copies": copies}


def _whole(ranks: int, order: int, side: int, permuted: int) -> Iterator[Case]:
    """Tensors that are whole in one dimension, the workers along one dimension of the grid, and the cut to come."""
    for world, partition in _placed(ranks, order, permuted):
        for along in range(partition.order):
            others = [axis for axis in range(partition.order) if axis != along]
            for laid in layouts(partition, side, along=others):
                for dim, length in product(range(len(others) + 1), range(side + 1)):
                    shape = (*laid.shape[:dim], length, *laid.shape[dim:])
                    windows = (*laid.windows[:dim], ((0, length),), *laid.windows[dim:])
                    axes = (*laid.axes[:dim], None, *laid.axes[dim:])
                    layout = Layout(shape, partition, windows, axes)
                    for cut in cuts(length, partition.shape[along]):
                        yield world, {"layout": layout, "dim": dim, "along": along, "cut": cut}


def halo_exchanges(
    *,
    ranks: int = 4,
    side: int = 6,
    kernel: int = 3,
    stride: int = 3,
    dilation: int = 2,
    free: int = 3,
    side2: int = 3,
    kernel2: int = 2,
    stride2: int = 2,
    side3: int = 2,
    kernel3: int = 2,
    ring2: int = 2,
) -> Iterator[Case]:
    """Order 1: the windows of every kernel, padding left and right, and cut; every window of small tensors, periodic too.

    Orders 2 and 3, whose bounds end in 2 and 3: the windows of kernels of one size, stride and padding for each dimension,
    without dilation, on every grid. Of order 2, halos of width 0 and 1 around the dimensions that are periodic too. `free`
    and `ring2` are sides. Kernels that need the same windows are one case.
    """
    listed = set()
    for size, dims in _any_windows(min(ranks, 3), free):
        listed.add((dims["layout"], dims["windows"]))
        yield size, dims
    for workers in range(1, ranks + 1):
        for situation in _situations(workers, side, kernel, stride, dilation, least=0):
            case = _exchange((workers,), [situation])
            if (case["layout"], case["windows"]) not in listed:
                yield workers, case
    for order, longest, widest, steps in ((2, side2, kernel2, stride2), (3, side3, kernel3, 1)):
        for grid in _grids_of(ranks, order):
            along = [_situations(workers, longest, widest, steps, 1, least=1) for workers in grid]
            for situations in product(*along):
                yield prod(grid), _exchange(grid, situations)
    for grid in _grids_of(ranks, 2):
        for situations in product(*(_rings(workers, ring2) for workers in grid)):
            for periodic in ((0,), (1,), (0, 1)):
                yield prod(grid), _exchange(grid, situations, periodic)


def halo_exchanges_in_place(
    *,
    ranks: int = 3,
    side: int = 6,
    kernel: int = 3,
    stride: int = 3,
    dilation: int = 2,
    free: int = 3,
    side2: int = 3,
    kernel2: int = 2,
    stride2: int = 2,
    side3: int = 2,
    kernel3: int = 2,
    ring2: int = 2,
) -> Iterator[Case]:
    """The same; the matrices are larger, as padded tensors are domain and codomain."""
    yield from halo_exchanges(
        ranks=ranks,
        side=side,
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        free=free,
        side2=side2,
        kernel2=kernel2,
        stride2=stride2,
        side3=side3,
        kernel3=kernel3,
        ring2=ring2,
    )


_Situation = tuple[int, tuple[int, ...], tuple[Window, ...]]
"""Along one dimension: its length, its cut, and the windows."""


def _exchange(
    grid: Sequence[int], along: Iterable[_Situation], periodic: tuple[int, ...] = ()
) -> dict[str, Any]:
    """The arguments of an exchange with these situations along its dimensions."""
    partition = Partition(grid)
    shape, ends, held = zip(*along, strict=True)
    return {
        "layout": Layout.cut(shape, partition, ends),
        "windows": Layout(shape, partition, held),
        "periodic": periodic,
    }


def _situations(
    workers: int, side: int, kernel: int, stride: int, dilation: int, *, least: int
) -> list[_Situation]:
    """The windows of some kernel that fits the dimension; each once."""
    line = Partition((workers,))
    found: dict[_Situation, None] = {}
    for length in range(least, side + 1):
        for ends in cuts(length, workers):
            layout = Layout.cut((length,), line, [ends])
            for size, step, spread in product(
                range(1, kernel + 1), range(1, stride + 1), range(1, dilation + 1)
            ):
                reach = spread * (size - 1)
                for left, right in product(range(reach + 1), repeat=2):
                    if length + left + right > reach:
                        geometry = HaloGeometry.from_kernel(
                            layout, size, stride=step, dilation=spread, padding=((left, right),)
                        )
                        found[length, ends, geometry.window.windows[0]] = None
    return list(found)


def _rings(workers: int, side: int) -> list[_Situation]:
    """Halos of width 0 and 1, left and right."""
    return [
        (length, ends, tuple((start - left, stop + right) for start, stop in pairwise(ends)))
        for length in range(1, side + 1)
        for ends in cuts(length, workers)
        for left, right in product((0, 1), repeat=2)
    ]


def _any_windows(ranks: int, side: int) -> Iterator[Case]:
    """Tensors of order 1 with every window up to two elements beyond the tensor; on three workers one, and less long."""
    for workers in range(1, ranks + 1):
        longest, beyond = (side, 2) if workers < 3 else (min(side, 2), 1)
        for length in range(longest + 1):
            for ends in cuts(length, workers):
                layout = Layout.cut((length,), Partition((workers,)), [ends])
                for held in product(windows(length, beyond), repeat=workers):
                    wanted = Layout((length,), layout.partition, [held])
                    for periodic in ((), (0,)) if length else ((),):
                        yield workers, {"layout": layout, "windows": wanted, "periodic": periodic}


def redistributes(*, ranks: int = 4, order: int = 2, side: int = 3) -> Iterator[Case]:
    """Every assignment to every other over every grid, with every choice of summands among the redundant dimensions."""
    for grid in grids(ranks, order):
        partition = Partition(grid)
        for dims in range(1, order + 1):
            every = list(_assignments(dims, len(grid)))
            for shape, source, target in product(shapes(dims, side), every, every):
                redundant = [axis for axis in range(len(grid)) if all(axis not in axes for axes in source)]
                for summed, copies in product(_subsets(redundant), ("replicated", "invariant")):
                    yield (
                        prod(grid),
                        {
                            "grid": partition,
                            "shape": shape,
                            "source": source,
                            "target": target,
                            "partial": summed,
                            "copies": copies,
                        },
                    )


def _assignments(order: int, dims: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every assignment of `order` tensor dimensions to `dims` grid dimensions, each to one place at most, in any order."""
    for places_of in product(range(order + 1), repeat=dims):
        held = [[dim for dim, place in enumerate(places_of) if place == entry] for entry in range(order)]
        yield from product(*(tuple(permutations(dims_of)) for dims_of in held))


def _subsets(entries: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for chosen in product((False, True), repeat=len(entries)):
        yield tuple(entry for entry, taken in zip(entries, chosen, strict=True) if taken)


# What cases are made of


def grids(ranks: int, order: int) -> Iterator[tuple[int, ...]]:
    """Every grid of 1 to `order` dimensions with at most `ranks` workers, by the number of workers."""
    found = [
        grid
        for dims in range(1, order + 1)
        for grid in product(range(1, ranks + 1), repeat=dims)
        if prod(grid) <= ranks
    ]
    yield from sorted(found, key=lambda grid: (prod(grid), len(grid)))


def _grids_of(ranks: int, order: int) -> list[tuple[int, ...]]:
    """Those of exactly `order` dimensions."""
    return [grid for grid in grids(ranks, order) if len(grid) == order]


def shapes(order: int, side: int) -> Iterator[tuple[int, ...]]:
    """Every tensor shape of `order` dimensions with sides from 0 to `side`, by the number of elements."""
    yield from sorted(product(range(side + 1), repeat=order), key=lambda shape: (prod(shape), shape))


def cuts(length: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every cut of `length` into `parts`, empty ones included."""
    for inner in combinations_with_replacement(range(length + 1), parts - 1):
        yield 0, *inner, length


def layouts(partition: Partition, side: int, along: Iterable[int] | None = None) -> Iterator[Layout]:
    """Every cut of every tensor up to `side` that has one dimension for each partition dimension of `along`.

    Default: all of them. Copies lie along the others.
    """
    axes = tuple(range(partition.order) if along is None else along)
    for shape in shapes(len(axes), side):
        every = (cuts(length, partition.shape[axis]) for length, axis in zip(shape, axes, strict=True))
        for ends in product(*every):
            yield Layout.cut(shape, partition, ends, axes)


def places(world: int, size: int) -> Iterator[tuple[int, ...]]:
    """Every choice of `size` ranks of `world`, in every order."""
    yield from permutations(range(world), size)


def _placed(ranks: int, order: int, permuted: int) -> Iterator[tuple[int, Partition]]:
    """Every grid on the ranks from 0 on; then every line of workers on any ranks of a world of `permuted`, in any order."""
    still = [(prod(grid), Partition(grid)) for grid in grids(ranks, order)]
    yield from still
    for size in range(1, permuted + 1):
        for place in places(permuted, size):
            line = Partition((size,), place)
            if (permuted, line) not in still:
                yield permuted, line


def _pairs(world: int, dims: int) -> Iterator[tuple[Partition, Partition]]:
    """Two grids of `dims` dimensions in a world: the first one in natural places, the second one in any."""
    every = _grids_of(world, dims)
    for source, target in product(every, every):
        if prod(source) + prod(target) < world:
            continue  # some rank would take no part at all
        for place in places(world, prod(target)):
            yield Partition(source), Partition(target, place)


def _all_cuts(shape: Sequence[int], grid: Sequence[int]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Along the first dimensions of the grid."""
    yield from product(*(cuts(length, parts) for length, parts in zip(shape, grid, strict=False)))


def _between_scalars(world: int) -> Iterator[Case]:
    """A tensor of order 0 on grids of all ranks, in all local types of its copies."""
    kinds = ("replicated", "partial", "invariant")
    every = [grid for grid in grids(world, 2) if prod(grid) == world]
    for one, other in product(every, every):
        layout, target = (Layout((), Partition(grid), axes=()) for grid in (one, other))
        for types, target_types in product(
            product(kinds, repeat=len(one)), product(("varying", *kinds), repeat=len(other))
        ):
            yield (
                world,
                {"layout": layout, "target": target, "types": types, "target_types": target_types},
            )


def _between_copies(world: int, dims: int, side: int) -> Iterator[Case]:
    """Tensors with copies along a last dimension of either grid, in all their local types."""
    kinds = ("replicated", "partial", "invariant")
    every, axes = _grids_of(world, dims + 1), range(dims)
    for one, other, shape in product(every, every, shapes(dims, side)):
        if prod(one) + prod(other) < world:
            continue
        for place in places(world, prod(other)):
            source, target = Partition(one), Partition(other, place)
            for ends, new_ends in product(_all_cuts(shape, one), _all_cuts(shape, other)):
                layout = Layout.cut(shape, source, ends, axes)
                arrival = Layout.cut(shape, target, new_ends, axes)
                for kind, new_kind in product(kinds, ("varying", *kinds)):
                    yield (
                        world,
                        {
                            "layout": layout,
                            "target": arrival,
                            "types": (*["varying"] * dims, kind),
                            "target_types": (*["varying"] * dims, new_kind),
                        },
                    )


def _onto_windows(world: int, side: int) -> Iterator[Case]:
    """From every cut of a tensor of order 1 to every window up to one element beyond it, on one worker or two anywhere."""
    for length, parts, size in product(range(side + 1), range(1, world + 1), (1, 2)):
        if size > world or max(parts, size) < world:
            continue
        for ends, place in product(cuts(length, parts), places(world, size)):
            layout = Layout.cut((length,), Partition((parts,)), [ends])
            for held in product(windows(length, 1), repeat=size):
                target = Layout((length,), Partition((size,), place), [held])
                if target.ends(0) is None:  # cuts are listed already
                    yield world, {"layout": layout, "target": target}


def windows(length: int, beyond: int) -> Iterator[tuple[int, int]]:
    """Every window of a dimension, up to `beyond` elements outside it; the empty one once."""
    yield 0, 0
    for start in range(-beyond, length + beyond):
        for stop in range(start + 1, length + beyond + 1):
            yield start, stop


def _broadcasting(ranks: int, order: int) -> Iterator[tuple[int, Partition, Partition, dict[str, bool]]]:
    """All pairs of partitions that broadcast, with the transposition flags; P_y in natural places, P_x in any.

    Relabelling the ranks of a case gives nothing new, so that one of the two may stand still. The world has one rank
    more than P_y: P_x may lie outside.
    """
    for target in grids(ranks - 1, order):
        world = prod(target) + 1
        for source, flags in _sources(target):
            for place in places(world, prod(source)):
                yield world, Partition(source, place), Partition(target), flags


def _sources(target: Sequence[int]) -> Iterator[tuple[tuple[int, ...], dict[str, bool]]]:
    """The grids that broadcast to `target`, with leading ones and without, and read in either direction."""
    for transpose_src, transpose_dest in product((False, True), repeat=2):
        read = target[::-1] if transpose_dest else target
        for shape in dict.fromkeys(product(*((1, length) for length in read))):
            for first in range(len(shape)):
                if any(length != 1 for length in shape[:first]):
                    break
                grid = shape[first:]
                yield (
                    grid[::-1] if transpose_src else grid,
                    {"transpose_src": transpose_src, "transpose_dest": transpose_dest},
                )
