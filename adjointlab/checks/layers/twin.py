"""A layer and its sequential twin on the same values: outputs, gradients, and what is left afterwards.

Every rank runs the layer on what it holds; rank 0 runs the twin on the whole tensors and cuts its results as the ranks
should hold them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from adjointlab.checks.compare import Local, Tolerance, first_difference
from adjointlab.checks.context import CheckContext
from adjointlab.checks.layers.passes import Names, Pass, run, values
from adjointlab.checks.placement import Placed, place, placed_as_it_is
from adjointlab.checks.verdict import Verdict, coherent, incoherent
from adjointlab.checks.windows import assembled, held
from adjointlab.core import arrays
from adjointlab.core.arrays import DTYPES
from adjointlab.core.layer import Layer, undeclared
from adjointlab.core.operator import NotInSpace
from adjointlab.core.space import Space
from adjointlab.core.values import Draw, local_values

__all__ = [
    "LARGEST",
    "Compared",
    "Seen",
    "check_outputs",
    "check_parameters",
    "check_whole_outputs",
    "cut_up",
    "draws",
    "first_wrong",
    "local_inputs",
    "local_tensors",
    "make_twin",
    "twin_passes",
    "whole_inputs",
    "whole_tensors",
]

LARGEST = 4
"""Integers up to this keep sums of products of some thousand terms exact in single precision."""

_PASSES = 2


@dataclass(frozen=True)
class Compared:
    """One kind of result: what it is called, the space it lies in, this rank's part, and from rank 0 all parts expected.

    `frozen` names the tensors that this rank has no gradient of, because it asked for none.
    """

    what: str
    space: Space
    actual: Local
    tolerance: Tolerance
    expected: tuple[Local, ...] | None = None
    frozen: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Seen:
    """All results of one pass on one rank; what of its arguments and former outputs the layer has changed, in words."""

    compared: tuple[Compared, ...]
    changed: tuple[tuple[str, str], ...] = ()
    accumulated: bool = False


@dataclass(frozen=True)
class _Course:
    """How a case's passes go, drawn from its seed.

    `together`: all of them go forward before the first goes backward, as an instance does that stands in a graph twice; they
    share the parameters. Else each has its own, as after a step of an optimiser. `accumulated`: gradients are added to what is
    there.
    """

    backward: bool
    asked: str  # of what gradients are asked for: "all", "some", "others on each rank"
    together: bool
    accumulated: bool

    @classmethod
    def of(cls, seed: int, *, backward: bool) -> _Course:
        asked = ("all", "some", "others on each rank")[seed % 3]
        return cls(backward, asked, backward and seed // 3 % 2 == 0, backward and seed // 6 % 2 == 1)

    def fills_parameters(self, number: int) -> bool:
        """Whether the pass has parameters of its own."""
        return number == 0 or not self.together

    def asks_for(self, context: CheckContext) -> frozenset[str]:
        """The tensors of which this rank asks a gradient."""
        layer = context.layer
        names = [tensor.name for tensor in (*layer.domain.tensors, *layer.parameters.tensors)]
        if self.asked == "all":
            return frozenset(names)
        random = np.random.default_rng((context.setting.seed, context.rank if self.asked != "some" else 0))
        return frozenset(
            name for name, wanted in zip(names, random.random(len(names)) < 0.6, strict=True) if wanted
        )


def draws(context: CheckContext, number: int) -> dict[str, Draw]:
    """The keys of the values of a pass: small integers."""
    seed = context.setting.seed
    return {
        "inputs": Draw(seed, 3 * number, "primal", LARGEST),
        "parameters": Draw(seed, 3 * number + 1, "primal", LARGEST),
        "cotangents": Draw(seed, 3 * number + 2, "dual", LARGEST),
        "accumulated": Draw(seed, 3 * number, "dual", LARGEST),
    }


def twin_passes(context: CheckContext, *, backward: bool) -> tuple[Seen, ...]:
    """Collective: passes with different data, which show what a layer keeps from the first and should not.

    Inputs and cotangents lie in memory as the setting says, and must be left as they are; so must outputs.
    """
    import torch

    course = _Course.of(context.setting.seed, backward=backward)
    with torch.set_grad_enabled(backward):
        seen = _layer_passes(context, course)
        if context.rank:
            return seen
        expected = _twin_passes(context, course)
    return tuple(
        replace(one, compared=cut_up(one.compared, whole, context.comm.Get_size()))
        for one, whole in zip(seen, expected, strict=True)
    )


def _layer_passes(context: CheckContext, course: _Course) -> tuple[Seen, ...]:
    layer, rank = context.layer, context.rank
    names, asked = _names(layer), course.asks_for(context)
    check_parameters(layer)
    owned = [layer.module.get_parameter(name) for name in names.parameters]
    for name, parameter in zip(names.parameters, owned, strict=True):
        parameter.requires_grad_(name in asked and parameter.is_floating_point())
    passes, memory = [], []
    for number in range(_PASSES):
        keys = draws(context, number)
        inputs = [
            _placed(x, context.setting.primal_order) for x in local_inputs(context, layer, keys["inputs"])
        ]
        cotangents = [
            _placed(y, context.setting.dual_order)
            for y in local_tensors(layer.codomain.dual, keys["cotangents"], rank)
        ]
        leaves = [
            _leaf(placed.view, tensor.name in asked)
            for tensor, placed in zip(layer.domain.tensors, inputs, strict=True)
        ]
        each = Pass(leaves, [placed.view for placed in cotangents], copied=layer.overwrites_inputs)
        if course.fills_parameters(number):
            values = local_tensors(layer.parameters, keys["parameters"], rank)
            each.parameters = dict(zip(names.parameters, values, strict=True))
        if course.accumulated:
            there = [
                *local_tensors(layer.domain.dual, keys["accumulated"], rank),
                *local_tensors(layer.parameters.dual, keys["accumulated"], rank),
            ]
            each.accumulated = [
                value
                if leaf.numel()
                else leaf.detach().clone()  # what holds nothing may do so in another shape
                for leaf, value in zip([*leaves, *owned], there, strict=True)
            ]
        passes.append(each)
        memory.append((inputs, cotangents))
    run(
        layer.module,
        names,
        passes,
        backward=course.backward,
        together=course.together,
        check=lambda outputs: check_outputs(layer, outputs, rank),
    )
    return tuple(
        Seen(
            tuple(_compared(layer, what, local, asked, course) for what, local in each.results.items()),
            _changes(layer, each, *there),
            course.accumulated,
        )
        for each, there in zip(passes, memory, strict=True)
    )


def _twin_passes(context: CheckContext, course: _Course) -> tuple[Mapping[str, Local], ...]:
    layer, twin = context.layer, make_twin(context)
    names = _names(layer)
    for name in names.parameters:
        parameter = twin.get_parameter(name)
        parameter.requires_grad_(parameter.is_floating_point())
    passes = []
    for number in range(_PASSES):
        keys = draws(context, number)
        inputs = [_leaf(x, True) for x in whole_inputs(layer, keys["inputs"])]
        cotangents = whole_tensors(layer.codomain.dual, keys["cotangents"])
        each = Pass(inputs, cotangents, copied=layer.overwrites_inputs)
        if course.fills_parameters(number):
            values = whole_tensors(layer.parameters, keys["parameters"])
            each.parameters = dict(zip(names.parameters, values, strict=True))
        passes.append(each)
    run(
        twin,
        names,
        passes,
        backward=course.backward,
        together=course.together,
        check=lambda outputs: check_whole_outputs(layer, outputs),
    )
    return tuple(each.results for each in passes)


def _compared(layer: Layer, what: str, local: Local, asked: frozenset[str], course: _Course) -> Compared:
    space = {
        "outputs": layer.codomain,
        "buffers": layer.buffers,
        "parameters": layer.parameters,
        "input gradient": layer.domain.dual,
        "parameter gradient": layer.parameters.dual,
    }[what]
    if not what.endswith("gradient"):
        return Compared(what, space, local, Tolerance(layer.rounding, layer.reach))
    # A sum with what was there is rounded by its own size.
    reach = max(layer.reach, 2 * LARGEST) if course.accumulated else layer.reach
    frozen = frozenset(
        tensor.name for tensor in space.tensors if tensor.name not in asked or tensor.element.kind != "real"
    )
    return Compared(what, space, local, Tolerance(layer.rounding, reach), frozen=frozen)


def _changes(
    layer: Layer, each: Pass, inputs: Sequence[Placed], cotangents: Sequence[Placed]
) -> tuple[tuple[str, str], ...]:
    """What the layer has written into and should not have: what that is, and which tensor."""
    outputs = zip(each.results["outputs"], values(each.outputs), strict=True)
    return (
        *(
            ("an input", tensor.name)
            for tensor, entry in zip(layer.domain.tensors, inputs, strict=True)
            if not entry.unchanged
        ),
        *(
            ("a cotangent", tensor.name)
            for tensor, entry in zip(layer.codomain.tensors, cotangents, strict=True)
            if not entry.unchanged
        ),
        *(
            ("what it has returned before", tensor.name)
            for tensor, (before, now) in zip(layer.codomain.tensors, outputs, strict=True)
            if before.tobytes() != now.tobytes()
        ),
    )


def make_twin(context: CheckContext) -> Any:
    """The sequential twin, new. Raises `ValueError` for one whose parameters or buffers are not the layer's."""
    layer = context.layer
    assert context.reference is not None
    twin = context.reference()
    if faults := undeclared(twin, layer.parameters, layer.buffers):
        raise ValueError(f"the sequential twin and the layer are not called alike: the twin {faults[0]}")
    for tensor in layer.parameters.tensors:
        shape = tuple(twin.get_parameter(tensor.name).shape)
        if shape != tensor.layout.shape:
            raise ValueError(
                f"the sequential twin's parameter {tensor.name} has shape {shape}, but the layer's is laid out as "
                f"{tensor.layout.shape}"
            )
    return twin


