"""Times torch.distributed code on 4 simulated ranks beside torch's own threads (MultiThreadedPG).

    python benchmarks/torch_distributed.py

Each contestant starts 4 ranks, opens the default group, makes a mesh and does the work so many times: a DTensor of 5 rows that goes from
shards to copies and its gradient back, or a tensor-parallel block of two linear layers, forward and backward. Once is what a case costs;
the difference between 20 times and once, divided by 19, is what the work costs in a group that stands. The last table has checks per
second: the search draws cases of `examples/torch_distributed.py`, runs and judges them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from timing import interleaved, is_smoke, least, print_table, words
from torch import nn
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.multi_threaded_pg import (
    ProcessLocalGroup,
    _install_threaded_pg,
    _uninstall_threaded_pg,
)

import adjointlab as al
from adjointlab.engine.discovery import find_subject
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.worlds.world import RankContext

RANKS, TIMES, ROUNDS, CASES = 4, 2 if is_smoke() else 20, 7, least(60)
EXAMPLES = Path(__file__).parents[1] / "examples"
Work = Callable[[int], None]


def redistribute(times: int) -> None:
    mesh = init_device_mesh("cpu", (RANKS,))
    tensor = torch.arange(10.0, dtype=torch.float64).reshape(5, 2)
    for _ in range(times):
        x = distribute_tensor(tensor, mesh, [Shard(0)], src_data_rank=None).requires_grad_()
        x.redistribute(placements=[Replicate()]).to_local().sum().backward()


def tensor_parallel(times: int) -> None:
    mesh = init_device_mesh("cpu", (RANKS,))
    block = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
    block = parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    inputs = torch.ones(16, 64)
    for _ in range(times):
        block(inputs).square().sum().backward()


def simulated(world: al.SimulatedWorld, work: Work, times: int) -> Callable[[], None]:
    def body(context: RankContext, payload: None) -> None:
        with al.process_group(context.comm):
            work(times)

    def call() -> None:
        assert world.run(body, None, RANKS).completed

    return call


def threaded(work: Work, times: int) -> Callable[[], None]:
    """Like torch's `spawn_threads_and_init_comms`, which imports packages that only torch's own tests need."""

    def rank_main(rank: int, store: dist.Store, ended: list[int]) -> None:
        dist.init_process_group("threaded", rank=rank, world_size=RANKS, store=store)
        work(times)
        dist.destroy_process_group()
        ended.append(rank)

    def call() -> None:
        ended: list[int] = []
        torch._C._distributed_c10d._set_thread_isolation_mode(True)
        _install_threaded_pg()
        store = dist.HashStore()
        threads = [threading.Thread(target=rank_main, args=(rank, store, ended)) for rank in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        _uninstall_threaded_pg()
        ProcessLocalGroup.reset()
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
        if len(ended) < RANKS:  # an exception ends its thread alone
            raise SystemExit("a rank of torch's has failed, so that its time means nothing")

    return call


def main() -> None:
    logging.getLogger("torch").setLevel(logging.ERROR)
    world = al.SimulatedWorld(RANKS)
    rows = []
    for work in (redistribute, tensor_parallel):
        contestants = {
            f"{name} {times}": make(times)
            for times in (1, TIMES)
            for name, make in (
                ("lab", lambda times, work=work: simulated(world, work, times)),
                ("torch", lambda times, work=work: threaded(work, times)),
            )
        }
        for call in contestants.values():
            call()
        taken = interleaved(contestants, 1, ROUNDS, clock=time.process_time)
        standing = {
            name: (taken[f"{name} {TIMES}"] - taken[f"{name} 1"]) / (TIMES - 1) for name in ("lab", "torch")
        }
        rows += [
            _row(f"{work.__name__}, a case", taken["lab 1"], taken["torch 1"]),
            _row(f"{work.__name__}, in a group that stands", standing["lab"], standing["torch"]),
        ]
    print_table(f"{RANKS} ranks in one process", ("work", "lab ms", "torch ms", "lab / torch"), rows)
    checks = []
    for name in ("gathers", "redistributions"):
        subject = find_subject(f"{EXAMPLES}/torch_distributed.py:{name}")
        investigate(world, subject, "purity", Budget(least(5), seed=1))
        start = time.process_time()
        investigate(world, subject, "purity", Budget(CASES, ranks=RANKS, seed=1))
        checks.append((name, f"{CASES / (time.process_time() - start):.0f}"))
    print_table("checks of purity, up to 4 ranks", ("subject", "checks per second"), checks)
    world.close()


def _row(name: str, lab: float, torchs: float) -> tuple[str, ...]:
    return name, f"{1e3 * lab:.1f}", f"{1e3 * torchs:.1f}", f"{lab / torchs:.2f}"


if __name__ == "__main__":
    words(__doc__)
    main()
