"""The decorators that turn a strategy into a subject, one method for each kind."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Unpack

from adjointlab.core.declaration import SubjectError
from adjointlab.core.layer import PassHooks, Prepare, elementwise
from adjointlab.core.operator import LinearOperator
from adjointlab.core.space import Space
from adjointlab.engine.adapters import Differentiable, FunctionPair, Parameters, Ranks, UserFunction
from adjointlab.engine.declarations import declaration, declaration_of_recipe, perhaps_misspelt, with_defaults
from adjointlab.engine.dtensor import DTensorRecipe
from adjointlab.engine.legal_arguments import (
    WHAT_TO_CHECK,
    require_functions,
    require_makers,
    require_no_reference,
    require_operator,
    require_optimizer,
    require_own_group,
    require_truths,
)
from adjointlab.engine.options import Options
from adjointlab.engine.parallel import (
    DataParallel,
    MakeOptimizer,
    Parallelize,
    ParallelRecipe,
    Reduction,
    require_reductions,
)
from adjointlab.engine.pipeline import MakePipeline, PipelineRecipe
from adjointlab.engine.subject import Declare, Kind
from adjointlab.engine.user_layers import make_layer, make_twin
from adjointlab.spelling import described_type
from adjointlab.typing import Communicator

__all__ = ["subject"]


class _SubjectDecorators:
    """Declares subjects: each method decorates ``def cases(draw, ranks)``, which draws one case's arguments as a dictionary.

    The forms are :meth:`operator`, :meth:`pair`, :meth:`autograd`, :meth:`layer`, :meth:`parallel`, :meth:`pipeline` and :meth:`dtensor`; all
    take the :class:`Options`. ``@adjointlab.subject(MyOperator)`` is short for :meth:`operator`.

    All raise :class:`SubjectError` that says what is missing.
    """

    def operator(self, operator: Callable[..., LinearOperator], **options: Unpack[Options]) -> Declare:
        """Check a class with `forward`, `adjoint`, `domain`, `codomain` and `comm`, made as ``operator(comm, **arguments)``.

        It is a :class:`~adjointlab.core.operator.LinearOperator`, or a function that returns one::

            @adjointlab.subject.operator(RingShift)
            def ring_shifts(draw, ranks):
                return dict(layout=draw(adjointlab.strategies.layouts(ranks)))
        """
        require_operator(operator)
        return declaration(Kind.OPERATOR, operator, operator, options)

    def pair(self, forward: UserFunction, adjoint: UserFunction, **options: Unpack[Options]) -> Declare:
        """Check two functions, called as ``forward(comm, *x, **arguments)`` and ``adjoint(comm, *y, **arguments)``.

        The dictionary of a case also has the spaces `domain` and `codomain`, which are not passed on, and may have `gain`: a bound on the
        largest absolute row sum of any intermediate in both directions, 1 if each element goes to one place, with which results must
        be exact; and `rounding`, the error of results relative to the largest, as for an iterative solver. Neither is passed on, unless one
        of the functions has a parameter of that name: then it is an argument of both, and not a bound.
        """
        require_functions(forward=forward, adjoint=adjoint)
        return declaration(
            Kind.PAIR, forward, partial(_make_pair, forward, adjoint, _ranks(options)), options
        )

    def autograd(self, function: UserFunction, **options: Unpack[Options]) -> Declare:
        """Check the derivative of a linear function of torch tensors.

        A subclass of `torch.autograd.Function` is applied to ``(*x, comm, *arguments.values())``; any other function is
        called as ``function(comm, *x, **arguments)``. The dictionary of a case also has the spaces `domain` and `codomain`,
        which are not passed on, and may have `gain`, as in :meth:`pair`. torch.distributed code gets no `comm`, but a default group::

            @al.subject.autograd(GatherRows, process_group=True)
            def gathers(draw, ranks):
                return dict(domain=..., codomain=...)
        """
        require_functions(function=function)
        target, ranks = _of_apply(function), _ranks(options)

        def build(comm: Communicator, /, **parameters: object) -> Differentiable:
            return Differentiable(comm, target, *_spaces(parameters), ranks)

        return declaration(Kind.AUTOGRAD, target, build, options)

    def layer(
        self,
        layer: UserFunction,
        sequential: UserFunction,
        *,
        prepare: Prepare = elementwise,
        twice_differentiable: bool = False,
        **options: Unpack[Options],
    ) -> Declare:
        """Check a distributed layer against its sequential twin.

        ``layer(comm, **arguments)`` makes a `torch.nn.Module` on each rank, ``sequential(**arguments)`` its twin.
        ``prepare(*inputs)`` makes legal inputs from drawn ones, as wholes. With `twice_differentiable`, second
        derivatives are checked too. It takes no `reference`, because the twin is one.

        The lab reads more about a layer from attributes of the module or entries of the dictionary, which are not passed on:

        - `domain` and `codomain`, the spaces of its inputs and outputs; `parameter_space` and `buffer_space`, those of its
          parameters and buffers, named as both modules name them: all of them, except for buffers that are not persistent;
        - `rounding`, how far results may differ from the twin's, relative to the largest value of each tensor (default: measured
          on the twin; 0: exact on small integers), and `reach`, a lower bound for this value, where terms cancel
          (default 0);
        - `overwrites_inputs`: it may write into its inputs (default `False`);
        - `forward_mode`: it can be differentiated in forward mode (default `True`);
        - `uniform_requires_grad`: the same tensors require a gradient on all ranks (default `False`: they differ between
          ranks, except for replicated or invariant copies of a parameter);
        - ``training``, only in the dictionary: the mode that both modules are put into. Draw it for a layer that behaves
          differently in training and evaluation: the lab cannot find that out.
        """
        require_functions(layer=layer, sequential=sequential, prepare=prepare)
        require_makers(layer=layer, sequential=sequential)
        require_no_reference(options, "layer", "that of a layer is its sequential twin")
        options["reference"] = partial(make_twin, sequential)
        return declaration(
            Kind.LAYER,
            layer,
            partial(make_layer, layer, prepare, _ranks(options)),
            options,
            twice_differentiable=twice_differentiable,
            own=_keywords(self.layer),
        )

    def parallel(
        self,
        sequential: UserFunction,
        parallelize: Parallelize,
        *,
        data_parallel: DataParallel = None,
        before_backward: UserFunction | None = None,
        after_backward: UserFunction | None = None,
        context: Callable[[], AbstractContextManager[object]] = nullcontext,
        prepare: Prepare = elementwise,
        optimizer: MakeOptimizer | None = None,
        steps: int = 0,
        accumulates: bool | None = None,
        one_batch_size: bool = False,
        twice_differentiable: bool = False,
        **options: Unpack[Options],
    ) -> Declare:
        """Check a module that torch.distributed code makes parallel against the module that it is made from.

        ``sequential(**arguments)`` makes the module, ``parallelize(module, mesh)`` applies tensor parallelism, ``fully_shard``,
        `DistributedDataParallel` or custom layers to it, in place or returning another one. The dictionary of a case has

        - ``inputs``, the global shape of the input, or a list of several;
        - ``mesh``, its extents, or extents by name (default: all ranks in one dimension);
        - ``dtype`` (default: "float64", into which the module is converted) and ``training``; ``input_dtypes``, one for each input that is
          of another element type, such as "complex128";
        - ``dtensors``, if the module gets its inputs as DTensors (default `False`);
        - ``input_placements`` and ``output_placements``, a list of placements on the mesh for each, if plain tensors are not copies; and
          ``parameter_placements``, a list by name, for plain parameters that are not copies, with ``parameter_pieces``, the sizes by name of
          the pieces of fused ones, if every rank has a part of each piece;
        - ``rounding`` and ``reach``, as in :meth:`layer`, if the parallel module computes by another formula or in another type.

        With `data_parallel`, ranks share the batch, the first dimension of inputs and outputs, along the first mesh dimension, or
        along those of a mapping such as ``{"dp": "mean"}``; their gradients of parameters are summed ("sum") or averaged ("mean").
        Pass code that reduces gradients after the backward pass as ``after_backward(module)``, and code that clears gradients outside
        ``.grad``, such as Megatron's `main_grad`, as ``before_backward(module)``. Passes run in ``context()``, such as torch's
        `loss_parallel`.

        In some cases gradients accumulate over earlier ones, unless they are reduced by "sum", or code before or after the backward pass may
        clear or sum the earlier contents of ``.grad``; `accumulates` overrides this. If it is True, or if it is left out and `before_backward`
        is given, some cases accumulate the gradients of two passes between one call of `before_backward` and one of `after_backward`.
        In some cases the module has been evaluated or trained before on twice or half the first dimension of all inputs, if the
        sequential module accepts that; not with `one_batch_size`. With `twice_differentiable`, derivatives of the input gradients are
        compared too, as a gradient penalty needs them.

        In some cases parameters are frozen before the module is made parallel; ``frozen=0`` in the dictionary forbids that. In some both
        modules are in evaluation mode, if outputs then have the same places, shapes and types: not with ``evaluated=False``, nor
        if ``training`` is given.

        ``optimizer(parameters)`` makes an optimiser. Parameters and buffers after `steps` of its steps are compared too; in some cases
        a step is of two microbatches, if gradients may accumulate, and learning rates in its `param_groups` are halved after each.
        """
        require_optimizer(optimizer, steps, "parallel")
        require_functions(
            sequential=sequential,
            parallelize=parallelize,
            before_backward=before_backward,
            after_backward=after_backward,
            prepare=prepare,
        )
        require_makers(sequential=sequential, parallelize=parallelize)
        require_reductions(data_parallel)
        require_truths(one_batch_size=one_batch_size, twice_differentiable=twice_differentiable)
        if accumulates is not None:
            require_truths(accumulates=accumulates)
        require_own_group(options, "parallel")
        require_no_reference(options, "parallel", "the sequential module is what it is compared with")
        given: object = context
        if isinstance(given, AbstractContextManager) or not callable(given):
            raise SubjectError(
                f"context: {context!r} is not a function that makes a context: give one, such as a lambda that returns it"
            )
        recipe = ParallelRecipe(
            sequential,
            parallelize,
            data_parallel,
            prepare,
            optimizer,
            steps,
            PassHooks(before_backward, after_backward, context),
            accumulates,
            one_batch_size,
        )
        own = _keywords(self.parallel)
        declare = declaration_of_recipe(
            parallelize, recipe, options, own, twice_differentiable=twice_differentiable
        )
        return lambda draws: declare(with_defaults(draws, ("inputs",), is_parallel=True))

    def pipeline(
        self,
        sequential: UserFunction,
        pipeline: MakePipeline,
        *,
        loss: UserFunction,
        reduction: Reduction = "mean",
        after_backward: UserFunction | None = None,
        prepare: Prepare = elementwise,
        optimizer: MakeOptimizer | None = None,
        steps: int = 0,
        **options: Unpack[Options],
    ) -> Declare:
        """Check a schedule of torch.distributed.pipelining against the module whose parts are its stages.

        ``sequential(**arguments)`` makes the module, and ``pipeline(module, **arguments)`` on each rank the schedule, with stages made
        from parts of that module. One step of it has to give the loss ``loss(module(*inputs), target)``, the outputs and the gradients of
        the whole batch. The schedule averages the losses of microbatches (`reduction` "mean", torch's default) or sums them
        ("sum", with ``scale_grads=False``). The dictionary of a case has

        - ``inputs``, the shape of the input of a batch, or a list of several, and ``input_dtypes``, as in :meth:`parallel`;
        - ``target``, the shape of the target (default: that of the output);
        - ``pipeline``, the arguments of `pipeline` after the module: ``adjointlab.strategies.pipelines(ranks)`` draws a schedule,
          the cuts of the module, and a number of microbatches;
        - ``input_gradient``, if the gradients of the inputs are compared too (default `False`). torch averages only those of parameters;
        - ``dtype`` (default: "float64", into which the module is converted), ``training``, ``frozen``, ``rounding`` and ``reach``.

        ``prepare(*inputs, target)`` makes legal tensors from drawn ones. ``after_backward(module)`` is called after the backward pass with
        the module whose parts are the stages. ``optimizer(parameters)`` makes an optimiser; `steps` of its steps are compared too.
        """
        require_optimizer(optimizer, steps, "pipeline")
        require_functions(
            sequential=sequential,
            pipeline=pipeline,
            loss=loss,
            after_backward=after_backward,
            prepare=prepare,
        )
        require_makers(sequential=sequential, pipeline=pipeline)
        if inspect.isclass(loss):
            raise SubjectError(
                f"loss: {loss.__name__} is a class; give an instance, such as {loss.__name__}()"
            )
        if reduction not in ("mean", "sum"):
            raise SubjectError(f'@subject.pipeline: the reduction is "mean" or "sum", not {reduction!r}')
        require_own_group(options, "pipeline")
        require_no_reference(options, "pipeline", "the sequential module is what it is compared with")
        recipe = PipelineRecipe(
            sequential,
            pipeline,
            loss,
            reduction,
            prepare,
            optimizer,
            steps,
            PassHooks(after_backward=after_backward),
        )
        declare = declaration_of_recipe(pipeline, recipe, options, _keywords(self.pipeline))
        return lambda draws: declare(with_defaults(draws, ("inputs",), has_mesh=False))

    def dtensor(
        self,
        function: UserFunction,
        *,
        linear: bool = False,
        prepare: Prepare = elementwise,
        **options: Unpack[Options],
    ) -> Declare:
        """Check ``function(*x, **arguments)`` of DTensors, which returns DTensors, against the same function of plain tensors.

        That is ``reference(*x, **arguments)``, with plain global tensors for `x`, and by default the function itself. The dictionary
        of a case has `inputs`, the global shape of the argument or a list of several; `placements`, those of the argument or a list
        for each; and, if these are not the defaults, `mesh` (all ranks in one dimension) and `dtype` ("float64").

        The shapes and placements that results claim are compared with what the ranks have. A `linear` function is checked as an
        operator: dot test, matrix and the rest. For any other, ``prepare(*inputs)`` makes legal inputs from drawn ones, as for a layer::

            @adjointlab.subject.dtensor(lambda x, to: x.redistribute(placements=to), reference=lambda x, to: x, linear=True)
            def redistributions(draw, ranks):
                mesh, shape = draw(adjointlab.strategies.meshes(ranks)), draw(adjointlab.strategies.shapes(2))
                to = draw(adjointlab.strategies.placements(mesh, 2))
                placements = draw(adjointlab.strategies.placements(mesh, 2, partial=True))
                return dict(mesh=mesh, inputs=shape, placements=placements, to=to)
        """
        require_functions(function=function, prepare=prepare)
        require_own_group(options, "dtensor")
        if linear and prepare is not elementwise:
            raise SubjectError(
                "@subject.dtensor takes no `prepare` of a linear function: it is applied to any numbers"
            )
        recipe = DTensorRecipe(function, options.get("reference") or function, prepare)
        options["process_group"] = True
        build_on = recipe.operator_on if linear else recipe.layer_on
        build, options["reference"] = build_on("cpu")
        kind = Kind.AUTOGRAD if linear else Kind.LAYER
        declare = declaration(kind, function, build, options, build_on=build_on, own=_keywords(self.dtensor))
        return lambda draws: declare(with_defaults(draws, needs=("inputs", "placements")))

    def __call__(
        self,
        operator: Callable[..., LinearOperator] | None = None,
        *,
        forward: UserFunction | None = None,
        adjoint: UserFunction | None = None,
        autograd: UserFunction | None = None,
        layer: UserFunction | None = None,
        sequential: UserFunction | None = None,
        prepare: Prepare = elementwise,
        twice_differentiable: bool = False,
        **options: Unpack[Options],
    ) -> Declare:
        """Declare a subject of any kind: the older spelling of the methods of this object, with their arguments."""
        if layer is not None or sequential is not None:
            others = (operator, forward, adjoint, autograd, options.get("reference"))
            if layer is None or sequential is None or any(others):
                raise SubjectError(
                    "@subject(layer=..., sequential=...) takes both, and no other kind of subject"
                )
            return self.layer(
                layer, sequential, prepare=prepare, twice_differentiable=twice_differentiable, **options
            )
        forms = {"operator": operator, "forward": forward or adjoint, "autograd": autograd}
        given = [name for name, value in forms.items() if value is not None]
        if len(given) > 1:
            raise SubjectError(f"@subject takes one kind of subject, not {' and '.join(given)} together")
        if autograd is not None:
            return self.autograd(autograd, **options)
        if forward is not None and adjoint is not None:
            return self.pair(forward, adjoint, **options)
        if forward is not None or adjoint is not None:
            missing = "forward" if forward is None else "adjoint"
            raise SubjectError(
                f"@subject(forward=..., adjoint=...) lacks `{missing}`; the lab checks one against the other"
            )
        if operator is None:
            raise SubjectError(WHAT_TO_CHECK)
        return self.operator(operator, **options)


for _name, _method in vars(_SubjectDecorators).items():
    if inspect.isfunction(_method):
        _method.__qualname__ = f"subject.{_name}"  # the name in Python's errors about arguments

subject = _SubjectDecorators()


def _keywords(method: Callable[..., Declare]) -> list[str]:
    """The options that a method of this object has in addition to those of all kinds of subject."""
    parameters = inspect.signature(method).parameters.values()
    return [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]


def _of_apply(function: UserFunction) -> UserFunction:
    """The subclass of `torch.autograd.Function` if its `apply` is given, as callers write it; any other function unchanged."""
    owner: Any = getattr(function, "__self__", None)
    is_apply = inspect.isclass(owner) and function == getattr(owner, "apply", None)
    return owner if is_apply and hasattr(owner, "setup_context") else function


def _ranks(options: Options) -> Ranks:
    return Ranks.PROCESS_GROUP if options.get("process_group", False) else Ranks.COMMUNICATOR


def _make_pair(
    forward: UserFunction, adjoint: UserFunction, ranks: Ranks, comm: Communicator, /, **parameters: object
) -> FunctionPair:
    return FunctionPair(comm, forward, adjoint, *_spaces(parameters), ranks)


def _spaces(parameters: Parameters) -> tuple[Space, Space, Parameters]:
    """Split the parameters of functions into domain, codomain and arguments."""
    arguments = dict(parameters)
    domain, codomain = arguments.pop("domain", None), arguments.pop("codomain", None)
    if isinstance(domain, Space) and isinstance(codomain, Space):
        return domain, codomain, arguments
    faults = [
        f"{name} is {'missing' + perhaps_misspelt(name, arguments) if space is None else described_type(space)}"
        for name, space in (("domain", domain), ("codomain", codomain))
        if not isinstance(space, Space)
    ]
    raise SubjectError(
        f"the strategy's dictionary needs `domain` and `codomain` to be adjointlab.Space(layout), but {' and '.join(faults)}"
    )