def whole_inputs(layer: Layer, key: Draw) -> list[Any]:
    """The whole inputs, which :func:`local_inputs` has the parts of."""
    return list(layer.prepare(*whole_tensors(layer.domain, key)))


def whole_tensors(space: Space, key: Draw) -> list[Any]:
    """The drawn tensors of a space, whole."""
    return [
        arrays.from_numpy(assembled(space, position, key), tensor.dtype, "torch")
        for position, tensor in enumerate(space.tensors)
    ]


def local_inputs(context: CheckContext, layer: Layer, key: Draw) -> list[Any]:
    """This rank's inputs."""
    return list(layer.prepare(*local_tensors(layer.domain, key, context.rank)))


def local_tensors(space: Space, key: Draw, rank: int) -> list[Any]:
    """What `rank` holds of the drawn tensors of a space."""
    return [
        arrays.from_numpy(local_values(space, position, rank, key), tensor.dtype, "torch")
        for position, tensor in enumerate(space.tensors)
    ]


def check_parameters(layer: Layer) -> None:
    """Raise :class:`NotInSpace` for a parameter of another shape than declared."""
    rank = layer.comm.Get_rank()
    for tensor in layer.parameters.tensors:
        shape = tuple(layer.module.get_parameter(tensor.name).shape)
        _check_shape(f"the parameter {tensor.name} has", tensor, shape, rank)


