"""Tensors that are not contiguous: refused on simulated ranks and over MPI where gloo refuses them or is silently wrong, and right elsewhere.

Run on gloo, under ``torchrun --nproc-per-node 3 -m pytest``, the same file holds gloo to what is claimed of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist

import adjointlab as al
from adjointlab.checks.verdict import Status
from adjointlab.engine.run_case import judge
from adjointlab.torch_distributed.contiguity import NotContiguous
from adjointlab.worlds.run import Raised
from adjointlab.worlds.world import RankContext, World, WorldName
from tests.torch_distributed.programs import last, rank, size

Made = torch.Tensor | list[torch.Tensor]
Program = Callable[[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]], Made]

# Layouts: each gives the same elements in other memory.


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    return contiguous(tensor.t()).t()


def cut(tensor: torch.Tensor) -> torch.Tensor:
    """Columns of a wider tensor."""
    wide = torch.full((tensor.shape[0], tensor.shape[1] + 1), -7.0)
    wide[:, 1:] = tensor
    return wide[:, 1:]


def expanded(tensor: torch.Tensor) -> torch.Tensor:
    return contiguous(tensor[:1]).expand(tensor.shape)


def transposed_and_cut(tensor: torch.Tensor) -> torch.Tensor:
    return cut(contiguous(tensor.t())).t()


def transposed_on_the_first(tensor: torch.Tensor) -> torch.Tensor:
    return transposed(tensor) if rank() == 0 else contiguous(tensor)


LAYOUTS = {each.__name__: each for each in (transposed, cut, transposed_and_cut, expanded)}


# Programs: `given` lays out what is sent, `room` what is received


def values(rows: int, add: int = 0) -> torch.Tensor:
    """Rows that are alike, so that they can be expanded; they differ from rank to rank."""
    return torch.tensor([1.0, 2.0, 4.0]).repeat(rows, 1) * (1 + rank() + size() * add)


def parts_of(given: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    return [given(values(2, place)) for place in range(size())]


def empty(rows: int = 2) -> torch.Tensor:
    return torch.zeros(rows, 3)


def in_place(call: Callable[[torch.Tensor], object]) -> Program:
    def program(given: Callable[..., torch.Tensor], room: Callable[..., torch.Tensor]) -> Made:
        x = given(values(2)) if rank() == 0 else room(values(2))
        call(x)
        return x if rank() == last() else []

    return program


def all_to_all_single(given: Callable[..., torch.Tensor], room: Callable[..., torch.Tensor]) -> Made:
    own = room(empty(2 * size()))
    dist.all_to_all_single(own, given(values(2 * size())))
    return own


def reduce_scatter(given: Callable[..., torch.Tensor], room: Callable[..., torch.Tensor]) -> Made:
    own = room(empty())
    dist.reduce_scatter(own, parts_of(given))
    return own


def scatter(given: Callable[..., torch.Tensor], room: Callable[..., torch.Tensor]) -> Made:
    own = room(empty())
    dist.scatter(own, parts_of(given) if rank() == 0 else None, 0)
    return own


def messages(given: Callable[..., torch.Tensor], room: Callable[..., torch.Tensor]) -> Made:
    own = room(empty())
    # All ranks are refused at once, and none waits for a peer.
    sent, got = dist.isend(given(values(2)), (rank() + 1) % size()), dist.irecv(own, (rank() - 1) % size())
    assert sent is not None
    assert got is not None
    sent.wait()
    got.wait()
    return own


def reduce_scatter_tensor(given: Callable[..., torch.Tensor], room: Callable[..., torch.Tensor]) -> Made:
    own = room(empty())
    # The older name warns where there is a newer one.
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    call(own, given(values(2 * size())))
    return own


def all_gather(given: Callable[..., torch.Tensor], room: Callable[..., torch.Tensor]) -> Made:
    parts = [room(empty()) for _ in range(size())]
    dist.all_gather(parts, given(values(2)))
    return parts


def all_gather_into_tensor(given: Callable[..., torch.Tensor], room: Callable[..., torch.Tensor]) -> Made:
    own = room(empty(2 * size()))
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    call(own, given(values(2)))
    return own


def gather(given: Callable[..., torch.Tensor], room: Callable[..., torch.Tensor]) -> Made:
    parts = [room(empty()) for _ in range(size())] if rank() == 0 else None
    dist.gather(given(values(2)), parts, 0)
    return parts or []


def all_to_all(given: Callable[..., torch.Tensor], room: Callable[..., torch.Tensor]) -> Made:
    parts = [room(empty()) for _ in range(size())]
    dist.all_to_all(parts, parts_of(given))
    return parts


PROGRAMS: dict[str, Program] = {
    "all_to_all_single": all_to_all_single,
    "reduce_scatter": reduce_scatter,
    "scatter": scatter,
    "messages": messages,
    "reduce_scatter_tensor": reduce_scatter_tensor,
    "all_gather": all_gather,
    "all_gather_into_tensor": all_gather_into_tensor,
    "gather": gather,
    "all_to_all": all_to_all,
    "broadcast": in_place(partial(dist.broadcast, src=0)),
    "reduce": in_place(lambda x: dist.reduce(x, last())),
    "all_reduce": in_place(dist.all_reduce),
}

ELEMENTWISE = ("broadcast", "reduce", "all_reduce")
REFUSED = [
    *((name, "transposed", "contiguous") for name in ("all_to_all_single", "reduce_scatter", "scatter", "messages")),
    *((name, "contiguous", "transposed") for name in ("all_to_all_single", "reduce_scatter", "scatter", "messages")),
    *((name, "contiguous", "cut") for name in ("all_to_all_single", "reduce_scatter", "scatter", "messages")),
    *((name, "cut", "contiguous") for name in ("all_to_all_single", "scatter", "messages")),
    ("reduce_scatter", "transposed_and_cut", "contiguous"),
    *(("reduce_scatter", given, room) for given, room in (("transposed", "cut"), ("transposed", "transposed_and_cut"), ("cut", "transposed"))),
    *(("scatter", given, room) for given, room in (("cut", "cut"), ("transposed_and_cut", "transposed"), ("transposed", "cut"))),
    *((name, "cut", "cut") for name in ELEMENTWISE),
]  # fmt: skip
TAKEN = [
    ("reduce_scatter", "cut", "contiguous"),
    ("reduce_scatter", "transposed", "transposed"),
    ("reduce_scatter", "transposed_and_cut", "transposed"),
    ("scatter", "transposed", "transposed"),
    *((name, given, "contiguous") for name in list(PROGRAMS)[4:9] for given in LAYOUTS),
    *((name, "contiguous", room) for name in list(PROGRAMS)[4:9] for room in ("transposed", "cut")),
    *((name, "transposed", "transposed") for name in ELEMENTWISE),
]


class Wrong(Exception):
    """Raised for a silently wrong result."""


def body(context: RankContext, payload: tuple[str, str, str]) -> None:
    name, given, room = payload
    layouts = LAYOUTS | {each.__name__: each for each in (contiguous, transposed_on_the_first)}
    with al.process_group(context.comm):
        right, found = (
            PROGRAMS[name](*pair) for pair in ((contiguous, contiguous), (layouts[given], layouts[room]))
        )
        wrong = [not torch.equal(*pair) for pair in zip(listed(right), listed(found), strict=True)]
        # The ranks agree, because some have no result.
        anywhere = torch.tensor(float(any(wrong)))
        dist.all_reduce(anywhere)
        if anywhere:
            raise Wrong


def listed(made: Made) -> list[torch.Tensor]:
    return [made] if isinstance(made, torch.Tensor) else made


@pytest.mark.parametrize(("name", "given", "room"), REFUSED)
def test_a_layout_that_real_backends_cannot_use_is_refused(
    adjointlab_world: World, name: str, given: str, room: str
) -> None:
    run = adjointlab_world.run(body, (name, given, room), min(3, adjointlab_world.ranks))
    raised = [outcome for outcome in run.outcomes if isinstance(outcome, Raised)]
    if adjointlab_world.name is WorldName.TORCH:
        assert raised  # refused, or silently wrong
        return
    first = raised[0]
    assert first.is_a(NotContiguous)
    assert f"{__file__}:" in first.message
    assert all(word in first.message for word in ("strides", ".contiguous()"))
    # A verdict on a run that has failed asks nothing of its case.
    verdict = judge(None, run)  # type: ignore[arg-type]
    assert verdict.status is Status.INCOHERENT
    assert verdict.headline == "a process group gets a non-contiguous tensor"


@pytest.mark.parametrize(("name", "given", "room"), TAKEN)
def test_a_layout_that_gloo_takes_has_the_right_result(
    adjointlab_world: World, name: str, given: str, room: str
) -> None:
    run = adjointlab_world.run(body, (name, given, room), min(3, adjointlab_world.ranks))
    assert run.completed, run.outcomes


@pytest.mark.parametrize("name", ["reduce_scatter", "scatter", *ELEMENTWISE])
def test_a_layout_that_differs_between_ranks_is_found(adjointlab_world: World, name: str) -> None:
    layout = transposed_on_the_first.__name__
    run = adjointlab_world.run(body, (name, layout, layout), min(3, adjointlab_world.ranks))
    assert not run.completed
    if adjointlab_world.name is not WorldName.TORCH:  # there the numbers are wrong, without an error
        assert "strides=(1, 2)" in "\n".join(finding.text for finding in run.findings)
