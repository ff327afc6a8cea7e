"""PyLops-MPI 0.8: its operators on simulated ranks, and under mpiexec the same.

adjointlab check examples/released/released_pylops_mpi.py
"""

from __future__ import annotations

import numpy as np
import pylops
from hypothesis import strategies as st
from pylops.signalprocessing import NonStationaryConvolve1D
from pylops_mpi import DistributedArray, MPILinearOperator, Partition
from pylops_mpi.basicoperators import (
    MPIBlockDiag,
    MPIFirstDerivative,
    MPIHStack,
    MPILaplacian,
    MPISecondDerivative,
    MPIVStack,
)
from pylops_mpi.signalprocessing import MPIFredholm1, MPINonStationaryConvolve1D

import adjointlab as al
from adjointlab.adapters.pylops_mpi import mpi_operator

DTYPES = st.sampled_from(["float64", "complex128", "float32"])


def matrix(rows, columns, seed, dtype):
    random = np.random.default_rng([rows, columns, seed])
    imaginary = 1j * random.integers(-3, 4, (rows, columns)) if "complex" in dtype else 0
    return (random.integers(-3, 4, (rows, columns)) + imaginary).astype(dtype)


def broadcast(comm, n, dtype, unsafe=False):
    partition = Partition.UNSAFE_BROADCAST if unsafe else Partition.BROADCAST
    return DistributedArray(n, comm, partition=partition, dtype=dtype)


def of_rank(comm, shapes, dtype):
    rank = comm.Get_rank()
    return [pylops.MatrixMult(matrix(*shape, rank, dtype), dtype=dtype) for shape in shapes[rank]]


def shapes_of_ranks(draw, ranks, rows=None, columns=None):
    """For each rank some shapes of matrices, all with so many rows or columns if given."""
    side = st.integers(1, 4)
    shape = st.tuples(side if rows is None else st.just(rows), side if columns is None else st.just(columns))
    each = st.lists(shape, min_size=1, max_size=2)
    return draw(st.lists(each, min_size=ranks, max_size=ranks))


def block_diagonal(comm, shapes, dtype, groups):
    return MPIBlockDiag(of_rank(comm, shapes, dtype), comm, groups, dtype)


@al.subject.operator(mpi_operator(block_diagonal), name="MPIBlockDiag")
def block_diagonals(draw, ranks):
    return dict(shapes=shapes_of_ranks(draw, ranks), dtype=draw(DTYPES), groups=None)


@al.subject.operator(mpi_operator(block_diagonal), name="MPIBlockDiag.masks")
def block_diagonals_of_groups(draw, ranks):
    groups = draw(st.lists(st.integers(0, 1), min_size=ranks, max_size=ranks))
    return dict(shapes=shapes_of_ranks(draw, ranks), dtype=draw(DTYPES), groups=groups)


def vertical(comm, shapes, dtype, unsafe):
    operator = MPIVStack(of_rank(comm, shapes, dtype), comm, dtype)
    return operator, broadcast(comm, operator.shape[1], dtype, unsafe)


@al.subject.operator(mpi_operator(vertical), name="MPIVStack")
def vertical_stacks(draw, ranks):
    columns = draw(st.integers(1, 4))
    return dict(shapes=shapes_of_ranks(draw, ranks, columns=columns), dtype=draw(DTYPES), unsafe=False)


def horizontal(comm, shapes, dtype):
    operator = MPIHStack(of_rank(comm, shapes, dtype), comm, dtype)
    columns = comm.allgather(sum(shape[1] for shape in shapes[comm.Get_rank()]))
    return operator, DistributedArray(sum(columns), comm, local_shapes=columns, dtype=dtype)


@al.subject.operator(mpi_operator(horizontal), name="MPIHStack")
def horizontal_stacks(draw, ranks):
    rows = draw(st.integers(1, 4))
    return dict(shapes=shapes_of_ranks(draw, ranks, rows=rows), dtype=draw(DTYPES))


def everywhere(comm, rows, columns, dtype, unsafe):
    operator = MPILinearOperator(
        pylops.MatrixMult(matrix(rows, columns, 0, dtype), dtype=dtype), base_comm=comm
    )
    return operator, broadcast(comm, columns, dtype, unsafe)


@al.subject.operator(mpi_operator(everywhere), name="MPILinearOperator")
def operators_everywhere(draw, ranks):
    side = st.integers(1, 5)
    return dict(rows=draw(side), columns=draw(side), dtype=draw(DTYPES), unsafe=draw(st.booleans()))


