"""Right operators with one of their directions replaced: what planted bugs of layers are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import adjointlab as al
from adjointlab.engine.subject import Subject
from adjointlab.layers.losses import CrossEntropyLoss
from adjointlab.primitives.broadcast import Broadcast


class Altered(al.LinearOperator):
    """An operator with another function in the place of one of its directions, or of both."""

    def __init__(
        self,
        operator: al.LinearOperator,
        *,
        forward: Callable[[Any], Any] | None = None,
        adjoint: Callable[[Any], Any] | None = None,
    ) -> None:
        self.comm, self.domain, self.codomain = operator.comm, operator.domain, operator.codomain
        self._forward, self._adjoint = forward or operator.forward, adjoint or operator.adjoint

    def forward(self, *x: Any) -> Any:
        return self._forward(*x)

    def adjoint(self, *y: Any) -> Any:
        return self._adjoint(*y)


def not_reduced(broadcast: Broadcast) -> Altered:
    """A broadcast whose adjoint keeps what the root itself has, without the sum over the other workers."""
    layout, rank = broadcast.domain.tensors[0].layout, broadcast.comm.Get_rank()

    def own(y: torch.Tensor) -> torch.Tensor:
        return y.clone() if layout.partition.is_active(rank) else y.new_zeros(layout.local_shape(rank))

    return Altered(broadcast, adjoint=own)


def averaged(broadcast: Broadcast) -> Altered:
    """A broadcast whose adjoint takes the mean, as data-parallel training does."""
    source, target = (space.tensors[0].layout.partition for space in (broadcast.domain, broadcast.codomain))
    copies = target.size // source.size
    return Altered(broadcast, adjoint=lambda y: broadcast.adjoint(y) / copies)


def layers_of(right: Subject, name: str) -> Any:
    """Decorator of another strategy for the layers of `right` and their twins."""
    build: Any = right.build
    reference: Any = right.reference
    return al.subject(layer=build.args[0], sequential=reference.args[0], twice_differentiable=True, name=name)


@contextmanager
def counting_own_classes(loss: CrossEntropyLoss) -> Iterator[None]:
    """Context in which a loss takes the classes of its worker for all that there are."""
    whole, (start, stop) = loss.classes, loss.class_window
    loss.classes = max(1, stop - start)
    yield
    loss.classes = whole
