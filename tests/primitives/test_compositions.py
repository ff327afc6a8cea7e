"""Chains of primitives whose spaces fit: (A B)* = B* A*, and the program of a chain is the programs in a row."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.checks.program_matrix import program_matrix
from adjointlab.core import strategies
from adjointlab.core.direct_sum import DirectSumOperator
from adjointlab.core.layout import Layout
from adjointlab.core.notation import explain
from adjointlab.core.operator import LinearOperator, ProductOperator
from adjointlab.core.partition import Partition
from adjointlab.engine.search_result import Budget
from adjointlab.primitives.all_gather import AllGather
from adjointlab.primitives.all_sum_reduce import AllSumReduce
from adjointlab.primitives.broadcast import Broadcast
from adjointlab.primitives.halo_exchange import HaloExchange
from adjointlab.primitives.reduce_scatter import ReduceScatter
from adjointlab.primitives.repartition import Repartition
from adjointlab.primitives.sum_reduce import SumReduce
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.world import RankContext
from tests.outsider import Outsider

Step = dict[str, Any]

PRIMITIVES: dict[str, Callable[..., LinearOperator]] = {
    entry.__name__: entry
    for entry in (AllGather, AllSumReduce, Broadcast, HaloExchange, ReduceScatter, Repartition, SumReduce)
}


def made(comm: Any, step: Step) -> LinearOperator:
    arguments = {key: value for key, value in step.items() if key not in ("primitive", "adjoint")}
    operator = PRIMITIVES[step["primitive"]](comm, **arguments)
    return operator.H if step["adjoint"] else operator


def chain(comm: Any, *, steps: tuple[Step, ...]) -> LinearOperator:
    """The product of the steps: the first of them applies first."""
    return reduce(lambda before, after: after @ before, (made(comm, step) for step in steps))


def fitting(draw: Any, ranks: int, layout: Layout) -> Step:
    """A primitive, or the adjoint of one, that starts from `layout`."""
    partition = layout.partition
    copies = [dim for dim, copied in enumerate(layout.copied) if copied]
    is_cut = all(layout.ends(dim) is not None for dim in range(layout.order))
    kinds = ["Broadcast", "all-sum"]
    if copies:
        kinds.append("SumReduce")
    if is_cut:
        kinds += ["HaloExchange", "back from windows"]
        if not any(side > 1 and layout.copied[dim] for dim, side in enumerate(partition.shape)):
            kinds.append("Repartition")
        kinds += ["AllGather"] if any(axis is not None for axis in layout.axes) else []
        whole = [dim for dim, axis in enumerate(layout.axes) if axis is None]
        unused = [dim for dim in range(partition.order) if dim not in layout.axes]
        kinds += ["ReduceScatter"] if whole and unused else []
    kind = draw(st.sampled_from(kinds))
    if kind == "all-sum":
        dims = tuple(draw(st.permutations(copies))[: draw(st.integers(0, len(copies)))])
        return {"primitive": "AllSumReduce", "adjoint": draw(st.booleans()), "layout": layout, "dims": dims}
    if kind == "Broadcast":
        room = ranks // partition.size
        shape = [side if side > 1 else draw(st.integers(1, max(1, room))) for side in partition.shape]
        if np.prod(shape) > ranks:
            shape = list(partition.shape)
        target = Partition(shape, draw(strategies.rank_orders(ranks, int(np.prod(shape)))))
        return {"primitive": kind, "adjoint": False, "layout": layout, "partition": target}
    if kind == "SumReduce":
        summed = [dim for dim in copies if draw(st.booleans())]
        shape = [1 if dim in summed else side for dim, side in enumerate(partition.shape)]
        target = Partition(shape, draw(strategies.rank_orders(ranks, int(np.prod(shape)))))
        return {"primitive": kind, "adjoint": False, "layout": layout, "partition": target}
    if kind == "Repartition":
        target = draw(strategies.layouts(ranks, layout.order, whole=False, shape=layout.shape))
        return {"primitive": kind, "adjoint": False, "layout": layout, "target": target}
    if kind in ("HaloExchange", "back from windows"):
        if kind == "back from windows":  # the windows are those of a cut: then H* goes to another cut
            ends = [
                draw(strategies.cuts(side, len(windows)))
                for side, windows in zip(layout.shape, layout.windows, strict=True)
            ]
            bulk = Layout.cut(layout.shape, partition, ends, layout.axes)
            return {"primitive": "HaloExchange", "adjoint": True, "layout": bulk, "windows": layout}
        windows = [
            [(start - draw(st.integers(0, 2)), stop + draw(st.integers(0, 2))) for start, stop in along]
            for along in layout.windows
        ]
        wider = Layout(layout.shape, partition, windows, layout.axes)
        return {"primitive": "HaloExchange", "adjoint": False, "layout": layout, "windows": wider}
    if kind == "AllGather":
        dim = draw(st.sampled_from([dim for dim, axis in enumerate(layout.axes) if axis is not None]))
        return {"primitive": kind, "adjoint": False, "layout": layout, "dim": dim}
    dim, along = draw(st.sampled_from(whole)), draw(st.sampled_from(unused))
    cut = draw(strategies.cuts(layout.shape[dim], partition.shape[along]))
    return {"primitive": kind, "adjoint": False, "layout": layout, "dim": dim, "along": along, "cut": cut}


def chains(draw: Any, ranks: int) -> dict[str, Any]:
    """Two to four primitives, each of which starts where the one before ends."""
    layout = draw(strategies.layouts(ranks, draw(st.integers(1, 2)), whole=False))
    steps: list[Step] = []
    for _ in range(draw(st.integers(2, 4))):
        step = fitting(draw, ranks, layout)
        steps.append(step)
        layout = made(Outsider(ranks), step).codomain.tensors[0].layout
    return {"steps": tuple(steps)}


subject = al.subject(chain, name="chain")(chains)


def test_chains_of_primitives_are_coherent(alarms: Callable[..., dict[str, str]]) -> None:
    world = SimulatedWorld(4)
    assert alarms(world, subject, Budget(40, seed=5)) == {}
    world.close()


def beside(comm: Any, *, steps: tuple[Step, ...]) -> LinearOperator:
    """The direct sum of the steps."""
    return DirectSumOperator(*(made(comm, step) for step in steps))


def unrelated(draw: Any, ranks: int) -> dict[str, Any]:
    """One to three primitives, of tensors that have nothing to do with each other."""
    layouts = [
        draw(strategies.layouts(ranks, draw(st.integers(1, 2)), whole=False))
        for _ in range(draw(st.integers(1, 3)))
    ]
    return {"steps": tuple(fitting(draw, ranks, layout) for layout in layouts)}


def test_direct_sums_of_primitives_are_coherent(alarms: Callable[..., dict[str, str]]) -> None:
    world = SimulatedWorld(4)
    assert alarms(world, al.subject(beside, name="direct sum")(unrelated), Budget(40, seed=5)) == {}
    world.close()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_adjoint_of_a_product_is_the_product_of_the_adjoints_reversed(data: st.DataObject) -> None:
    ranks = data.draw(st.integers(1, 4))
    steps = data.draw(subject.parameters(ranks))["steps"]

    def body(context: RankContext, _: object) -> tuple[Any, ...]:
        product = chain(context.comm, steps=steps)
        assert isinstance(product, ProductOperator)
        reversed_adjoints = reduce(lambda a, b: a @ b, (factor.H for factor in reversed(product.factors)))
        given = product.specification()
        assert given is not None
        assert not isinstance(given, tuple)
        return (
            product.matrix(),
            product.H.matrix(),
            reversed_adjoints.matrix(),
            program_matrix(given, product.domain, product.codomain) if context.rank == 0 else None,
            explain(product) if context.rank == 0 else "",
        )

    world = SimulatedWorld(ranks)
    run = world.run(body, None, ranks)
    world.close()
    assert run.completed, run.outcomes
    forward, adjoint, composed, specified, text = run.values[0]
    np.testing.assert_array_equal(adjoint, forward.T)
    np.testing.assert_array_equal(adjoint, composed)
    np.testing.assert_array_equal(forward, specified)
    assert "Factors, in the order in which they apply" in text


def test_a_sum_takes_whatever_of_no_volume_its_summands_return_on_inactive_ranks(spmd: Any) -> None:
    """Broadcast keeps the batch on the worker that it leaves, (3, 0), and Repartition does not, (0, 0)."""
    source = Layout((3, 4), Partition((1, 1), [0]))

    def body(comm: Any) -> Any:
        broadcast = Broadcast(comm, source, Partition((2, 1), [1, 2]))
        target = broadcast.codomain.tensors[0].layout
        repartition = Repartition(comm, source, target)
        idle = HaloExchange(comm, source, source)  # which returns what it is handed
        x = np.ones((3, 4)) if comm.Get_rank() == 0 else np.zeros((2, 0))
        total, twice = (broadcast + repartition).forward(x), (repartition.H @ repartition + idle).forward(x)
        return total.size, total.sum(), twice.sum()

    assert spmd(3, body) == ((0, 0, 36), (12, 24, 0), (12, 24, 0))
