"""The MPI library, CUDA and the devices of this machine, as they are found: nothing here computes with arrays."""
