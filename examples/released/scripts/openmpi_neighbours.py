"""Neighbourhood collectives of Open MPI 5.0.11: ``mpiexec -n 2 python openmpi_neighbours.py`` (MPICH 5.0.2 passes)."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank = comm.Get_rank()

# What goes to the rank before arrives as what comes from the rank after [MPI 4.1, section 8.6]. On a ring of one rank both are itself.
ring = MPI.COMM_SELF.Create_cart([1], [True])
sent, blocking, started = np.array([1.0, 2.0]), np.zeros(2), np.zeros(2)
ring.Neighbor_alltoall(sent, blocking)
ring.Ineighbor_alltoall(sent, started).Wait()
if rank == 0:
    print("blocking:    ", blocking, "expected [2. 1.]")
    print("non-blocking:", started, "expected [2. 1.]")

# One edge, from rank 0 to rank 1: nothing comes to rank 0, and nothing goes from rank 1.
sources, destinations = ([], [1]) if rank == 0 else ([0], [])
graph = comm.Create_dist_graph_adjacent(sources, destinations)
received = np.zeros(2 * len(sources))
try:
    graph.Neighbor_alltoall(np.full(2 * len(destinations), 7.0), received)
    print(f"rank {rank}:", received, "expected", [7.0, 7.0] if rank else [])
except MPI.Exception as error:
    print(f"rank {rank}:", error, "- expected", [7.0, 7.0] if rank else [])