def check_outputs(layer: Layer, outputs: Sequence[Any], rank: int) -> None:
    """Raise :class:`NotInSpace` for outputs that the codomain does not hold."""
    if len(outputs) != len(layer.codomain.tensors):
        raise NotInSpace(
            f"the layer returned {len(outputs)} tensors, but the codomain has {len(layer.codomain.tensors)}"
        )
    for tensor, output in zip(layer.codomain.tensors, outputs, strict=True):
        _check_shape("the layer returned", tensor, tuple(output.shape), rank)


def check_whole_outputs(layer: Layer, outputs: Sequence[Any]) -> None:
    """Raise `ValueError` for outputs of a twin that the codomain does not hold."""
    shapes = [tuple(output.shape) for output in outputs]
    wanted = [tensor.layout.shape for tensor in layer.codomain.tensors]
    if shapes != wanted:
        raise ValueError(f"the sequential twin returned shapes {shapes}, but the codomain has {wanted}")


def _check_shape(what: str, tensor: Any, shape: tuple[int, ...], rank: int) -> None:
    wanted = tensor.layout.local_shape(rank)
    if not tensor.layout.partition.is_active(rank):
        if 0 not in shape:
            raise NotInSpace(
                f"{what} shape {shape} on rank {rank}, which is inactive in {tensor.layout.partition} and holds a "
                "zero-volume tensor"
            )
    elif shape != wanted:
        raise NotInSpace(
            f"{what} shape {shape} on rank {rank}, but the layout {tensor.layout} gives it {wanted}"
        )


