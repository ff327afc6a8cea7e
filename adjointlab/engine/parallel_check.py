"""All checks of one parallel module or pipeline on simulated ranks, as a call."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Never, TypeAlias

import numpy as np
from hypothesis.strategies import DrawFn

from adjointlab.checks.layers.drawn_values import LARGEST
from adjointlab.checks.verdict import Verdict
from adjointlab.core import arrays
from adjointlab.core.declaration import SubjectError
from adjointlab.core.kept_strategies import BOOLEANS, choices
from adjointlab.core.layer import LegalIndices, Prepare, elementwise
from adjointlab.core.strategies import grids
from adjointlab.engine.adapters import Parameters, UserFunction
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

__all__ = ["check_parallel", "check_pipeline"]

Inputs: TypeAlias = "torch.Tensor | Sequence[torch.Tensor] | Callable[[DrawFn, int], Parameters]"

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
    and arguments of `sequential`; what it may contain, and all options that are not explained here, are explained at ``adjointlab.subject.parallel``. `mesh` is a
    shape, which fixes the number of ranks, or names of dimensions, whose extents are drawn; by default one dimension of all ranks.

    Tensors lie on the host, or on the CUDA device on which an example or the module lies.

    Returns the verdicts by check. Raises `AssertionError` with the smallest failing case if one is not coherent, `TypeError` and
    `ValueError` for other arguments, and :class:`SubjectError` for a wrong declaration::

        adjointlab.check_parallel(model, lambda model, mesh: fully_shard(model, mesh=mesh), batch, data_parallel="mean")
    """
    __tracebackhide__ = True  # pytest and IPython end the traceback at the caller
    _refuse_others(check_parallel, others, ENTRIES_OF_PARALLEL)
    fixed, make_mesh = _meshes(mesh)
    if isinstance(frozen, str) or not isinstance(frozen, Collection | None):
        raise TypeError(f"frozen: {frozen!r} is not a list of names of parameters, such as ['weight']")
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
        prepare=_prepare(inputs, [], prepare),
        optimizer=optimizer,
        steps=steps,
        accumulates=accumulates,
        one_batch_size=one_batch_size,
        twice_differentiable=twice_differentiable,
        **options,
    )

    @declare
    def parallel(draw: DrawFn, ranks: int) -> Parameters:
        drawn: Any = inputs(draw, ranks) if callable(inputs) else _shapes(_listed(inputs))
        if not isinstance(drawn, Mapping):
            return drawn  # type: ignore[no-any-return]  # the caller raises a SubjectError for it
        given: dict[str, object] = {}
        if frozen is not None:
            given["frozen"] = list(frozen)
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
        prepare=_prepare(inputs, _listed_target(target), prepare),
        optimizer=optimizer,
        steps=steps,
        **options,
    )

    @declare
    def steps_of_pipeline(draw: DrawFn, ranks: int) -> Parameters:
        if callable(inputs):
            return inputs(draw, ranks)
        return _shapes(_listed(inputs)) | ({} if target is None else {"target": tuple(target.shape)})

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

    tensors = [] if callable(inputs) else _listed(inputs)
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


def _meshes(
    given: Sequence[str] | Sequence[int] | Mapping[str, int] | None,
) -> tuple[int | None, Callable[[DrawFn, int], Mapping[str, int] | tuple[int, ...]]]:
    """The number of ranks if the mesh fixes it, and a strategy of meshes."""
    if given is None:
        return None, lambda draw, ranks: (ranks,)
    what: Any = given
    if isinstance(what, str):
        raise TypeError(f"mesh: {what!r} is a text; give the names of dimensions as ({what!r},)")
    if isinstance(what, int):
        raise TypeError(f"mesh: {what} is a number; give the extents of dimensions as ({what},)")
    if given and (isinstance(given, Mapping) or all(isinstance(each, int) for each in given)):
        shape: Any = given
        extents = shape.values() if isinstance(shape, Mapping) else shape
        if not all(isinstance(each, int) and each > 0 for each in extents):
            raise ValueError(f"mesh: {given!r} has extents that are not whole numbers of at least 1")
        return math.prod(extents), lambda draw, ranks: shape
    if not given or not all(isinstance(each, str) for each in given):
        raise TypeError(f"mesh: {given!r} are neither names of dimensions nor their extents, whole numbers")
    names = tuple(map(str, given))
    if len(set(names)) < len(names):
        raise ValueError(f"mesh: {list(given)} has one name twice")

    def drawn(draw: DrawFn, ranks: int) -> Mapping[str, int]:
        shapes = grids(ranks, len(names))[::-1]
        # A mesh with all ranks in one dimension, as two of the three meshes of 4 ranks, does not show when two dimensions are mixed up.
        if several := [shape for shape in shapes if ranks not in shape]:
            shapes = tuple(several) if draw(BOOLEANS) else shapes
        extents = draw(choices(shapes))
        return dict(zip(names, extents, strict=True))

    return None, drawn


