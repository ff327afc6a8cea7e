"""A layer and its sequential twin on the same values: outputs, gradients, and buffers afterwards.

Every rank runs the layer on what it holds; rank 0 runs the twin on the whole tensors and cuts its results as the ranks
should hold them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adjointlab import arrays
from adjointlab.checks.bench import Bench
from adjointlab.checks.compare import Local, Tolerance, first_difference
from adjointlab.checks.verdict import Verdict, coherent, incoherent
from adjointlab.checks.windows import assembled, held
from adjointlab.layer import Layer
from adjointlab.operator import NotInSpace
from adjointlab.space import Space
from adjointlab.values import Draw, local_values

__all__ = [
    "Compared",
    "Seen",
    "as_tuple",
    "check_outputs",
    "compare_with_twin",
    "drawn_parameters",
    "draws",
    "first_wrong",
    "local_inputs",
    "run_twin",
    "set_values",
    "twin_passes",
]

_LARGEST = 4
"""Integers up to this keep sums of products of some thousand terms exact in single precision."""


@dataclass(frozen=True)
class Compared:
    """One kind of result: what it is called, the space it lies in, this rank's part, and from rank 0 all parts expected.

    `frozen` names the tensors that this rank has no gradient of, because it asked for none.
    """

    what: str
    space: Space
    actual: Local
    expected: tuple[Local, ...] | None = None
    frozen: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Seen:
    """All results of one rank."""

    compared: tuple[Compared, ...]
    rounding: float
    reach: float


@dataclass
class Values:
    """The whole tensors that a twin is fed with, by position in their spaces."""

    inputs: list[Any]
    parameters: dict[str, Any]
    cotangents: list[Any] = field(default_factory=list)


def draws(bench: Bench, number: int) -> dict[str, Draw]:
    """The keys of inputs, parameters and cotangents of a pass: small integers."""
    seed = bench.setting.seed
    return {
        "inputs": Draw(seed, 3 * number, "primal", _LARGEST),
        "parameters": Draw(seed, 3 * number + 1, "primal", _LARGEST),
        "cotangents": Draw(seed, 3 * number + 2, "dual", _LARGEST),
    }


def compare_with_twin(bench: Bench, number: int = 0, *, backward: bool = True) -> Seen:
    """Collective: run the layer (and its backward pass) and, on rank 0, the twin."""
    import torch

    layer: Layer = bench.layer
    keys = draws(bench, number)
    set_values(layer, drawn_parameters(bench, keys["parameters"]))
    asked = _asked(bench, layer)
    inputs = local_inputs(bench, layer, keys["inputs"], asked)
    for name in _names(layer.parameters):
        layer.module.get_parameter(name).requires_grad_(name in asked).grad = None
    outputs = as_tuple(layer.module(*inputs))
    check_outputs(layer, outputs, bench.rank)
    results = [Compared("outputs", layer.codomain, _numpy(outputs))]
    if backward:
        cotangents = [
            arrays.from_numpy(
                local_values(layer.codomain.dual, position, bench.rank, keys["cotangents"]),
                tensor.dtype,
                "torch",
            )
            for position, tensor in enumerate(layer.codomain.tensors)
        ]
        # Every rank runs backward, whatever requires a gradient here: the messages of the others depend on it.
        reached = [(y, g) for y, g in zip(outputs, cotangents, strict=True) if y.requires_grad]
        if reached:
            torch.autograd.backward([y for y, _ in reached], [g for _, g in reached])
        results.append(_gradients("input gradient", layer.domain, inputs, asked))
        parameters = [layer.module.get_parameter(name) for name in _names(layer.parameters)]
        results.append(_gradients("parameter gradient", layer.parameters, parameters, asked))
    results.append(
        Compared(
            "buffers",
            layer.buffers,
            _numpy([layer.module.get_buffer(name) for name in _names(layer.buffers)]),
        )
    )
    if bench.rank:
        return Seen(tuple(results), layer.rounding, layer.reach)
    return Seen(_expected(bench, layer, results, number), layer.rounding, layer.reach)


def run_twin(bench: Bench, keys: Mapping[str, Draw], twin: Any = None) -> tuple[Any, Values]:
    """The twin (default: a new one), with the drawn parameters, and the whole tensors to feed it with."""
    layer: Layer = bench.layer
    assert bench.reference is not None
    twin = bench.reference() if twin is None else twin
    values = Values(
        inputs=list(
            layer.prepare(
                *(
                    arrays.from_numpy(
                        assembled(layer.domain, position, keys["inputs"]), tensor.dtype, "torch"
                    )
                    for position, tensor in enumerate(layer.domain.tensors)
                )
            )
        ),
        parameters={
            tensor.name: arrays.from_numpy(
                assembled(layer.parameters, position, keys["parameters"]), tensor.dtype, "torch"
            )
            for position, tensor in enumerate(layer.parameters.tensors)
        },
        cotangents=[
            arrays.from_numpy(
                assembled(layer.codomain.dual, position, keys["cotangents"]), tensor.dtype, "torch"
            )
            for position, tensor in enumerate(layer.codomain.tensors)
        ],
    )
    _fill(twin, values.parameters)
    return twin, values


def _expected(bench: Bench, layer: Layer, results: Sequence[Compared], number: int) -> tuple[Compared, ...]:
    import torch

    twin = None
    for earlier in range(number if layer.buffers.tensors else 0):  # the buffers are what earlier passes left
        twin, before = run_twin(bench, draws(bench, earlier), twin)
        with torch.no_grad():
            twin(*before.inputs)
    twin, values = run_twin(bench, draws(bench, number), twin)
    inputs = [x.requires_grad_() if x.is_floating_point() else x for x in values.inputs]
    outputs = as_tuple(twin(*inputs))
    reached = [(y, g) for y, g in zip(outputs, values.cotangents, strict=True) if y.requires_grad]
    if len(results) > 2 and reached:
        torch.autograd.backward([y for y, _ in reached], [g.reshape(y.shape) for y, g in reached])
    whole = {
        "outputs": outputs,
        "input gradient": [_grad(x) for x in inputs],
        "parameter gradient": [_grad(twin.get_parameter(name)) for name in _names(layer.parameters)],
        "buffers": [twin.get_buffer(name) for name in _names(layer.buffers)],
    }
    size = bench.comm.Get_size()
    return tuple(
        Compared(
            entry.what,
            entry.space,
            entry.actual,
            tuple(
                tuple(
                    held(tensor, array, rank)
                    for tensor, array in zip(entry.space.tensors, _numpy(whole[entry.what]), strict=True)
                )
                for rank in range(size)
            ),
            entry.frozen,
        )
        for entry in results
    )


def drawn_parameters(bench: Bench, key: Draw) -> dict[str, np.ndarray[Any, Any]]:
    """This rank's part of random parameters."""
    layer: Layer = bench.layer
    return {
        tensor.name: local_values(layer.parameters, position, bench.rank, key)
        for position, tensor in enumerate(layer.parameters.tensors)
    }


