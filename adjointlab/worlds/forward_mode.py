"""torch's forward mode, and a test for functions that define their own `jvp`."""

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
    """Context with torch's forward mode enabled; no effect without torch."""
    if find_spec("torch") is None:
        yield
        return
    import torch
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        with warnings.catch_warnings():
            # On the first dual tensor, torch compiles its decompositions, and warns about its own use of torch.jit.
            warnings.simplefilter("ignore")
            forward_ad.make_dual(torch.zeros(0), torch.zeros(0))  # type: ignore[no-untyped-call]
        yield


def has_own_forward_mode(outputs: Sequence[torch.Tensor]) -> bool:
    """Return True if the graph of some output has a ``torch.autograd.Function`` that defines `jvp`."""
    import torch

    # Private, but used by torch itself: the Function class of a node defined in Python.
    classes = (getattr(node, "_forward_cls", torch.autograd.Function) for node in graph_nodes(outputs))
    return any(function.jvp is not torch.autograd.Function.jvp for function in classes)