def _listed(inputs: Any) -> list[torch.Tensor]:
    import torch

    listed = [inputs] if isinstance(inputs, torch.Tensor) else inputs
    is_list = isinstance(listed, Sequence) and bool(listed)
    if not is_list or not all(isinstance(each, torch.Tensor) for each in listed):
        raise TypeError(
            f"inputs: {described_type(inputs)} is not a torch.Tensor, a list of them, or a strategy inputs(draw, ranks)"
        )
    return list(listed)


def _listed_target(target: torch.Tensor | None) -> list[torch.Tensor]:
    """The example of a target; by default one of floating-point numbers."""
    import torch

    if not isinstance(target, torch.Tensor | None):
        raise TypeError(f"target: {described_type(target)} is not a torch.Tensor, an example of targets")
    return [torch.zeros(()) if target is None else target]


def _shapes(examples: Sequence[torch.Tensor]) -> dict[str, object]:
    types = ["complex128" if example.is_complex() else "float64" for example in examples]
    of_types = {"input_dtypes": types} if "complex128" in types else {}
    return {"inputs": [tuple(example.shape) for example in examples], **of_types}


def _prepare(inputs: Inputs, targets: Sequence[torch.Tensor], prepare: Prepare | None) -> Prepare:
    """The given preparation, applied to drawn numbers of the examples' element types; by default one that makes legal integers."""
    if callable(inputs):
        return prepare or elementwise
    examples = [*_listed(inputs), *targets]
    if all(map(arrays.is_differentiable, examples)):
        return prepare or elementwise
    converted = [_converter(example, is_legal=prepare is None) for example in examples]

    def prepared_as_examples(*drawn: Any) -> Sequence[Any]:
        like_examples = [convert(x) for convert, x in zip(converted, drawn, strict=True)]
        return like_examples if prepare is None else prepare(*like_examples)

    # A user's preparation gets small integers, as documented.
    indices = [position for position, example in enumerate(examples) if not arrays.is_differentiable(example)]
    return LegalIndices(prepared_as_examples, frozenset(indices if prepare is None else ()))


def _converter(example: torch.Tensor, *, is_legal: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function that turns drawn numbers into integers, such as indices, if the example holds integers.

    Legal ones lie between 0 and the example's largest, or are one of its negative values, such as -100 as the `ignore_index` of a loss.
    """
    if arrays.is_differentiable(example):
        return lambda drawn: drawn
    if not is_legal:
        return lambda drawn: drawn.to(example.dtype)
    own = np.unique(example.numpy(force=True)).tolist() or [0]
    negative = [each for each in own if each < 0]
    number = max(int(own[-1]) + 1, 0)

    def legal(drawn: torch.Tensor) -> torch.Tensor:
        index = _partly_small(drawn.long()).remainder(number + len(negative))
        for position, value in enumerate(negative):
            index = index.masked_fill(index == number + position, value)
        return index.to(example.dtype)

    return legal


def _partly_small(whole: torch.Tensor) -> torch.Tensor:
    """Replace half of the large integers by small ones: otherwise hardly any of many indices would occur twice."""
    half = whole // 2
    small = half % (2 * LARGEST + 1) - LARGEST
    return whole.where(whole.abs() <= 2 * LARGEST, small.where(whole % 2 == 0, half))
