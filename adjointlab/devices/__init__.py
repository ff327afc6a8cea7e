"""Detection of the MPI library, CUDA and the devices of this machine. Nothing here computes with arrays."""
