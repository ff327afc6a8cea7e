"""All checks of one parallel module or pipeline on simulated ranks, as a call."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Never

from hypothesis.strategies import DrawFn

from adjointlab.checks.verdict import Verdict
from adjointlab.core import arrays
from adjointlab.core.declaration import SubjectError
from adjointlab.core.layer import Prepare
from adjointlab.engine.adapters import Parameters, UserFunction
from adjointlab.engine.drawn_meshes import drawn_meshes
from adjointlab.engine.example_tensors import Inputs, entries_of, listed, listed_target, preparation
from adjointlab.engine.options import Options
from adjointlab.engine.parallel import (
    ENTRIES_OF_PARALLEL,
    DataParallel,
    MakeOptimizer,
    Parallelize,
    Reduction,
)
from adjointlab.engine.pipeline import ENTRIES_OF_PIPELINE, MakePipeline
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject_check import verdicts_of
from adjointlab.engine.subject_decorators import subject
from adjointlab.spelling import described_type, did_you_mean
from adjointlab.worlds.world import World

if TYPE_CHECKING:
    import torch
    from torch.distributed.tensor.placement_types import Placement

__all__ = ["check_parallel", "check_pipeline"]

_RANKS = 4


def check_parallel(
    sequential: torch.nn.Module | Callable[..., torch.nn.Module],
    parallelize: Parallelize,
    inputs: Inputs,
    *,
    mesh: Sequence[str] | Sequence[int] | Mapping[str, int] | None = None,
    data_parallel: DataParallel = None,
    before_backward: UserFunction | None = None,
    after_backward: UserFunction | None = None,
    context: Callable[[], AbstractContextManager[object]] = nullcontext,
    prepare: Prepare | None = None,
    optimizer: MakeOptimizer | None = None,
    steps: int = 0,
    accumulates: bool | None = None,
    one_batch_size: bool = False,
    twice_differentiable: bool = False,
    frozen: Sequence[str] | None = None,
    input_placements: Sequence[object] | None = None,
    output_placements: Sequence[object] | None = None,
    parameter_placements: Mapping[str, Sequence[Placement]] | None = None,
    rank_local: Sequence[str] = (),
    cases: int = 20,
    seed: int = 0,
    checks: Collection[str] | None = None,
    world: World | None = None,
    **others: Never,
) -> Mapping[str, Verdict]:
    """Check a module that ``parallelize(module, mesh)`` has made parallel against the sequential one.

    Its outputs, gradients, buffers and, with an `optimizer`, the parameters after `steps` steps are compared with those of
    `sequential`, a module or a function that makes one, in `cases` cases on up to 4 simulated ranks (or in another `world`), by all checks
    that apply or by those that `checks` names.

    `inputs` are examples, whose shapes and element types matter, or a strategy ``inputs(draw, ranks)`` that draws shapes, the mesh,
    and arguments of `sequential`; what it may contain, `frozen` and placements included, and all options that are not explained here, are
    explained at ``adjointlab.subject.parallel``. `mesh` is a shape, which fixes the number of ranks, or names of dimensions, whose extents are drawn; by default one dimension of all ranks.

    Tensors lie on the host, or on the CUDA device on which an example or the module lies.

    Returns the verdicts by check. Raises `AssertionError` with the smallest failing case if one is not coherent, `TypeError` and
    `ValueError` for other arguments, and :class:`SubjectError` for a wrong declaration::

        adjointlab.check_parallel(model, lambda model, mesh: fully_shard(model, mesh=mesh), batch, data_parallel="mean")
    """
    __tracebackhide__ = True  # pytest and IPython end the traceback at the caller
    _refuse_others(check_parallel, others, ENTRIES_OF_PARALLEL)
    fixed, make_mesh = drawn_meshes(mesh)
    if isinstance(frozen, str) or not isinstance(frozen, Collection | None):
        raise TypeError(f"frozen: {frozen!r} is not a list of names of parameters, such as ['weight']")
    entries = {
        "frozen": None if frozen is None else list(frozen),
        "input_placements": input_placements,
        "output_placements": output_placements,
        "parameter_placements": parameter_placements,
    }
    given = {name: entry for name, entry in entries.items() if entry is not None}
    options = _options(_name(parallelize, "parallelize"), sequential, inputs)
    options["rank_local"] = rank_local
    if fixed is not None:
        options["ranks"] = (fixed,)
    declare = subject.parallel(
        _maker(sequential),
        parallelize,
        data_parallel=data_parallel,
        before_backward=before_backward,
        after_backward=after_backward,
        context=context,
        prepare=preparation(inputs, [], prepare),
        optimizer=optimizer,
        steps=steps,
        accumulates=accumulates,
        one_batch_size=one_batch_size,
        twice_differentiable=twice_differentiable,
        **options,
    )

    @declare
    def parallel(draw: DrawFn, ranks: int) -> Parameters:
        drawn: Any = inputs(draw, ranks) if callable(inputs) else entries_of(inputs)
        if not isinstance(drawn, Mapping):
            return drawn  # type: ignore[no-any-return]  # the caller raises a SubjectError for it
        return {"mesh": make_mesh(draw, ranks), **given, **drawn}

    return verdicts_of(parallel, Budget(cases, ranks=fixed or _RANKS, seed=seed), world, checks)


def check_pipeline(
    sequential: torch.nn.Module | Callable[..., torch.nn.Module],
    pipeline: MakePipeline,
    inputs: Inputs,
    target: torch.Tensor | None = None,
    *,
    loss: UserFunction,
    reduction: Reduction = "mean",
    after_backward: UserFunction | None = None,
    prepare: Prepare | None = None,
    optimizer: MakeOptimizer | None = None,
    steps: int = 0,
    ranks: int | None = None,
    cases: int = 20,
    seed: int = 0,
    checks: Collection[str] | None = None,
    world: World | None = None,
    **others: Never,
) -> Mapping[str, Verdict]:
    """Check that a step of the schedule that ``pipeline(module)`` makes from a module's parts equals a step of that module.

    Its loss, outputs, gradients, buffers and, with an `optimizer`, the parameters after `steps` steps are compared with those of
    `sequential`, a module or a function that makes one, with ``loss(output, target)``, in `cases` cases on up to 4 simulated ranks, or
    on `ranks` ranks (or in another `world`), by all checks that apply or by those that `checks` names.

    `inputs` and `target` are examples, whose shapes and element types matter (by default the target is like the output), or `inputs` is a
    strategy ``inputs(draw, ranks)`` that draws shapes and the arguments of `pipeline`; what it may contain, and `reduction`, is explained
    at ``adjointlab.subject.pipeline``. Tensors lie on the host, or on the CUDA device on which an example or the module lies.

    Returns the verdicts by check. Raises `AssertionError` with the smallest failing case if one is not coherent, `TypeError` and
    `ValueError` for other arguments, and :class:`SubjectError` for a wrong declaration::

        adjointlab.check_pipeline(model, pipeline, torch.randn(8, 3), loss=mse_loss, ranks=2)
    """
    __tracebackhide__ = True
    _refuse_others(check_pipeline, others, ENTRIES_OF_PIPELINE)
    options = _options(_name(pipeline, "pipeline"), sequential, inputs)
    if ranks is not None:
        options["ranks"] = (ranks,)
    declare = subject.pipeline(
        _maker(sequential),
        pipeline,
        loss=loss,
        reduction=reduction,
        after_backward=after_backward,
        prepare=preparation(inputs, listed_target(target), prepare),
        optimizer=optimizer,
        steps=steps,
        **options,
    )

    @declare
    def steps_of_pipeline(draw: DrawFn, ranks: int) -> Parameters:
        if callable(inputs):
            return inputs(draw, ranks)
        return entries_of(inputs) | ({} if target is None else {"target": tuple(target.shape)})

    return verdicts_of(steps_of_pipeline, Budget(cases, ranks=ranks or _RANKS, seed=seed), world, checks)


def _refuse_others(
    check: Callable[..., object], others: Mapping[str, object], of_cases: Collection[str]
) -> None:
    """Raise `TypeError` for an argument that a check does not have, with advice if it belongs into the dictionary of a case."""
    for name in others:
        advice = did_you_mean(name, inspect.signature(check).parameters)
        if name == "ranks":
            advice = ": it draws their number; the extents of a mesh fix it, such as mesh=(4,)"
        if name in of_cases:
            advice = f": give a strategy in the place of inputs, `def cases(draw, ranks): return dict(inputs=..., {name}=...)`"
        raise TypeError(f"{check.__name__} has no argument `{name}`{advice}")


def _name(function: object, otherwise: str) -> str:
    name = str(getattr(function, "__name__", otherwise))
    return otherwise if name == "<lambda>" else name


def _maker(sequential: Any) -> Callable[..., torch.nn.Module]:
    import torch

    if isinstance(sequential, torch.nn.Module):

        def copied() -> torch.nn.Module:
            return _copied(sequential)

        copied.__name__ = type(sequential).__name__  # for messages
        return copied
    if not callable(sequential):
        raise TypeError(
            f"sequential: {described_type(sequential)} is neither a module nor a function that makes one"
        )
    return sequential  # type: ignore[no-any-return]


def _options(name: str, sequential: Any, inputs: Inputs) -> Options:
    """The name of a subject, and the memory of a device if its module or an example of its inputs lies there."""
    import torch

    tensors = [] if callable(inputs) else listed(inputs)
    if isinstance(sequential, torch.nn.Module):
        tensors += [*sequential.parameters(), *sequential.buffers()]
    options: Options = {"name": name}
    if any(map(arrays.is_on_device, tensors)):
        options["arrays"] = ("torch-cuda",)
    return options


def _copied(module: torch.nn.Module) -> torch.nn.Module:
    import torch

    # torch copies only leaves. Attributes that each call recomputes from parameters, as with `weight_norm` and pruning, become NaN here:
    # if no call recomputed one, it would be a constant in both copies, which would then agree on a gradient that lacks its parameters.
    held = (value for part in module.modules() for value in vars(part).values())
    computed = [each for each in held if isinstance(each, torch.Tensor) and not each.is_leaf]
    copies: dict[int, Any] = {id(each): torch.full_like(each, math.nan) for each in computed}
    try:
        copied = copy.deepcopy(module, copies)
    except Exception as error:
        raise SubjectError(
            f"sequential: the module cannot be copied ({type(error).__name__}: {error}): give a function that makes it"
        ) from error
    # torch does not copy attributes of parameters, such as Megatron's `sequence_parallel`.
    for own, given in zip(copied.parameters(), module.parameters(), strict=True):
        for name, mark in vars(given).items():
            try:
                vars(own)[name] = copy.deepcopy(mark, copies)
            except Exception:  # a lock, a stream or a process group cannot be copied
                vars(own)[name] = mark
    return copied
