"""torch.distributed.nn.functional in a subgroup whose ranks are not its members' ranks in the default group.

`broadcast` has the gradient 0 on its source; `gather` and `scatter` do not find their root; `all_to_all`, and with it the backward
pass of `all_gather`, name ranks of the subgroup where those of the default group are meant (gloo).
"""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as F


def attempt(name, function):
    x = torch.ones(1, dtype=torch.float64, requires_grad=True)
    try:
        function(x).sum().backward()
        print(f"{name}: x.grad = {x.grad.item()}, should be 1")
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}")


def main(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    group = dist.new_group([1])
    if rank == 1:
        attempt("broadcast", lambda x: F.broadcast(x, 1, group))
        attempt("gather", lambda x: torch.cat(F.gather(x, 1, group)))
        attempt("scatter", lambda x: F.scatter([x], 1, group))
        attempt("all_to_all", lambda x: torch.cat(F.all_to_all([torch.empty_like(x)], [x], group)))
        attempt("all_gather", lambda x: torch.cat(F.all_gather(x, group)))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
