"""PyLops-MPI: each DistributedArray with a mask makes a communicator that is never freed; MPI runs out of them.

mpiexec -n 2 python pylops_mpi_masks.py
"""

import numpy as np
from mpi4py import MPI
from pylops import MatrixMult
from pylops_mpi import DistributedArray
from pylops_mpi.basicoperators import MPIBlockDiag

comm = MPI.COMM_WORLD
operator = MPIBlockDiag([MatrixMult(np.ones((1, 1)))], comm, mask=[0] * comm.Get_size())
x = DistributedArray(comm.Get_size(), comm)
x[:] = 1
for number in range(5000):
    try:
        operator.matvec(x)
    except MPI.Exception as error:
        print(f"rank {comm.Get_rank()}: product {number}: {error.Get_error_string()[:160]}", flush=True)
        comm.Abort(1)
print(f"rank {comm.Get_rank()}: 5000 products")
