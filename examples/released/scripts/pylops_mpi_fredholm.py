"""PyLops-MPI: MPIFredholm1 refuses ranks with one slice on rank 0 alone; the others go on, and wait for it for ever.

mpiexec -n 2 python pylops_mpi_fredholm.py
"""

import threading

import numpy as np
from mpi4py import MPI
from pylops_mpi.signalprocessing import MPIFredholm1

comm = MPI.COMM_WORLD
rank = comm.Get_rank()


def give_up():
    print(f"rank {rank}: has not come back from MPIFredholm1 after 5 s", flush=True)
    comm.Abort(1)


patience = threading.Timer(5, give_up)
patience.daemon = True
patience.start()
try:
    MPIFredholm1(np.ones((2 if rank == 0 else 1, 2, 2)), base_comm=comm)
except NotImplementedError as error:
    print(f"rank {rank}: {type(error).__name__}: {error}", flush=True)
    threading.Event().wait()