def _names(layer: Layer) -> Names:
    return Names(
        tuple(tensor.name for tensor in layer.parameters.tensors),
        tuple(tensor.name for tensor in layer.buffers.tensors),
    )


def _placed(tensor: Any, order: str) -> Placed:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPES:  # of a layer's own preparation, such as truth values
        return placed_as_it_is(tensor)
    return place(np.array(arrays.to_numpy(tensor)), dtype, "torch", order)


def _leaf(tensor: Any, asked: bool) -> Any:
    """A leaf of the graph in the tensor's memory."""
    leaf = tensor.detach()
    return leaf.requires_grad_(asked) if leaf.is_floating_point() else leaf


def cut_up(entries: Sequence[Compared], whole: Mapping[str, Local], size: int) -> tuple[Compared, ...]:
    """`entries`, with what every one of `size` ranks should hold of the `whole` results."""
    return tuple(
        replace(
            entry,
            expected=tuple(
                tuple(
                    held(tensor, array, rank)
                    for tensor, array in zip(entry.space.tensors, whole[entry.what], strict=True)
                )
                for rank in range(size)
            ),
        )
        for entry in entries
    )


def first_wrong(observations: Sequence[tuple[Seen, ...]]) -> Verdict:
    """The verdict: where the layer first differs from its twin, or what it has written into."""
    for rank, passes in enumerate(observations):
        for what, tensor in (change for seen in passes for change in seen.changed):
            lines = [("tensor", f"{tensor} (rank {rank})")]
            if what == "an input":
                lines.append(("if so asked", "declare overwrites_inputs = True"))
            return incoherent(f"the layer writes into {what}", *lines)
    for number, ranks in enumerate(zip(*observations, strict=True)):
        if difference := _difference(ranks):
            what, where, got, want = difference
            lines = [(what, where), ("distributed", got), ("sequential", want)]
            if number:
                lines.append(("pass", "the second one, with other data; the first was right"))
            if what.endswith("gradient") and ranks[0].accumulated:
                lines.append(("accumulated", ".grad held other gradients before, which are taken off here"))
            verb = "are not the sequential ones" if what.endswith("s") else "is not the sequential one"
            return incoherent(f"the layer's {what} {verb}", *lines, kind=what)
    return coherent()


def _difference(ranks: Sequence[Seen]) -> tuple[str, str, str, str] | None:
    """In what, where, the value and the expected one."""
    for index, entry in enumerate(ranks[0].compared):
        assert entry.expected is not None
        actual = _without_frozen(entry.space, [seen.compared[index] for seen in ranks], entry.expected)
        for position, tensor in enumerate(entry.space.tensors):
            # Tensor by tensor: each is measured against its own largest value.
            difference = first_difference(
                Space(tensor),
                [(local[position],) for local in actual],
                [(local[position],) for local in entry.expected],
                entry.tolerance,
            )
            if difference is not None:
                return entry.what, *difference
    return None


def _without_frozen(
    space: Space, ranks: Sequence[Compared], expected: Sequence[Local]
) -> list[tuple[np.ndarray[Any, Any], ...]]:
    """The ranks' parts, with what is expected in the place of gradients that nobody asked for."""
    replaced = [list(entry.actual) for entry in ranks]
    for position, tensor in enumerate(space.tensors):
        summed = any(entry.value == "partial" for entry in tensor.types)
        frozen = [tensor.name in entry.frozen for entry in ranks]
        for rank, is_frozen in enumerate(frozen):
            # Of summands all are needed, or there is no sum to judge.
            if is_frozen or (summed and any(frozen)):
                replaced[rank][position] = expected[rank][position]
    return [tuple(local) for local in replaced]
