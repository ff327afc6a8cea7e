"""The MPI world: ranks are processes, and every wait of their communicator can be revoked."""
