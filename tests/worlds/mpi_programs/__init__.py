"""Small SPMD programs over all that a communicator offers, one file a topic; see :mod:`.registry`."""
