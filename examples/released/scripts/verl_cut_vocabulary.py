"""verl 0.9.1: `vocab_parallel_entropy` writes into its logits in the backward pass, and adds up again what it has taken off.

So the backward pass of `vocab_parallel_entropy_with_chunking` raises an error with more than one chunk, because the chunks share their
memory. Of rows of logits, which its documentation allows, it raises an error in any case. And `slice_input_tensor(..., group=)` takes its rank
from another group, or 0 if none is set.
"""

import sys
import tempfile
from pathlib import Path

import torch
import torch._dynamo
import torch.distributed as dist
from megatron.core import parallel_state

sys.path.append(str(Path(__file__).parents[1]))

from parts_of_packages import without_init

without_init("verl", "verl.utils", "verl.utils.megatron")
from verl.utils import ulysses  # noqa: E402
from verl.utils.megatron import tensor_parallel  # noqa: E402

torch._dynamo.config.disable = True


def attempt(rank, name, function):
    try:
        print(f"rank {rank}, {name}: {function()}")
    except (IndexError, RuntimeError) as error:
        print(f"rank {rank}, {name}: {error!r}")


def changed_logits():
    logits = torch.randn(3, 4, requires_grad=True)
    inputs = logits * 1
    before = inputs.detach().clone()
    tensor_parallel.vocab_parallel_entropy(inputs).sum().backward()
    return f"{(inputs != before).sum().item()} of {inputs.numel()} logits changed, by up to {(inputs - before).abs().max().item():.1e}"


def gradient_of_chunks(length):
    logits = torch.randn(1, length, 4, requires_grad=True)
    tensor_parallel.vocab_parallel_entropy_with_chunking(logits * 1, chunk_size=2).sum().backward()
    return tuple(logits.grad.shape)


def main(rank, store, ranks=2):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
    parallel_state.initialize_model_parallel(ranks)
    attempt(rank, "entropy", changed_logits)
    attempt(rank, "one chunk", lambda: gradient_of_chunks(2))
    attempt(rank, "two chunks", lambda: gradient_of_chunks(3))
    attempt(
        rank, "rows", lambda: tensor_parallel.vocab_parallel_entropy_with_chunking(torch.randn(3, 4)).shape
    )
    attempt(
        rank,
        "slice of 0 and 1",
        lambda: ulysses.slice_input_tensor(torch.arange(2), 0, group=dist.group.WORLD).tolist(),
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (tempfile.mktemp(),), nprocs=2)
