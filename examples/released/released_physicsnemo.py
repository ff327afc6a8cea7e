"""PhysicsNeMo 2.2: `distributed.mappings`, the primitives of `distributed.autograd`, and the Fourier transforms of `distributed.fft`.

adjointlab check examples/released/released_physicsnemo.py --check adjoint

Groups stand in an attribute of a class, which `rank_local` does not reach; their names stand for the default group here, which is every
rank's own.
"""

from __future__ import annotations

from itertools import accumulate

import torch
from hypothesis import strategies as st
from physicsnemo.distributed import DistributedManager, autograd, fft, mappings
from physicsnemo.distributed.utils import compute_split_shapes

import adjointlab as al
from adjointlab.adapters.regions import region

GROUP = "spatial_parallel"
DistributedManager._shared_state.update(_is_initialized=True, _groups={GROUP: None})
if not torch.cuda.is_available():
    # Marks for the profiler, which a torch without CUDA cannot set.
    torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *_: None


def check(name, function, cases, **options):
    return al.subject.autograd(function, process_group=True, name=f"physicsnemo.{name}", **options)(cases)


def cut(sizes, shape, dim, name="x"):
    """The space of a tensor that is cut into parts of these sizes along `dim`."""
    grid = [len(sizes) if k == dim else 1 for k in range(len(shape))]
    ends = [(0, *accumulate(sizes)) if k == dim else None for k in range(len(shape))]
    return al.Space(al.Layout.cut(shape, al.Partition(grid), ends), name=name)


def of_all(local_type, ranks, shape, name="x"):
    """The space of whole tensors on all ranks."""
    layout = al.Layout(shape, al.Partition((ranks,)), axes=(None,) * len(shape))
    return al.Space(layout, types=(local_type,), name=name)


def on_one(rank, shape, name="x"):
    """The space of a whole tensor on one rank, the others having none."""
    return al.Space(al.Layout(shape, al.Partition((1,), [rank]), axes=(None,) * len(shape)), name=name)


# Mappings, which take contiguous tensors as their collectives do


def check_region(name, kind, function):
    """A function of a tensor that is cut as the package itself cuts: evenly, but for the last rank."""

    def cases(draw, ranks):
        columns = draw(st.integers(ranks, 3 * ranks))
        return region(kind, (2, columns), ranks, sizes=compute_split_shapes(columns, ranks))

    return check(name, function, cases, orders=("row-major",))


copies = check_region("copy", "copy", lambda x: mappings.copy_to_parallel_region(x, GROUP))
# The sum is made in place.
sums = check_region("reduce", "reduce", lambda x: mappings.reduce_from_parallel_region(x * 1, GROUP))
copies_in_place = check_region("copy.in_place", "copy", lambda x: mappings.copy_to_parallel_region(x, GROUP))
sums_in_place = check_region(
    "reduce.in_place", "reduce", lambda x: mappings.reduce_from_parallel_region(x, GROUP)
)
scatters = check_region("scatter", "scatter", lambda x: mappings.scatter_to_parallel_region(x, 1, GROUP))


def gathered(x, sizes):
    return mappings.gather_from_parallel_region(x, 1, sizes, GROUP)


def gather_cases(draw, ranks):
    columns = draw(st.integers(ranks, 3 * ranks))
    sizes = compute_split_shapes(columns, ranks)
    return {**region("gather", (2, columns), ranks, sizes=sizes), "sizes": sizes}


gathers = check("gather", gathered, gather_cases, orders=("row-major",))


# Primitives with parts of any sizes


def parts(draw, ranks):
    """Sizes of the parts, the shape of the whole, and the dimension that is cut."""
    sizes = [draw(st.integers(0, 3)) for _ in range(ranks)]
    sizes[draw(st.integers(0, ranks - 1))] += 1
    dim = draw(st.integers(0, 1))
    shape = [draw(st.integers(1, 3)) for _ in range(2)]
    shape[dim] = sum(sizes)
    return sizes, shape, dim


def all_gather_cases(draw, ranks):
    sizes, shape, dim = parts(draw, ranks)
    codomain = of_all("replicated", ranks, shape, "y")
    return dict(sizes=sizes, dim=dim, domain=cut(sizes, shape, dim), codomain=codomain)


all_gathers = check("all_gather_v", autograd.all_gather_v, all_gather_cases)