def rows_of(comm, dims, dtype):
    """A grid that is cut along its first dimension, flat."""
    size = comm.Get_size()
    each = [(dims[0] // size + (rank < dims[0] % size)) * dims[1] for rank in range(size)]
    return DistributedArray(dims[0] * dims[1], comm, local_shapes=each, dtype=dtype)


def derivative(comm, derivative, dims, dtype, **options):
    kind = {"first": MPIFirstDerivative, "second": MPISecondDerivative}[derivative]
    return kind(dims, base_comm=comm, dtype=dtype, **options), rows_of(comm, dims, dtype)


def laplacian(comm, dims, dtype, **options):
    return MPILaplacian(dims, base_comm=comm, dtype=dtype, **options), rows_of(comm, dims, dtype)


@al.subject.operator(mpi_operator(derivative), name="MPIDerivative")
def derivatives(draw, ranks):
    # Four rows for each rank: neighbours ask for as many. The first derivative of few rows is in docs/pylops-mpi.md.
    stencil = dict(
        derivative=draw(st.sampled_from(["first", "second"])),
        kind=draw(st.sampled_from(["forward", "backward", "centered"])),
        edge=draw(st.booleans()),
        sampling=draw(st.sampled_from([1.0, 0.5])),
    )
    rows = draw(st.integers(4 * ranks, 4 * ranks + 5))
    return dict(dims=(rows, draw(st.integers(1, 3))), dtype=draw(DTYPES), **stencil)


@al.subject.operator(mpi_operator(laplacian), name="MPILaplacian")
def laplacians(draw, ranks):
    rows = draw(st.integers(4 * ranks, 4 * ranks + 5))
    return dict(
        dims=(rows, draw(st.integers(3, 5))),
        axes=(0, 1),
        weights=(1, draw(st.integers(1, 3))),
        sampling=(1.0, 0.5),
        edge=draw(st.booleans()),
        dtype=draw(DTYPES),
    )


def multiplied(comm, combination, rows, middle, columns, dtype):
    """Algebra of operators: products, sums, multiples, adjoints, transposes and conjugates."""
    one, other, third = (
        MPILinearOperator(pylops.MatrixMult(matrix(*shape, seed, dtype), dtype=dtype), base_comm=comm)
        for seed, shape in enumerate([(rows, middle), (middle, columns), (rows, columns)])
    )
    operator = {
        "product": lambda: one @ other,
        "sum": lambda: one @ other + third,
        "difference": lambda: third - one @ other,
        "multiple": lambda: 3 * third,
        "complex multiple": lambda: (2 - 1j) * third if "complex" in dtype else third * -2,
        "adjoint": lambda: third.H.H,
        "transpose": lambda: third.T.T,
        "adjoint of product": lambda: (one @ other).H.H,
        "conjugate": third.conj,
        "power": lambda: (third.H @ third) ** 2,
    }[combination]()
    return operator, broadcast(comm, operator.shape[1], dtype, unsafe=True)


COMBINATIONS = (
    "product", "sum", "difference", "multiple", "complex multiple", "adjoint", "transpose", "adjoint of product",
    "conjugate", "power",
)  # fmt: skip


@al.subject.operator(mpi_operator(multiplied), name="MPILinearOperator.algebra")
def algebra(draw, ranks):
    side = st.integers(1, 3)
    return dict(
        combination=draw(st.sampled_from(COMBINATIONS)),
        rows=draw(side),
        middle=draw(side),
        columns=draw(side),
        dtype=draw(st.sampled_from(["float64", "complex128"])),
    )


def fredholm(comm, slices, rows, columns, nz, saved, matmul, dtype):
    own = slices[comm.Get_rank()]
    kernel = np.stack([matrix(rows, columns, k + 10 * comm.Get_rank(), dtype) for k in range(own)])
    operator = MPIFredholm1(kernel, nz, saved, matmul, comm, dtype)
    return operator, broadcast(comm, operator.shape[1], dtype)


@al.subject.operator(mpi_operator(fredholm), name="MPIFredholm1")
def fredholm_integrals(draw, ranks):
    side = st.integers(2, 4)  # its arrays of sides of 1 are squeezed
    return dict(
        slices=draw(st.lists(st.integers(2, 3), min_size=ranks, max_size=ranks)),
        rows=draw(side),
        columns=draw(side),
        nz=draw(st.integers(1, 3)),
        saved=draw(st.booleans()),
        matmul=draw(st.booleans()),
        dtype=draw(DTYPES),
    )


def fredholm_of_one(comm, dtype):
    slices = [2, *[1] * (comm.Get_size() - 1)]
    return fredholm(comm, slices, 2, 2, 1, saved=False, matmul=True, dtype=dtype)


@al.subject.operator(mpi_operator(fredholm_of_one), name="MPIFredholm1.one", ranks=(2,))
def fredholm_integrals_of_one(draw, ranks):
    return dict(dtype="float64")


class InOrder:
    """A communicator whose grids have its ranks in order: the operator asks it for its rank, and the grid's may be another."""

    def __init__(self, comm):
        self._comm = comm

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def Create_cart(self, dims, periods, reorder):
        return self._comm.Create_cart(dims, periods, reorder=False)


def convolution(comm, samples, filters, step, first):
    places, filters = first + step * np.arange(len(filters)), np.array(filters, dtype=float)
    return MPINonStationaryConvolve1D((samples,), filters, places, base_comm=InOrder(comm))


def sequential_convolution(x, samples, filters, step, first):
    places = tuple(first + step * k for k in range(len(filters)))
    return NonStationaryConvolve1D((samples,), np.array(filters, dtype=float), places) @ x


def check_convolution(name, length, **options):
    def cases(draw, ranks):
        each, step = draw(st.integers(2, 3)), draw(st.integers(2, 4))
        filters = [[draw(st.integers(-3, 3)) for _ in range(length)] for _ in range(each * ranks)]
        return dict(
            samples=each * step * ranks, filters=filters, step=step, first=draw(st.integers(0, step - 1))
        )

    made = al.subject.operator(
        mpi_operator(convolution), name=name, reference=sequential_convolution, **options
    )
    return made(cases)


convolutions = check_convolution("MPINonStationaryConvolve1D", 3)
long_convolutions = check_convolution("MPINonStationaryConvolve1D.long", 9, ranks=(2,))
