"""torch's forward mode, and which functions have one of their own."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from adjointlab.core.autograd_graph import graph_nodes

if TYPE_CHECKING:
    import torch

__all__ = ["dual_level", "has_own_forward_mode"]


@contextmanager
def dual_level() -> Iterator[None]:
    """Open torch's forward mode; nothing without torch."""
    if find_spec("torch") is None:
        yield
        return
    import torch
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        with warnings.catch_warnings():
            # torch compiles its decompositions on the first dual tensor, and warns of its own use of torch.jit.
            warnings.simplefilter("ignore")
            forward_ad.make_dual(torch.zeros(0), torch.zeros(0))  # type: ignore[no-untyped-call]
        yield


def has_own_forward_mode(outputs: Sequence[torch.Tensor]) -> bool:
    """Return True if the graph of some output has a ``torch.autograd.Function`` that defines `jvp`."""
    import torch

    # Private, and what torch itself calls: the class that a node of Python belongs to.
    classes = (getattr(node, "_forward_cls", torch.autograd.Function) for node in graph_nodes(outputs))
    return any(function.jvp is not torch.autograd.Function.jvp for function in classes)
