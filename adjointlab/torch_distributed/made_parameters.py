"""Element types of the parameters that users' code makes or converts while it makes a module parallel, or the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from adjointlab.core.layer import element_type_noted
from adjointlab.torch_distributed.converted_modules import convert, converted_to

__all__ = ["made_in"]


@contextmanager
def made_in(dtype: torch.dtype) -> Iterator[None]:
    """Convert to an element type, as soon as a module has them, the parameters that this thread makes, and modules that it converts.

    Later is too late: DistributedDataParallel, and hooks on gradient accumulators, lose a parameter whose element type changes, and
    `fully_shard` keeps its part in the old type.
    """
    rank = get_ident()  # simulated ranks are threads, and torch calls the hook in all threads

    def convert_new(module: nn.Module, name: str, held: nn.Parameter) -> None:
        if get_ident() == rank and not is_lazy(held):
            convert([held], dtype)

    handle = register_module_parameter_registration_hook(convert_new)
    try:
        with converted_to(dtype), element_type_noted():
            yield
    finally:
        handle.remove()
