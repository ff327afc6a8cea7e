"""Passes of a module over drawn values: forward, and backward if needed, with the results of each.

A layer and its sequential twin run the same passes in the same order, because a module may keep something from one pass
to the next: running statistics, which must be the same in both, or by mistake a tensor of the previous pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import compress
from typing import TYPE_CHECKING, Final

import numpy as np

from adjointlab.checks.context import CheckContext
from adjointlab.checks.elements import Local
from adjointlab.checks.hints import FaultKind, Hint
from adjointlab.checks.layers.drawn_values import pass_keys
from adjointlab.checks.layers.modules import LocalModule, ModuleUnderTest, first_positions, values
from adjointlab.checks.memory_orders import Placed, order_on, place, placed_as_it_is
from adjointlab.checks.seed_digits import ACCUMULATED, APART, COURSE, LAST_FIRST, REQUIRES_GRAD
from adjointlab.core import arrays
from adjointlab.core.arrays import DTYPES
from adjointlab.core.layer import Layer
from adjointlab.core.pieces import IN_ONE
from adjointlab.core.space import Space, Tensor
from adjointlab.core.subsets import subset
from adjointlab.core.vectors import Draw
from adjointlab.notes import noted

if TYPE_CHECKING:
    import torch

__all__ = [
    "BUFFERS",
    "EVALUATION",
    "ONE_PASS",
    "OUTPUTS",
    "PARAMETERS",
    "PARAMETER_GRADIENT",
    "PASSES",
    "TRAINING",
    "Pass",
    "PassPlan",
    "ResultKind",
    "as_leaf",
    "gradients",
    "placed_in",
    "plainer_seeds",
    "run_passes",
]

PASSES: Final = 2
"""Number of passes that a layer and its twin run and that are compared."""

_SUBSETS = 32
"""Number of subsets of outputs that may be left out of the loss; in half of the cases none is, which is 0."""


EVALUATION, TRAINING = "evaluation", "training"
"""Passes that may precede those that are compared: one forward without gradients, or one forward and one backward."""

_BEFORE: Mapping[int, tuple[str, str]] = {
    **dict.fromkeys((12, 13), (TRAINING, "larger")),
    14: (TRAINING, "smaller"),
    **dict.fromkeys((15, 16), (EVALUATION, "")),
    **dict.fromkeys((17, 18), (EVALUATION, "larger")),
    19: (EVALUATION, "smaller"),
}
"""The preceding pass, and its other batch, by a number that is drawn below 20: none in three cases of five."""

_IN_EVALUATION_MODE = (15, 17, 18)
"""The numbers with which the module is in evaluation mode in that pass, as when a validation interrupts training."""


@dataclass(frozen=True)
class PassPlan:
    """Plan of a case's passes, drawn from its seed; the same on all ranks.

    `together`: all passes run forward before any runs backward, as for an instance that is used twice in a graph, or in a pipeline of
    microbatches; they share the parameters, and the last may run backward first (`last_first`). Otherwise each has its own parameters, as
    after a step of an optimiser. `accumulated`: gradients are added to earlier ones in ``.grad``. `joined`: the gradients of all
    passes are added up, as of microbatches, and the user's hooks around backward passes are called once for all. `left_out`: seed of the
    outputs that are left out of the loss, 0 for none. `before` is the pass that precedes the first: "", :data:`EVALUATION` or :data:`TRAINING`;
    with `other_batch`, it has a "larger" or "smaller" batch; an evaluation may be `in_evaluation_mode`.
    """

    backward: bool
    requires_grad: str  # "all", "some", "others on each rank"
    together: bool
    accumulated: bool
    left_out: int = 0
    last_first: bool = False
    before: str = ""
    other_batch: str = ""
    in_evaluation_mode: bool = False
    joined: bool = False

    @classmethod
    def of(cls, seed: int, *, backward: bool) -> PassPlan:
        requires_grad = ("all", "some", "others on each rank")[REQUIRES_GRAD.of(seed)]
        if not backward:
            return cls(backward, requires_grad, together=False, accumulated=False)
        together, course = not APART.of(seed), COURSE.of(seed)
        before, other_batch = _BEFORE.get(course % 20, ("", ""))
        return cls(
            backward,
            requires_grad,
            together,
            accumulated=bool(ACCUMULATED.of(seed)),
            left_out=max(course % (2 * _SUBSETS) - _SUBSETS, 0),
            last_first=together and bool(LAST_FIRST.of(seed)),
            before=before,
            other_batch=other_batch,
            in_evaluation_mode=course % 20 in _IN_EVALUATION_MODE,
        )

    def for_layer(self, layer: Layer) -> PassPlan:
        """The plan, restricted to what the layer allows."""
        # A step of a pipeline always runs backward; a data-parallel module need not.
        may_evaluate = not layer.needs_graph and (layer.alternates or not layer.needs_all_outputs)
        takes_other = bool(self.other_batch) and layer.other_batch(self.other_batch == "larger") is not None
        may_come = {EVALUATION: may_evaluate, TRAINING: takes_other}
        before = self.before if may_come.get(self.before) else ""
        together = self.together and not layer.alternates
        return replace(
            self,
            together=together,
            accumulated=self.accumulated and layer.accumulates,
            joined=self.accumulated and layer.joins_passes,
            left_out=0 if layer.needs_all_outputs or len(layer.codomain.tensors) < 2 else self.left_out,
            last_first=self.last_first and together,
            before=before,
            other_batch=self.other_batch if before and takes_other else "",
            in_evaluation_mode=self.in_evaluation_mode and bool(before) and layer.takes_evaluation_mode(),
        )

    def parameters_in(self, number: int) -> int:
        """The pass for which the parameters of pass `number` were drawn."""
        return 0 if self.together or self.joined else number

    def in_loss(self, layer: Layer) -> tuple[bool, ...]:
        """For each output, whether the loss depends on it."""
        outputs = layer.codomain.tensors
        with_gradient = [number for number, tensor in enumerate(outputs) if not tensor.element.is_integer]
        left_out = subset(with_gradient, self.left_out, leaves_one=True) if self.left_out else ()
        return tuple(number not in left_out for number in range(len(outputs)))

    def differentiated(self, context: CheckContext) -> frozenset[str]:
        """Names of the inputs and parameters that require a gradient on this rank."""
        layer = context.layer
        tensors, given = (*layer.domain.tensors, *layer.parameters.tensors), frozenset[str]()
        if self.requires_grad == "all":
            return frozenset(tensor.name for tensor in tensors) - (layer.frozen or frozenset())
        if layer.frozen is not None:
            given = frozenset(tensor.name for tensor in layer.parameters.tensors) - layer.frozen
            tensors = layer.domain.tensors
        # Different ones on each rank: a backward pass whose messages depend on this hangs, because no rank knows what the others need.
        # But copies of one parameter are treated alike, as a hook may be collective. Inputs depend on what precedes them on each rank.
        per_rank = self.requires_grad == "others on each rank" and not layer.uniform_requires_grad

        def wanted(position: int, tensor: Tensor) -> bool:
            rank = context.rank if per_rank else 0
            if per_rank and position >= len(layer.domain.tensors):
                rank = tensor.groups.get(rank, rank)
            return _wanted(context.setting.seed, rank, len(tensors))[position]

        drawn = {tensor.name for position, tensor in enumerate(tensors) if wanted(position, tensor)}
        return given | (drawn - (layer.frozen or frozenset()))


ONE_PASS: Final = PassPlan(backward=True, requires_grad="all", together=False, accumulated=False)
"""The plan of a pass without preceding passes or gradients."""


@lru_cache(maxsize=64)  # for all ranks of the running case
def _wanted(seed: int, rank: int, number: int) -> tuple[bool, ...]:
    """For each of `number` tensors on a rank, whether it should require a gradient: three in five do."""
    return tuple(map(bool, np.random.default_rng((seed, rank)).random(number) < 0.6))


def plainer_seeds(seed: int) -> Iterator[tuple[Hint, int]]:
    """Seeds whose plan of passes is simpler in one respect, each with the hint on a fault that does not show with it."""
    plan = PassPlan.of(seed, backward=True)
    if plan.last_first:
        text = "right if the first pass runs backward first, and wrong if the last one does"
        yield Hint(FaultKind.KEPT, text), LAST_FIRST.changed(seed, 0)
    if plan.together:
        text = "right if each pass runs backward before the next one runs forward, and wrong if both run forward first"
        yield Hint(FaultKind.KEPT, text), APART.changed(seed, 1)
    if plan.accumulated:
        text = (
            "right if there are no gradients before, and wrong if they are added to earlier ones; for a parallel module, "
            "accumulates=False says that they never are"
        )
        yield Hint(FaultKind.ACCUMULATED, text), ACCUMULATED.changed(seed, 0)
    if plan.before:
        how = "forward without gradients" if plan.before == EVALUATION else "forward and backward"
        if plan.in_evaluation_mode:
            how += " in evaluation mode"
        if plan.other_batch:
            how += ", for a parallel module with another batch unless it says one_batch_size=True"
        text = f"right if nothing comes before, and wrong if the instance has gone {how}"
        # Adding 128 changes the course by 8 modulo 20, so that nothing comes before, and not modulo 64, which decides what is left out.
        course = (COURSE.of(seed) + 4 * _SUBSETS) % COURSE.base
        yield Hint(FaultKind.KEPT, text), COURSE.changed(seed, course)


@dataclass(frozen=True)
class ResultKind:
    """Kind of result of a pass, and the space of its tensors."""

    name: str
    space: Callable[[Layer], Space]
    is_gradient: bool = False


OUTPUTS = ResultKind("outputs", lambda layer: layer.codomain)
BUFFERS = ResultKind("buffers", lambda layer: layer.buffers)
PARAMETERS = ResultKind("parameters", lambda layer: layer.parameters)
INPUT_GRADIENT = ResultKind("input gradient", lambda layer: layer.domain.dual, is_gradient=True)
PARAMETER_GRADIENT = ResultKind("parameter gradient", lambda layer: layer.parameters.dual, is_gradient=True)


@dataclass
class Pass:
    """Arguments of one pass, each in its buffer, and the results by kind."""

    inputs: Sequence[Placed]
    cotangents: Sequence[Placed]
    leaves: Sequence[torch.Tensor]  # the inputs as leaves of the graph
    accumulated: Sequence[torch.Tensor] | None = None  # earlier .grad of inputs and parameters
    outputs: tuple[torch.Tensor, ...] = ()
    seen: Local = ()  # values of the outputs when they were last read
    overwritten: set[int] = field(default_factory=set)  # positions of outputs that changed later
    results: dict[ResultKind, Local] = field(default_factory=dict)

    def by_name(self) -> dict[str, Local]:
        """Results by the names of their kinds."""
        return {kind.name: local for kind, local in self.results.items()}

    @property
    def earlier_of_inputs(self) -> Sequence[torch.Tensor] | None:
        """Gradients of the inputs that were in ``.grad`` before."""
        return None if self.accumulated is None else self.accumulated[: len(self.leaves)]

    @property
    def earlier_of_parameters(self) -> Sequence[torch.Tensor] | None:
        """Gradients of the parameters that were in ``.grad`` before."""
        return None if self.accumulated is None else self.accumulated[len(self.leaves) :]

    def note_overwritten(self) -> None:
        """Record the outputs whose values have changed since they were last read."""
        pairs = zip(self.seen, values(self.outputs), strict=True)
        self.overwritten.update(n for n, (old, new) in enumerate(pairs) if old.tobytes() != new.tobytes())


def run_passes(
    version: ModuleUnderTest, plan: PassPlan, context: CheckContext, differentiated: frozenset[str]
) -> list[Pass]:
    """Run a module through all passes. Collective for a layer.

    `differentiated` names the inputs and parameters that require a gradient, if they can. Arguments of a layer have the memory orders
    of the case's setting.
    """
    version.require_gradients(differentiated)
    passes = [_drawn(version, plan, context, number, differentiated) for number in range(PASSES)]
    backward = passes[::-1] if plan.last_first else passes
    for number, each in enumerate(passes):
        if plan.parameters_in(number) == number:
            _fill_parameters(version, pass_keys(context, number)["parameters"], passes[:number])
        if number == 0 and plan.before:
            _go_before(version, plan, context, differentiated)
        first = backward[0] if plan.together else each
        if plan.accumulated and (number == 0 or not (plan.together or plan.joined)):
            # Set before the module runs forward, as gradients of an earlier microbatch would be.
            _set_gradients_of_parameters(version, first)
        each.outputs = version(each.leaves)
        # Copied now: a later pass may overwrite the outputs, which another comparison then shows.
        each.seen = each.results[OUTPUTS] = values(each.outputs)
        each.results[BUFFERS] = values(version.buffers())
        each.results[PARAMETERS] = version.in_space(values(version.parameters()))
        if plan.backward and not plan.together:
            _go_back(version, each, plan, passes)
    if plan.backward and plan.together:
        for each in backward:
            _go_back(version, each, plan, backward)
    for each in passes:
        each.note_overwritten()
    return passes


def _fill_parameters(version: ModuleUnderTest, key: Draw, earlier: Sequence[Pass]) -> None:
    """Overwrite the parameters with drawn values, and thereby outputs of earlier passes that are views of parameters."""
    for each in earlier:
        each.note_overwritten()
    version.fill_parameters(key)
    # The module is not to blame for these changes by the lab, only for its own from now on.
    for each in earlier:
        each.seen = values(each.outputs)


def _go_before(
    version: ModuleUnderTest, plan: PassPlan, context: CheckContext, differentiated: frozenset[str]
) -> None:
    """Run forward without gradients, or forward and backward, with other data. Collective for a layer."""
    import torch

    other = version.layer.other_batch(plan.other_batch == "larger") if plan.other_batch else None
    with noted("" if other is None else _for_another_batch(other)):
        if plan.before == TRAINING:
            assert other is not None
            _train(version, other, pass_keys(context, PASSES)["inputs"], differentiated)
            return
        with torch.no_grad(), version.evaluated() if plan.in_evaluation_mode else nullcontext():
            if other is None:
                outputs = version(_drawn(version, plan, context, PASSES, differentiated).leaves)
            else:
                inputs = version.drawn_inputs(other, pass_keys(context, PASSES)["inputs"])
                outputs = version.applied_to(inputs)
            # Read, as user code does: torch may wait for the messages of an output only when it is read.
            values(outputs)


def _for_another_batch(other: Space) -> str:
    shapes = ", ".join(str(tensor.layout.shape) for tensor in other.tensors)
    return f"raised for another batch before, of shape {shapes}: for a module that is made for one size, say one_batch_size=True"


def _train(version: ModuleUnderTest, inputs: Space, key: Draw, differentiated: frozenset[str]) -> None:
    """Run forward and backward on `inputs`, of another batch. The loss is the sum of the outputs, and the gradients are not compared."""
    import torch

    leaves = [
        as_leaf(x, tensor.name in differentiated)
        for tensor, x in zip(inputs.tensors, version.drawn_inputs(inputs, key), strict=True)
    ]
    outputs = version.applied_to(version.given(leaves))
    values(outputs)
    version.go_back(leaves, outputs, [torch.ones_like(y) for y in outputs])


def _drawn(
    version: ModuleUnderTest,
    plan: PassPlan,
    context: CheckContext,
    number: int,
    differentiated: frozenset[str],
) -> Pass:
    layer, setting, keys = version.layer, context.setting, pass_keys(context, number)
    is_local = isinstance(version, LocalModule)
    orders = [order_on(context.rank, each) if version.takes_orders else None for each in setting.orders]
    inputs = [placed_in(orders[0], x, version.memory) for x in version.inputs(keys["inputs"])]
    drawn = version.of_means(version.cotangents(keys["cotangents"]))
    cotangents = [placed_in(orders[1], y, version.memory) for y in drawn]
    leaves = [
        as_leaf(placed.view, tensor.name in differentiated)
        for tensor, placed in zip(layer.domain.tensors, inputs, strict=True)
    ]
    each = Pass(inputs, cotangents, leaves)
    if plan.accumulated and is_local:
        earlier = [
            *version.tensors(layer.domain.dual, keys["accumulated"]),
            *version.tensors(layer.parameters.dual, keys["accumulated"]),
        ]
        owners = [*leaves, *version.parameters()]
        pieces = [IN_ONE] * len(leaves) + [
            layer.pieces_of(tensor.name) for tensor in layer.parameters.tensors
        ]
        each.accumulated = [
            # One of zero volume may have another shape. Tied parameters have one gradient, and so one earlier one.
            of_leaf.joined(earlier[first], tuple(leaf.shape)) if leaf.numel() else leaf.detach().clone()
            for leaf, of_leaf, first in zip(
                map(arrays.local_part, owners), pieces, first_positions(owners), strict=True
            )
        ]
    return each


def _go_back(version: ModuleUnderTest, each: Pass, plan: PassPlan, order: Sequence[Pass]) -> None:
    """Run backward, and store the gradients in the results. `order` has all passes in the order in which they run backward."""
    parameters = version.parameters()
    goes_on, is_continued = plan.joined and each is not order[0], plan.joined and each is not order[-1]
    _set_gradients(each.leaves, each.earlier_of_inputs)
    stands_there = plan.accumulated and (each is order[0] or not plan.together)
    if not goes_on and not stands_there:
        _set_gradients_of_parameters(version, each)
    in_loss = plan.in_loss(version.layer)
    version.go_back(
        each.leaves,
        list(compress(each.outputs, in_loss)),
        [placed.view for placed in compress(each.cotangents, in_loss)],
        goes_on=goes_on,
        is_continued=is_continued,
    )
    each.results[INPUT_GRADIENT] = version.of_sums(_added(each.leaves, each.earlier_of_inputs))
    if is_continued:
        return
    # For joined passes, the first one's are the gradients that were there before.
    earlier = (order[0] if plan.joined else each).earlier_of_parameters
    of_parameters = version.in_space(_added(parameters, earlier))
    for those in order if plan.joined else (each,):
        those.results[PARAMETER_GRADIENT] = of_parameters


def _set_gradients_of_parameters(version: ModuleUnderTest, each: Pass) -> None:
    _set_gradients(version.parameters(), each.earlier_of_parameters)
    if each.earlier_of_parameters is not None:
        for weight in version.with_sparse_gradients():
            # Two embeddings may share a weight.
            if weight.grad is not None and not weight.grad.is_sparse:
                weight.grad = weight.grad.to_sparse(1)


def _set_gradients(leaves: Sequence[torch.Tensor], earlier: Sequence[torch.Tensor] | None) -> None:
    import torch

    given: Sequence[torch.Tensor | None] = earlier or [None] * len(leaves)
    for leaf, gradient in zip(leaves, given, strict=True):
        # In the leaf's own memory order, like gradients that torch makes.
        leaf.grad = None
        if gradient is not None and leaf.requires_grad:
            with torch.no_grad():
                leaf.grad = torch.zeros_like(leaf)
                arrays.local_part(leaf.grad).copy_(gradient)


def _added(leaves: Sequence[torch.Tensor], earlier: Sequence[torch.Tensor] | None) -> Local:
    """Gradients without those that were there before the backward passes."""
    found = gradients(leaves)
    if earlier is None:
        return found
    return tuple(
        total - np.array(arrays.to_numpy(gradient)) if leaf.requires_grad else total
        for leaf, total, gradient in zip(leaves, found, earlier, strict=True)
    )


def gradients(leaves: Sequence[torch.Tensor]) -> Local:
    """Gradients of leaves of the graph, in NumPy: zero where there is none."""
    return tuple(
        np.zeros(tuple(arrays.local_part(leaf.detach()).shape))
        if (gradient := arrays.local_gradient(leaf)) is None
        else np.array(arrays.to_numpy(gradient))
        for leaf in leaves
    )


def placed_in(order: str | None, tensor: torch.Tensor, memory: str) -> Placed:
    """The tensor in a memory order; unchanged if none is given, or NumPy does not have its type."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    # A subject's own preparation may return other types, such as booleans.
    if order is None or dtype not in DTYPES:
        return placed_as_it_is(tensor)
    return place(np.array(arrays.to_numpy(tensor)), dtype, memory, order)


def as_leaf(tensor: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """Return a leaf of the graph in the tensor's memory, which requires a gradient if it can."""
    leaf = tensor.detach()
    return leaf.requires_grad_(requires_grad) if arrays.is_differentiable(leaf) else leaf
