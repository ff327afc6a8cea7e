"""PyLops-MPI 0.8.0: MPINonStationaryConvolve1D is wrong where filters are long, and where MPI reorders a grid; it refuses a tuple of places.

mpiexec -n 2 python examples/released/scripts/pylops_mpi_convolution.py
"""

import numpy as np
from mpi4py import MPI
from pylops.signalprocessing import NonStationaryConvolve1D
from pylops_mpi import DistributedArray
from pylops_mpi.signalprocessing import MPINonStationaryConvolve1D

comm = MPI.COMM_WORLD
SAMPLES, PLACES = 12, (0, 3, 6, 9)


def distributed(values):
    array = DistributedArray(global_shape=SAMPLES, base_comm=comm)
    array[:] = np.split(values, comm.size)[comm.rank]
    return array


class Reordering(MPI.Intracomm):
    """A communicator whose grids have their ranks in the opposite order, which `reorder=True` allows."""

    def Create_cart(self, dims, periods, reorder):
        return self.Split(0, -self.rank).Create_cart(dims, periods)


random = np.random.default_rng(0)
x, y, wide = random.standard_normal(SAMPLES), random.standard_normal(SAMPLES), random.standard_normal((4, 5))
for width in (3, 5):
    filters = wide[:, :width]
    sequential = NonStationaryConvolve1D(SAMPLES, filters, PLACES)
    operator = MPINonStationaryConvolve1D(SAMPLES, filters, np.array(PLACES), base_comm=comm)
    forward = (operator @ distributed(x)).asarray()
    adjoint = (operator.H @ distributed(y)).asarray()
    if comm.rank == 0:
        print(
            f"filters of {width}: largest difference from one process {abs(forward - sequential @ x).max():.3f}"
        )
        print(f"filters of {width}: <Fx, y> = {forward @ y:.3f}, <x, F*y> = {x @ adjoint:.3f}")
try:
    MPINonStationaryConvolve1D(SAMPLES, wide, PLACES, base_comm=comm)
except TypeError as error:
    print(f"rank {comm.rank}: places as a tuple, as documented: TypeError: {error}")
try:
    MPINonStationaryConvolve1D(SAMPLES, wide[:, :3], np.array(PLACES), base_comm=Reordering(comm))
except ValueError as error:
    print(f"rank {comm.rank}: with a reordered grid: ValueError: {error}")
    comm.Abort(1)
