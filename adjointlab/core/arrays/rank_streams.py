"""The context of a rank whose arrays lie on a device: a separate stream, autograd in the rank's thread, and full precision."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

from adjointlab.core.arrays.devices import current_device
from adjointlab.core.arrays.full_precision import full_precision
from adjointlab.core.arrays.libraries import module

__all__ = ["rank_context"]


@contextmanager
def rank_context(memory: str, rank: int) -> Iterator[None]:
    """Context for a rank's part of a case whose arrays lie in `memory`; does nothing for host memory.

    The rank gets a separate current stream, which does not wait for the default stream: programs that use streams have such streams,
    and simulated ranks that shared one would hide a missing wait. torch would run the backward pass of device tensors in a thread of
    the device, where a simulated rank cannot communicate, and two ranks of one device would wait for each other; so it runs in the
    rank's thread. If the part fails, the device memory that its calls held is freed.
    """
    if memory not in ("cupy", "torch-cuda"):
        yield
        return
    with ExitStack() as surroundings:
        if memory == "cupy":
            module("cupy")
            surroundings.enter_context(_cupy_stream(rank, current_device("cupy")))
        else:
            torch: Any = module("torch")
            surroundings.enter_context(torch.cuda.stream(_torch_stream(rank, current_device("torch"))))
            surroundings.enter_context(torch.autograd.set_multithreading_enabled(False))
            surroundings.enter_context(full_precision())
        try:
            yield
        except BaseException as error:  # also in ranks that are cancelled because another one has failed
            _give_back(error)
            raise


def _give_back(error: BaseException) -> None:
    """Free the arrays that the calls of a failed case held, and the freed memory that the libraries cache."""
    # A traceback refers to every frame, and so to its arrays; a report needs only the lines.
    for each in _chain(error):
        traceback.clear_frames(each.__traceback__)
    gc.collect()
    if "cupy" in sys.modules:
        sys.modules["cupy"].get_default_memory_pool().free_all_blocks()
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_available():
        sys.modules["torch"].cuda.empty_cache()


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its causes and its contexts."""
    chain: list[BaseException] = [error]
    for each in chain:
        yield each
        further = (each.__cause__, each.__context__)
        chain += [other for other in further if other is not None and other not in chain]


# One for each rank of the process and each device, reused by all cases: a device has few streams.
@cache
def _cupy_stream(rank: int, device: int) -> Any:
    return module("cupy").cuda.Stream(non_blocking=True)  # type: ignore[attr-defined]


@cache
def _torch_stream(rank: int, device: int) -> Any:
    return module("torch").cuda.Stream()  # type: ignore[attr-defined]
