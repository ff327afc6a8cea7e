"""Redistribution of DTensors between every pair of placements, on meshes of one and two dimensions.

Shapes are uneven and sometimes empty. A source may be partial, as a sum that has not been carried out. `Partial("avg")` is left out:
its documented gradient placement, `Replicate`, is that of the mean, and the gradient by the local summands lacks the factor 1/N.

    adjointlab check examples/released/torch_redistribute.py
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from hypothesis import strategies as st
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, init_device_mesh

import adjointlab as al


def redistribute(local: torch.Tensor, mesh: Any, source: Any, target: Any, shape: Any) -> torch.Tensor:
    stride = torch.empty(shape, device="meta").stride()
    x = DTensor.from_local(
        local, init_device_mesh("cpu", mesh), source, shape=torch.Size(shape), stride=stride
    )
    y = x.redistribute(placements=target)
    assert y.shape == torch.Size(shape)
    assert y.placements == tuple(target)
    return y.to_local()


def whole(x: Any, **_: Any) -> Any:
    return x


def case(mesh: Any, source: Any, target: Any, shape: Any) -> dict[str, Any]:
    return dict(
        domain=al.Space.of_dtensor(mesh, source, shape),
        codomain=al.Space.of_dtensor(mesh, target, shape),
        mesh=tuple(mesh),
        source=tuple(source),
        target=tuple(target),
        shape=tuple(shape),
    )


def every_pair(ranks: int = 4, side: int = 3) -> Any:
    """Every pair of placements on every mesh of so many ranks, of matrices with sides up to `side`."""
    for count in range(1, ranks + 1):
        for mesh in {(count,), *((a, count // a) for a in range(1, count + 1) if count % a == 0)}:
            targets = [Shard(0), Shard(1), Replicate()]
            for source in product([*targets, Partial()], repeat=len(mesh)):
                for target in product(targets, repeat=len(mesh)):
                    for shape in ((side, side), (side + 2, 1), (1, side), (0, side)):
                        yield count, case(mesh, source, target, shape)


@al.subject.autograd(
    redistribute, reference=whole, process_group=True, name="DTensor.redistribute", every=every_pair
)
def redistributions(draw: Any, ranks: int) -> dict[str, Any]:
    mesh, ndim = draw(al.strategies.meshes(ranks)), draw(st.integers(1, 3))
    source = draw(al.strategies.placements(mesh, ndim, partial=True))
    return case(mesh, source, draw(al.strategies.placements(mesh, ndim)), draw(al.strategies.shapes(ndim)))
