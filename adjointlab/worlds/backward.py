"""Backward passes of torch in the report of a hang: which ranks were in one, and which tensors required a gradient on which ranks.

Torch prunes the graph of each rank separately: a rank on which nothing requires a gradient has no backward pass, and sends none of the
messages that the others wait for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from adjointlab.quantities import ranks_listed

__all__ = ["BackwardPass", "backward_lines", "is_in_backward"]


class BackwardPass(NamedTuple):
    """The latest backward pass of a rank.

    `requires_grad` maps the name of each tensor that may have a gradient to whether it requires one on this rank. If no output requires a
    gradient, there is no graph, and the rank had nothing to do. `again` means that the graph is traversed a second time.
    `without` names the tensors that require a gradient but got none, in a pass that has ended.
    """

    requires_grad: Mapping[str, bool]
    has_graph: bool
    again: bool = False
    without: tuple[str, ...] = ()


def is_in_backward() -> bool:
    """Return True if torch is executing a backward pass on this thread."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return False  # first, because every call of a communicator comes here
    # Private (since torch 2.1), but used by torch's own checkpoints and module trackers; without it, reports just lack these lines.
    node = getattr(getattr(torch, "_C", None), "_current_autograd_node", None)
    return node is not None and node() is not None


def backward_lines(in_backward: Sequence[bool], latest: Sequence[BackwardPass | None]) -> Iterator[str]:
    """Lines for the report of a hang in which some ranks were in a backward pass; none otherwise. `latest` has the passes by rank."""
    if not any(in_backward):
        return
    yield f"{_ranks(in_backward)} {'was' if sum(in_backward) == 1 or all(in_backward) else 'were'} in backward"
    for rank, each in enumerate(latest):
        if each is not None and not each.has_graph:
            yield f"rank {rank} had no backward pass, as nothing that it returned requires a gradient"
    repeated = [each is not None and each.again for each in latest]
    if any(repeated):
        yield f"{_ranks(repeated)} went through one graph for the second time, as with retain_graph=True"
    names = dict.fromkeys(name for each in latest if each is not None for name in each.requires_grad)
    by_ranks: dict[tuple[bool, ...], list[str]] = {}
    for name in names:
        wanted = tuple(each is not None and each.requires_grad.get(name, False) for each in latest)
        by_ranks.setdefault(wanted, []).append(name)
    for wanted, alike in by_ranks.items():
        verb = "requires" if len(alike) == 1 else "require"
        yield f"{', '.join(alike)} {verb} a gradient on {_ranks(wanted)}"
    yield from _without_gradients(latest)
    begun = [each.requires_grad for each in latest if each is not None]
    if any(len({each[name] for each in begun if name in each}) > 1 for name in names):
        yield (
            "if its messages may depend on what requires a gradient, and this is the same on all ranks wherever it is used, declare "
            "uniform_requires_grad = True"
        )


def _without_gradients(latest: Sequence[BackwardPass | None]) -> Iterator[str]:
    """Lines that name tensors without a gradient on some ranks, where the functions between them and the loss were not called."""
    by_names: dict[tuple[str, ...], list[bool]] = {}
    for rank, each in enumerate(latest):
        if each is not None and each.has_graph and each.without:
            by_names.setdefault(each.without, [False] * len(latest))[rank] = True
    for names, ranks in by_names.items():
        yield f"on {_ranks(ranks)} a backward pass has ended without a gradient of {', '.join(names)}, on which the loss did not depend there"


def _ranks(included: Sequence[bool]) -> str:
    """Text for the ranks whose flag is True: "every rank", "no rank", "rank 1" or "ranks 0, 2"."""
    ranks = [rank for rank, is_included in enumerate(included) if is_included]
    if len(ranks) == len(included):
        return "every rank"
    if not ranks:
        return "no rank"
    return ranks_listed(ranks)