def set_values(layer: Layer, values: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Give the layer's parameters their values. Raises :class:`NotInSpace` for one of another shape than declared."""
    rank = layer.comm.Get_rank()
    import torch

    for tensor in layer.parameters.tensors:
        parameter = layer.module.get_parameter(tensor.name)
        given = arrays.from_numpy(values[tensor.name], tensor.dtype, "torch")
        if tensor.layout.partition.is_active(rank) and tuple(parameter.shape) != tuple(given.shape):
            raise NotInSpace(
                f"the parameter {tensor.name} has shape {tuple(parameter.shape)} on rank {rank}, but the layout "
                f"{tensor.layout} gives it {tuple(given.shape)}"
            )
        if parameter.numel():
            with torch.no_grad():
                parameter.copy_(given)


def local_inputs(bench: Bench, layer: Layer, key: Draw, asked: frozenset[str]) -> list[Any]:
    """This rank's inputs, as leaves of the graph where a gradient is asked for."""
    drawn = [
        arrays.from_numpy(local_values(layer.domain, position, bench.rank, key), tensor.dtype, "torch")
        for position, tensor in enumerate(layer.domain.tensors)
    ]
    return [
        x.requires_grad_(tensor.name in asked) if x.is_floating_point() else x
        for tensor, x in zip(layer.domain.tensors, layer.prepare(*drawn), strict=True)
    ]


def check_outputs(layer: Layer, outputs: Sequence[Any], rank: int) -> None:
    """Raise :class:`NotInSpace` for outputs that the codomain does not hold."""
    if len(outputs) != len(layer.codomain.tensors):
        raise NotInSpace(
            f"the layer returned {len(outputs)} tensors, but the codomain has {len(layer.codomain.tensors)}"
        )
    for tensor, output in zip(layer.codomain.tensors, outputs, strict=True):
        shape, wanted = tuple(output.shape), tensor.layout.local_shape(rank)
        if tensor.layout.partition.is_active(rank) and shape != wanted:
            raise NotInSpace(
                f"the layer returned shape {shape} on rank {rank}, but the layout {tensor.layout} gives it {wanted}"
            )
        if not tensor.layout.partition.is_active(rank) and output.numel():
            raise NotInSpace(
                f"the layer returned shape {shape} on rank {rank}, which is inactive in {tensor.layout.partition} and "
                "holds a zero-volume tensor"
            )


def as_tuple(value: Any) -> tuple[Any, ...]:
    """One tensor or several, as several."""
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _asked(bench: Bench, layer: Layer) -> frozenset[str]:
    """Of which tensors this rank asks a gradient: of all, or of some, or of others on each rank."""
    names = [tensor.name for tensor in (*layer.domain.tensors, *layer.parameters.tensors)]
    seed = bench.setting.seed
    kind = seed % 3
    if kind == 0:
        return frozenset(names)
    random = np.random.default_rng((seed, bench.rank if kind == 2 else 0))
    return frozenset(
        name for name, wanted in zip(names, random.random(len(names)) < 0.6, strict=True) if wanted
    )


def _gradients(what: str, space: Space, tensors: Sequence[Any], asked: frozenset[str]) -> Compared:
    gradients = tuple(
        np.array(arrays.to_numpy(tensor.grad)) if tensor.grad is not None else np.zeros(tuple(tensor.shape))
        for tensor in tensors
    )
    frozen = frozenset(
        tensor.name
        for tensor, leaf in zip(space.tensors, tensors, strict=True)
        if tensor.name not in asked or not leaf.is_floating_point()
    )
    return Compared(what, space.dual, gradients, frozen=frozen)


def _fill(twin: Any, parameters: Mapping[str, Any]) -> None:
    import torch

    with torch.no_grad():
        for name, value in parameters.items():
            parameter = twin.get_parameter(name)
            if tuple(parameter.shape) != tuple(value.shape):
                raise ValueError(
                    f"the sequential twin's parameter {name} has shape {tuple(parameter.shape)}, but the layer's is laid "
                    f"out as {tuple(value.shape)}"
                )
            parameter.copy_(value)


def _grad(leaf: Any) -> Any:
    import torch

    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def _names(space: Space) -> list[str]:
    return [tensor.name for tensor in space.tensors]


def _numpy(tensors: Sequence[Any]) -> Local:
    return tuple(np.array(arrays.to_numpy(tensor.detach())) for tensor in tensors)


def twin_passes(bench: Bench, *, backward: bool) -> tuple[Seen, ...]:
    """Collective: two passes with different data, which show what a layer keeps from the first and should not."""
    import torch

    with torch.set_grad_enabled(backward):
        return tuple(compare_with_twin(bench, number, backward=backward) for number in range(2))


def first_wrong(observations: Sequence[tuple[Seen, ...]]) -> Verdict:
    """The verdict: where the layer first differs from its twin."""
    for number, ranks in enumerate(zip(*observations, strict=True)):
        if difference := _difference(ranks):
            what, where, got, want = difference
            lines = [(what, where), ("distributed", got), ("sequential", want)]
            if number:
                lines.append(("pass", "the second one, with other data; the first was right"))
            return incoherent(f"the layer's {what} is not the sequential one", *lines, kind=what)
    return coherent()


def _difference(ranks: Sequence[Seen]) -> tuple[str, str, str, str] | None:
    """In what, where, the value and the expected one."""
    first = ranks[0]
    for index, entry in enumerate(first.compared):
        assert entry.expected is not None
        actual = _without_frozen(entry.space, [seen.compared[index] for seen in ranks], entry.expected)
        for position, tensor in enumerate(entry.space.tensors):
            # Tensor by tensor: each is measured against its own largest value.
            difference = first_difference(
                Space(tensor),
                [(local[position],) for local in actual],
                [(local[position],) for local in entry.expected],
                Tolerance(first.rounding, first.reach),
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
