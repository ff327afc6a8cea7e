"""Element types of the tensors that user code creates while it makes a module parallel, or the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import get_ident

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from adjointlab.core.arrays import element_type_in

__all__ = ["convert", "made_in"]


@contextmanager
def made_in(dtype: torch.dtype) -> Iterator[None]:
    """Context in which parameters that this thread makes are converted to an element type as soon as a module registers them.

    Later is too late: DistributedDataParallel, and hooks on gradient accumulators, lose a parameter whose element type changes, and
    `fully_shard` keeps its part in the old type.
    """
    rank = get_ident()  # simulated ranks are threads, and torch calls the hook in all threads

    def convert_new(module: nn.Module, name: str, held: nn.Parameter) -> None:
        if get_ident() == rank and not is_lazy(held):
            convert([held], dtype)

    handle = register_module_parameter_registration_hook(convert_new)
    try:
        yield
    finally:
        handle.remove()


def convert(tensors: Iterable[torch.Tensor], dtype: torch.dtype) -> None:
    """Convert tensors in place to an element type; complex ones to the complex type of its precision."""
    for held in tensors:
        if (wanted := element_type_in(dtype, held.dtype)) != held.dtype:
            held.data = held.data.to(wanted)
