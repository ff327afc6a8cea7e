"""heat 1.8.0: `resplit` goes on with the default communicator, and `array(..., is_split=)` never waits for a message that it sends.

mpiexec -n 2 python heat_communicators.py
"""

import heat
import torch
from heat.core.communication import MPICommunication
from mpi4py import MPI

rank, ranks = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
reversed_ranks = MPICommunication(MPI.COMM_WORLD.Split(0, -rank))

whole = torch.arange(4.0 * ranks).reshape(ranks, 4)
array = heat.DNDarray(
    whole[[reversed_ranks.rank]], tuple(whole.shape), heat.float32, 0, heat.cpu, reversed_ranks, True
)
result = heat.resplit(array, 1)
own = result.comm.rank
print(
    f"rank {rank}: resplit keeps the communicator: {result.comm is array.comm}; "
    f"as rank {own} of the result's it holds {result.larray.tolist()}, should be {whole.chunk(ranks, 1)[own].tolist()}",
    flush=True,
)

sent = []
send = MPICommunication.Isend


def noted(*arguments, **options):
    sent.append(send(*arguments, **options))
    return sent[-1]


MPICommunication.Isend = noted
heat.array(whole[[rank]], is_split=0)
left = [request for request in sent if request.handle != MPI.REQUEST_NULL]
print(f"rank {rank}: {len(left)} of {len(sent)} requests to send are not complete", flush=True)
for request in left:
    request.handle.Wait()
