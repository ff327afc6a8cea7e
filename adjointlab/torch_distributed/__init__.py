"""torch.distributed over a communicator: the process groups of code that calls ``dist.*``, in every world."""
