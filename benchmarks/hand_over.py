"""The effect of load on the hand-over between simulated ranks, which are threads that run one at a time.

    python benchmarks/hand_over.py [LOAD ...]        so many other processes that compute

Beside it stands what the same load does to a thread that computes and hands nothing over: what it loses is its share of the cores.
"""

from __future__ import annotations

import _thread
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from contextlib import contextmanager

from timing import interleaved, least, print_table

HAND_OVERS = 3000
STEPS = 200_000
LOADS = least((0, 4, 16))


def hand_overs() -> None:
    """Two threads that wake each other in turn; each sleeps while the other runs."""
    ours, theirs = _thread.allocate_lock(), _thread.allocate_lock()
    ours.acquire()
    theirs.acquire()

    def answer() -> None:
        for _ in range(HAND_OVERS // 2):
            theirs.acquire()
            ours.release()

    thread = threading.Thread(target=answer)
    thread.start()
    for _ in range(HAND_OVERS // 2):
        theirs.release()
        ours.acquire()
    thread.join()


def computation() -> None:
    total = 0
    for number in range(STEPS):
        total += number


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep the CPU busy with this many `processes`."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    time.sleep(0.5 if busy else 0)
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def main(loads: tuple[int, ...]) -> None:
    taken: list[dict[str, float]] = []
    for processes in loads:
        with load(processes):
            taken.append(interleaved({"hand-overs": hand_overs, "computation": computation}, 1, rounds=5))
    print_table(
        "hand-overs between threads under load",
        ("busy processes", "hand-over µs", "hand-over / unloaded", "computation / unloaded"),
        [
            (
                str(processes),
                f"{found['hand-overs'] / HAND_OVERS * 1e6:.1f}",
                *(f"{found[name] / taken[0][name]:.1f}" for name in ("hand-overs", "computation")),
            )
            for processes, found in zip(loads, taken, strict=True)
        ],
    )


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("loads", nargs="*", type=int, metavar="LOAD")
    main(tuple(parser.parse_args().loads) or LOADS)
