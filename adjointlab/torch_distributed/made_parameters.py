"""Element types of the parameters that user code creates or converts while it makes a module parallel, or the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from adjointlab.core.layer import element_type_noted
from adjointlab.torch_distributed.converted_modules import convert, converted_to
from adjointlab.torch_distributed.module_hooks import hooked

__all__ = ["made_in"]


@contextmanager
def made_in(dtype: torch.dtype) -> Iterator[None]:
    """Context in which parameters that this thread makes get an element type as soon as a module registers them, and modules that it converts too.

    Later is too late: DistributedDataParallel, and hooks on gradient accumulators, lose a parameter whose element type changes, and
    `fully_shard` keeps its part in the old type.
    """

    def convert_new(module: nn.Module, name: str, held: nn.Parameter) -> None:
        if not is_lazy(held):
            convert([held], dtype)

    with (
        hooked(register_module_parameter_registration_hook, convert_new),
        converted_to(dtype),
        element_type_noted(),
    ):
        yield