def gathered_on_one(x, sizes, dim, root):
    y = autograd.gather_v(x, sizes, dim, root)
    # The others have memory in the result's shape that nothing was written to.
    return y if torch.distributed.get_rank() == root else y[:0]


def gather_v_cases(draw, ranks):
    sizes, shape, dim = parts(draw, ranks)
    root = draw(st.integers(0, ranks - 1))
    return dict(
        sizes=sizes, dim=dim, root=root, domain=cut(sizes, shape, dim), codomain=on_one(root, shape, "y")
    )


gathers_on_one = check("gather_v", gathered_on_one, gather_v_cases)


def scattered_from_one(x, sizes, dim, root, shape):
    if torch.distributed.get_rank() != root:
        x = x.sum() + torch.zeros(
            shape, dtype=x.dtype
        )  # whose shape is read, and whose gradient is not to be
        x.register_hook(torch.zeros_like)
    return autograd.scatter_v(x, sizes, dim, root, None)


def scatter_v_cases(draw, ranks):
    sizes, shape, dim = parts(draw, ranks)
    root = draw(st.integers(0, ranks - 1))
    return dict(
        sizes=sizes,
        dim=dim,
        root=root,
        shape=shape,
        domain=on_one(root, shape),
        codomain=cut(sizes, shape, dim, "y"),
    )


scatters_from_one = check("scatter_v", scattered_from_one, scatter_v_cases)


def exchanged(x, indices, dim=0):
    sizes = [
        [len(indices[source][target]) for target in range(len(indices))] for source in range(len(indices))
    ]
    own = indices[torch.distributed.get_rank()]
    return autograd.indexed_all_to_all_v(
        x, [torch.tensor(rows, dtype=torch.int64) for rows in own], sizes, dim=dim
    )


def exchange_cases(draw, ranks):
    sizes = [draw(st.integers(1, 3)) for _ in range(ranks)]
    # Rows that each rank sends to each other: some several times, some never.
    indices = [[draw(st.lists(st.integers(0, size - 1), max_size=3)) for _ in range(ranks)] for size in sizes]
    received = [sum(len(rows[target]) for rows in indices) for target in range(ranks)]
    return dict(
        indices=indices,
        domain=cut(sizes, (sum(sizes), 2), 0),
        codomain=cut(received, (sum(received), 2), 0, "y"),
    )


exchanges = check("indexed_all_to_all_v", exchanged, exchange_cases)


def exchanged_columns(x, indices):
    return exchanged(x, indices, dim=1)


def column_cases(draw, ranks):
    # Each rank has two columns and sends the first one to every rank.
    return dict(
        indices=[[[0]] * ranks] * ranks,
        domain=cut([2] * ranks, (2, 2 * ranks), 1),
        codomain=cut([ranks] * ranks, (2, ranks * ranks), 1, "y"),
    )


exchanges_of_columns = check("indexed_all_to_all_v.columns", exchanged_columns, column_cases)


# Fourier transforms


def transformed(x, s, norm):
    y = fft.DistributedRFFT2.apply(x, s, (0, 1), norm)
    return torch.stack([y.real, y.imag], -1)


def transform_cases(norm):
    def cases(draw, ranks):
        rows, columns = (ranks * draw(st.integers(1, 3)) for _ in range(2))
        frequencies = columns // 2 + 1
        return dict(
            s=(rows, columns),
            norm=norm,
            domain=cut([columns // ranks] * ranks, (rows, columns), 1),
            codomain=cut([rows // ranks] * ranks, (rows, frequencies, 2), 0, "y"),
        )

    return cases


transforms = check("rfft2", transformed, transform_cases("ortho"))
unscaled_transforms = check("rfft2.backward", transformed, transform_cases("backward"))


def transformed_back(x, s):
    return fft.DistributedIRFFT2.apply(torch.view_as_complex(x.contiguous()), s, (0, 1), "ortho")


def inverse_cases(draw, ranks):
    rows, frequencies = 2 * ranks, ranks + 1
    return dict(
        s=(rows, 2 * ranks),
        domain=cut([2] * ranks, (rows, frequencies, 2), 0),
        codomain=cut([2] * ranks, (rows, 2 * ranks), 1, "y"),
    )


inverses = check("irfft2", transformed_back, inverse_cases)
