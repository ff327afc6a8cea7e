"""Functions of DTensors as layers: the same function on plain tensors is the sequential twin.

Each input has placements of its own, Partial among them, on a mesh of one or two dimensions; shapes are small, uneven and sometimes
empty. The output is what it claims to be if it has the shape of the twin's, if each rank holds the part that the placements give
it, and if it is redistributed to the drawn target and then is the twin's. Its gradients come back in the placements of the inputs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import reject
from hypothesis import strategies as st
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor, init_device_mesh
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

import adjointlab as al

Function = Callable[..., Any]

OPERATIONS: dict[str, Function] = {}
"""The functions by name, as cases refer to them."""

CALLS: Counter[tuple[str, str]] = Counter()
"""Number of calls by function and outcome: "ran", "refused", or "refused in backward".

DTensor refuses what it says that it does not know how to do. Such a call runs on replicated inputs instead.
"""

_REFUSALS = (
    "sharding strategy",
    "sharding propagation failed",
    "not supported",
    "not implemented",
    "unevenly sharded",
    "sharded dimension",
    "redistribut",
    "tensor parallel convolution",
    "cannot be evenly sharded",
    "does not support",
    "got mixed torch.tensor and dtensor",
)


class Distributed(nn.Module):
    """A function of DTensors, from local tensors to local tensors."""

    forward_mode = False  # DTensor has rules for few of torch's

    def __init__(self, operation: str, shapes: Any, mesh: Any, placements: Any, target: Any, options: Any):
        super().__init__()
        self.operation, self.shapes, self.placements = operation, shapes, placements
        self.target, self.options = target, options
        self.outcomes: dict[tuple[bool, ...], str] = {}  # by what requires a gradient
        self.mesh = init_device_mesh("cpu", tuple(mesh))

    def forward(self, *local: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs = [
            DTensor.from_local(
                x.contiguous(), self.mesh, placed, shape=torch.Size(shape), stride=strides(shape)
            )
            for x, placed, shape in zip(local, self.placements, self.shapes, strict=True)
        ]
        return tuple(
            self.redistributed(y, target) for y, target in zip(self.outputs(inputs), self.target, strict=True)
        )

    def outputs(self, inputs: list[DTensor]) -> tuple[Any, ...]:
        differentiated = tuple(x.requires_grad for x in inputs)
        if differentiated not in self.outcomes:
            self.outcomes[differentiated] = self.rehearsed(inputs)
            CALLS[self.operation, self.outcomes[differentiated]] += 1
        outcome = self.outcomes[differentiated]
        if outcome != "ran":
            everywhere = [Replicate()] * self.mesh.ndim
            inputs = [x.redistribute(placements=everywhere) for x in inputs]
        return self.applied(inputs)

    def applied(self, inputs: list[DTensor]) -> tuple[Any, ...]:
        return as_tuple(OPERATIONS[self.operation](*inputs, **self.options))

    def rehearsed(self, inputs: list[DTensor]) -> str:
        """Outcome of a call with its backward pass, as :data:`CALLS` names it."""
        copies = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
        outputs: list[Any] = []
        try:
            outputs += [
                y.redistribute(placements=[Replicate()] * self.mesh.ndim) for y in self.applied(copies)
            ]
            if torch.is_grad_enabled() and any(y.requires_grad for y in outputs):
                sum(y.sum() for y in outputs).backward()
        except (NotImplementedError, RuntimeError, ValueError) as error:
            if any(words in str(error).lower() for words in _REFUSALS):
                return "refused in backward" if outputs else "refused"
        return "ran"

    def redistributed(self, y: Any, target: Any) -> torch.Tensor:
        assert isinstance(y, DTensor), f"{self.operation} returned a {type(y).__name__}"
        claimed, _ = compute_local_shape_and_global_offset(y.shape, self.mesh, y.placements)
        held = tuple(y.to_local().shape)
        assert held == tuple(claimed), f"{y.placements} of {tuple(y.shape)} claims {claimed}, holds {held}"
        return y.redistribute(placements=target).to_local()


class Sequential(nn.Module):
    """The same function of plain tensors."""

    def __init__(self, operation: str, options: Any, **_: Any):
        super().__init__()
        self.operation, self.options = operation, options

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return as_tuple(OPERATIONS[self.operation](*inputs, **self.options))


def as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def strides(shape: Any) -> tuple[int, ...]:
    return torch.empty(tuple(shape), device="meta").stride()


def constant(like: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """`value` as `like` is: replicated, or plain."""
    if not isinstance(like, DTensor):
        return value
    mesh = like.device_mesh
    return distribute_tensor(value, mesh, [Replicate()] * mesh.ndim, src_data_rank=None)


def quarters(*inputs: torch.Tensor) -> list[torch.Tensor]:
    """Moderate values, for exponentials and quotients."""
    return [x / 4 for x in inputs]


def dtensor_function(
    draw_shapes: Callable[[Any], Any],
    name: str = "",
    known: Callable[..., bool] | None = None,
    replicated: tuple[int, ...] = (),
) -> Callable[[Function], Any]:
    """Make a function of tensors a subject.

    ``draw_shapes(draw)`` draws the shapes of its inputs and, if it has any, a dictionary of its options. Cases that are `known` to
    fail are not drawn: ``known(shapes, mesh, placements, options)``; they have subjects of their own (:func:`finding`). The inputs at the positions `replicated` are
    on every rank.
    """

    def declare(function: Function) -> Any:
        operation = name or function.__name__
        OPERATIONS[operation] = function

        def cases(draw: Any, ranks: int) -> dict[str, Any]:
            shapes, options = draw_shapes(draw)
            mesh = draw(al.strategies.meshes(ranks))
            placements = tuple(
                (Replicate(),) * len(mesh)
                if position in replicated
                else draw(al.strategies.placements(mesh, len(shape), partial=True))
                for position, shape in enumerate(shapes)
            )
            if known is not None and known(shapes, mesh, placements, options):
                reject()
            return case_of(operation, shapes, mesh, placements, options, draw)

        return subject_of(f"DTensor.{operation}")(cases)

    return declare


def subject_of(name: str, **options: Any) -> Any:
    return al.subject.layer(
        Distributed, sequential=Sequential, prepare=quarters, process_group=True, name=name, **options
    )


def finding(name: str, operation: str, shapes: Any, mesh: Any, placements: Any, **options: Any) -> Any:
    """The smallest case of a failure, as a subject that has no other."""

    def case(draw: Any, ranks: int) -> dict[str, Any]:
        return case_of(operation, shapes, mesh, placements, options, None)

    return subject_of(name, ranks=(math.prod(mesh),))(case)


def has_uneven(shapes: Any, mesh: Any, placements: Any) -> bool:
    """True if the shards of some input are not all of one size."""
    return any(
        len(set(_sizes(shape, mesh, placed))) > 1 for shape, placed in zip(shapes, placements, strict=True)
    )


def is_apart(mesh: Any, placements: Any) -> bool:
    """True if some input is not whole on each of several ranks."""
    return any(
        not placement.is_replicate() and extent > 1
        for placed in placements
        for placement, extent in zip(placed, mesh, strict=True)
    )


def has_empty(shapes: Any, mesh: Any, placements: Any) -> bool:
    """True if some rank holds nothing of some input."""
    return any(0 in _sizes(shape, mesh, placed) for shape, placed in zip(shapes, placements, strict=True))


def _sizes(shape: Any, mesh: Any, placed: Any) -> list[int]:
    layout = al.Space.of_dtensor(mesh, placed, shape).tensors[0].layout
    return [layout.local_size(rank) for rank in range(math.prod(mesh))]


def case_of(
    operation: str, shapes: Any, mesh: Any, placements: Any, options: Any, draw: Any
) -> dict[str, Any]:
    ones = [torch.ones(tuple(shape), dtype=torch.float64) for shape in shapes]
    outputs = [tuple(y.shape) for y in as_tuple(OPERATIONS[operation](*ones, **options))]
    targets = tuple(
        draw(al.strategies.placements(mesh, len(shape)))
        if draw is not None and draw(st.booleans())
        else (Replicate(),) * len(mesh)
        for shape in outputs
    )
    return dict(
        operation=operation,
        shapes=tuple(tuple(shape) for shape in shapes),
        mesh=tuple(mesh),
        placements=placements,
        target=targets,
        options=options,
        domain=space(mesh, placements, shapes, "x"),
        codomain=space(mesh, targets, outputs, "y"),
        uniform_requires_grad=True,
    )


def space(mesh: Any, placements: Any, shapes: Any, name: str) -> al.Space:
    each = zip(placements, shapes, strict=True)
    return al.Space(
        *(
            al.Space.of_dtensor(mesh, placed, shape, name=f"{name}{number}").tensors[0]
            for number, (placed, shape) in enumerate(each)
        )
    )
