"""deepinv 0.5.0: gradients of distributed stacks of operators.

With the strategy "naive" the gradient is lost, with "broadcast" the ranks call different collectives in their backward pass, and so they do if
the result of `A` goes on to `A_adjoint` and a rank has no operator.
"""

import sys
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
from deepinv.distributed import DistributedContext, distribute
from deepinv.physics import LinearPhysics, StackedLinearPhysics


def scaling(factor):
    return LinearPhysics(A=lambda x: factor * x, A_adjoint=lambda y: factor * y)


def main(rank, store, strategy, count, ranks=2):
    dist.init_process_group(
        "gloo", f"file://{store}", rank=rank, world_size=ranks, timeout=timedelta(seconds=5)
    )
    whole = StackedLinearPhysics([scaling(1.0 + number) for number in range(count)])
    stack = distribute(whole, DistributedContext(device_mode="cpu").__enter__(), gather_strategy=strategy)
    for name, is_normal in (("A", False), ("A_adjoint(A)", True)):
        x = torch.ones(1, 2, requires_grad=True)
        expected = sum((1.0 + number) ** (2 if is_normal else 1) for number in range(count))
        try:
            y = stack.A(x)
            loss = stack.A_adjoint(y).sum() if is_normal else sum(part.sum() for part in y)
            loss.backward()
            gradient = "none" if x.grad is None else x.grad.flatten().tolist()
            print(
                f"rank {rank}, {strategy}, {count} operators, {name}: {gradient}, should be {[expected] * 2}"
            )
        except RuntimeError as error:
            print(f"rank {rank}, {strategy}, {count} operators, {name}: {str(error)[:100]}")
            return


if __name__ == "__main__":
    for strategy, count in (("concatenated", 2), ("concatenated", 1), ("naive", 2), ("broadcast", 2)):
        torch.multiprocessing.spawn(main, (tempfile.mktemp(), strategy, count), nprocs=2)
        sys.stdout.flush()
